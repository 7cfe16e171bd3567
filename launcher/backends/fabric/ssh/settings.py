"""Connection settings of a host as `ssh host` has them, with the directives that paramiko can't honour.

With OpenSSH on this machine they come from `ssh -G`, including Include, Match and all defaults. Without it
Fabric reads the user's file, and a directive that needs OpenSSH is an error.
"""

from __future__ import annotations

import fnmatch
import getpass
import os
import re
import shlex
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ....errors import HostError, SpecError
from ....options.hosts import Host, split_list
from ...here import ask_command
from . import keys

SSH_G_LIMIT_S = 20.0  # `Match exec` may be slow, and the machine very busy
MAX_JUMPS = 8
FILE = "~/.ssh/config"  # ssh's other one comes with it
KEEPALIVE_S = 15
WITHOUT = "this needs OpenSSH's ssh, which is not installed on this machine: install openssh-client"
Values = Mapping[str, Sequence[str]]

_STRICT = {"true": "yes", "false": "no", "off": "no"}  # as -G prints them
_OF_POLICY = {"accept_new": "accept-new", "reject": "yes", "ask": "ask"}
_DEFAULT_KEYS = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")


def _is_on(value: str) -> bool:
    return value.lower() not in ("", "no", "none", "false", "internal", "0")


# What paramiko can't honour, with the values of it for which a host needs the ssh binary.
_ONLY_SSH: Final[Mapping[str, Callable[[str], bool]]] = {
    **dict.fromkeys(
        ("pkcs11provider", "knownhostscommand", "revokedhostkeys", "verifyhostkeydns", "proxyusefdpass",
         "hostbasedauthentication", "gssapikeyexchange", "bindinterface", "forwardagent",
         "nohostauthenticationforlocalhost",
         "include"),  # where `ssh -G` is not there to follow it
        _is_on,
    ),
    "identityagent": lambda value: _is_on(value) and value != "SSH_AUTH_SOCK",
    "preferredauthentications": lambda value: not value.startswith("publickey"),
    "pubkeyauthentication": lambda value: not _is_on(value),
    "localcommand": _is_on,
    # An open shared connection is perhaps the only access.
    "controlpath": lambda value: Path(value).is_socket(),
}  # fmt: skip
ALGORITHMS: Final = ("ciphers", "macs", "kexalgorithms", "hostkeyalgorithms")


class HopSettings(NamedTuple):
    name: str  # as given by the user or a ProxyJump
    hostname: str
    user: str
    port: int
    words: tuple[str, ...] = ()  # for the ssh binary, which reads its own configuration
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    certificate_files: tuple[str, ...] = ()
    user_known_hosts: tuple[str, ...] = ()
    global_known_hosts: tuple[str, ...] = ()
    host_key_alias: str = ""
    strict: str = "ask"  # StrictHostKeyChecking: yes, no, accept-new, ask
    hash_known_hosts: bool = False
    proxy_command: str = ""
    jumps: tuple[Host, ...] = ()
    connect_timeout_s: float | None = None
    keepalive_s: int = KEEPALIVE_S
    compression: bool = False
    family: str = "any"
    bind_address: str = ""
    env: tuple[tuple[str, str], ...] = ()
    algorithms: tuple[tuple[str, ...], ...] = ((),) * len(ALGORITHMS)  # in order; (): paramiko's default
    only_ssh: str = ""  # the directive that requires the ssh binary

    @property
    def address(self) -> str:
        """The host as written in known_hosts."""
        name = self.host_key_alias or self.hostname
        return name if self.port == 22 or self.host_key_alias else f"[{name}]:{self.port}"


Route = tuple[HopSettings, ...]  # the hops to a host, ending with the host itself


def parse_ssh_output(text: str) -> dict[str, list[str]]:
    """Parse the output of `ssh -G`: lines of a key and a value; keys may repeat."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key.lower(), []).append(value)
    return found


def make_settings(
    name: str, values: Values, *, home: str, local_user: str, environ: Mapping[str, str]
) -> HopSettings:
    """Return the settings from the values of `ssh -G`. Raises ValueError or SpecError for an invalid one."""
    first = {key: lines[0] for key, lines in values.items() if lines[0] != "none"}
    get = first.get

    def get_number(key: str) -> int:
        if not (text := get(key, "0")).isdecimal():
            raise ValueError(f"{key} {text} is not a number")
        return int(text)

    hostname, user, port = get("hostname", name), get("user", local_user), get_number("port") or 22
    tokens = {"%": "%", "h": hostname, "p": str(port), "r": user, "n": name, "u": local_user, "d": home}
    tokens |= {"k": get("hostkeyalias", hostname), "L": socket.gethostname().partition(".")[0]}
    tokens |= {"i": str(os.getuid()), "l": socket.gethostname()}

    def get_paths(key: str) -> tuple[str, ...]:
        return tuple(expand(value, tokens, home, environ) for value in values.get(key, ()) if value != "none")

    def get_names(key: str) -> tuple[str, ...]:
        value = get(key, "+")
        return () if value[:1] in "+-^" else tuple(value.split(","))

    return HopSettings(
        name=name,
        hostname=hostname,
        user=user,
        port=port,
        identity_files=get_paths("identityfile"),
        identities_only=_is_on(get("identitiesonly", "")),
        certificate_files=get_paths("certificatefile"),
        user_known_hosts=_split_files(values.get("userknownhostsfile", ()), home),
        global_known_hosts=_split_files(values.get("globalknownhostsfile", ()), home),
        host_key_alias=get("hostkeyalias", ""),
        strict=_STRICT.get(strict := get("stricthostkeychecking", "ask"), strict),
        hash_known_hosts=_is_on(get("hashknownhosts", "")),
        proxy_command=expand(get("proxycommand", ""), tokens, "", {}),
        jumps=tuple(map(_read_jump, split_list(get("proxyjump", "")))),
        connect_timeout_s=get_number("connecttimeout") or None,
        keepalive_s=get_number("serveraliveinterval") or KEEPALIVE_S,
        compression=_is_on(get("compression", "")),
        family=get("addressfamily", "any"),
        bind_address=get("bindaddress", ""),
        env=tuple(_list_sent(values, environ)),
        algorithms=tuple(map(get_names, ALGORITHMS)),
        only_ssh=_find_only_ssh(first),
    )


def _read_jump(jump: str) -> Host:
    """Read a ProxyJump `user@host:port`, also with ssh://; ssh takes names that --hosts refuses."""
    user, at, rest = jump.removeprefix("ssh://").rpartition("@")
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[]+))(?::([0-9]+))?", rest)
    name, port = (match[1] or match[2], match[3]) if match else (rest, None)
    return Host(name, user if at else None, int(port) if port else None)


def expand(text: str, tokens: Mapping[str, str], home: str, environ: Mapping[str, str]) -> str:
    """Expand tokens of ssh_config (%h), a leading ~ and ${NAME}; leave unknown ones."""
    if home and (text == "~" or text.startswith("~/")):
        text = home + text[1:]
    text = re.sub(r"\$\{(\w+)\}", lambda m: environ.get(m[1], m[0]), text)
    return re.sub("%(.)", lambda m: tokens.get(m[1], m[0]), text)


def _split_files(lines: Iterable[str], home: str) -> tuple[str, ...]:
    """Return the paths in lines; a word that does not begin a path continues the one before, with a space."""
    found: list[str] = []
    for word in " ".join(lines).split(" "):
        if word.startswith(("/", "~/", "none")) or not found:
            found.append(word)
        else:
            found[-1] += f" {word}"
    return tuple(expand(path, {}, home, {}) for path in found if path not in ("", "none"))


def _list_sent(values: Values, environ: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Return the variables that SendEnv and SetEnv send to the host."""
    patterns = [word for line in values.get("sendenv", ()) for word in line.replace(",", " ").split()]
    for name, value in environ.items():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            yield name, value
    for line in values.get("setenv", ()):
        name, _, value = line.partition("=")
        yield name, value


def _find_only_ssh(first: Mapping[str, str]) -> str:
    """Return the first directive that paramiko can't honour, or ""."""
    permitted = _is_on(first.get("permitlocalcommand", ""))
    for key, needs_ssh in _ONLY_SSH.items():
        if key in first and needs_ssh(first[key]) and (permitted or key != "localcommand"):
            return f"{key} {first[key]}"
    return ""


class Config:
    """Lookup of host settings, by OpenSSH if installed."""

    def __init__(self, host_key_policy: str | None = None) -> None:
        """Prepare lookups; `host_key_policy` overrides ssh's configuration. Raises SpecError."""
        self._strict = _OF_POLICY[host_key_policy] if host_key_policy else ""
        self.ssh = shutil.which("ssh")
        self._home = str(Path.home())
        try:
            self._user = getpass.getuser()
        except (KeyError, OSError):  # depends on the version of Python
            raise SpecError(f"user {os.getuid()} has no name here: set the variable USER") from None

    def find_route(self, host: Host, depth: int = 0) -> Route:
        """Return the route to a host. Raises HostError, step "resolve"."""
        if depth > MAX_JUMPS:
            raise HostError(host.name, "resolve", f"ProxyJump has over {MAX_JUMPS} hosts, or is circular")
        settings = self._look_up(host)
        hops: Route = ()
        for jump in settings.jumps:
            if jump.name == host.name:
                continue  # `Host *` with ProxyJump matches the jump host too
            if hops:  # reached over the hop before, regardless of its own settings
                hops = (*hops, self._look_up(jump)._replace(jumps=(), proxy_command=""))
            else:
                hops = self.find_route(jump, depth + 1)
        return (*hops, settings)

    def _look_up(self, host: Host) -> HopSettings:
        name, values = host.name, self._ask_ssh(host) if self.ssh else self._read_files(host)
        try:
            found = make_settings(name, values, home=self._home, local_user=self._user, environ=os.environ)
        except (ValueError, SpecError) as e:
            raise HostError(name, "resolve", f"its settings: {e}") from None
        only_ssh = found.only_ssh or keys.find_security_key(found.identity_files)
        if only_ssh and not self.ssh:
            named = [re.split(r"[\s=]", line.strip(), maxsplit=1)[0].lower() for line in _read_lines()]
            directive = only_ssh.split()[0]
            place = f"{FILE}:{named.index(directive) + 1}" if directive in named else FILE
            raise HostError(name, "resolve", f"{place}: {only_ssh}: {WITHOUT}")
        words, strict = tuple(shlex.split(host.ssh_words)), self._strict or found.strict
        return found._replace(words=words, strict=strict, only_ssh=only_ssh)

    def _ask_ssh(self, host: Host) -> Values:
        argv = [str(self.ssh), "-G", *shlex.split(host.ssh_words)]
        done = ask_command(argv, SSH_G_LIMIT_S, lambda why: HostError(host.name, "resolve", f"ssh -G {why}"))
        if done.returncode:
            words = done.stderr.strip() or f"exit code {done.returncode}"
            raise HostError(host.name, "resolve", f"ssh -G: {words}")
        return parse_ssh_output(done.stdout)

    def _read_files(self, host: Host) -> Values:
        """Return the settings of a host from its file, as `_ask_ssh` does."""
        import paramiko

        try:
            found = paramiko.SSHConfig.from_text("\n".join(_read_lines())).lookup(host.name)
        except paramiko.SSHException as e:
            raise HostError(host.name, "resolve", f"{FILE}: {e}") from None
        return {
            "identityfile": [f"~/.ssh/{key}" for key in _DEFAULT_KEYS],
            "userknownhostsfile": ["~/.ssh/known_hosts ~/.ssh/known_hosts2"],
            "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"],
            **{key: [value] if isinstance(value, str) else value for key, value in found.items()},
            **({"user": [host.user]} if host.user else {}),
            **({"port": [str(host.port)]} if host.port else {}),
        }


def _read_lines() -> list[str]:
    try:
        return Path(FILE).expanduser().read_text(errors="replace").splitlines()
    except OSError:
        return []
