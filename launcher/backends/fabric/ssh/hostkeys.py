"""Host keys: known ones pass, changed ones are refused with file and line, unknown ones follow the policy.

Reads OpenSSH's files with hashed names, patterns and @revoked. Hosts with a @cert-authority line use the
ssh binary, because paramiko does not support host certificates.
"""

from __future__ import annotations

import base64
import contextlib
import fnmatch
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ....errors import HostError
from .settings import HopSettings

ADVICE = "accept it with --host_key_policy=accept_new, or be asked at a terminal with --host_key_policy=ask"


class KnownHost(NamedTuple):
    names: str
    key_type: str
    key: bytes
    marker: str
    where: str  # file:line

    def covers(self, address: str) -> bool:
        """Check for a match with `address`: `host`, or `[host]:port` for a port other than 22."""
        if self.names.startswith("|1|"):
            return _fits_hash(self.names, address)
        patterns = self.names.lower().split(",")
        if any(pattern.startswith("!") and _fits(address, pattern[1:]) for pattern in patterns):
            return False
        return any(_fits(address, pattern) for pattern in patterns)


def _fits(address: str, pattern: str) -> bool:
    # Only * and ? are special; brackets belong to [host]:port.
    return fnmatch.fnmatchcase(address.lower(), pattern.replace("[", "[[]"))


def _fits_hash(names: str, address: str) -> bool:
    from paramiko import HostKeys

    with contextlib.suppress(ValueError, AssertionError):  # it has no salt
        return bool(HostKeys.hash_host(address.lower(), names) == names)
    return False


def _read_known_hosts(paths: Iterable[str]) -> Iterator[KnownHost]:
    """Return all valid lines of these files; missing files are skipped."""
    for path in paths:
        try:
            lines = Path(path).read_text(errors="replace").splitlines()
        except OSError:
            continue
        for number, line in enumerate(lines, 1):
            words = line.split()
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) < 3 or words[0].startswith("#"):
                continue
            with contextlib.suppress(ValueError):
                key = base64.b64decode(words[2])
                yield KnownHost(words[0], words[1], key, marker, f"{path}:{number}")


def find_entries(settings: HopSettings) -> list[KnownHost]:
    """Return the lines for a host; like ssh, lines without a port if none has its port."""
    entries = [*_read_known_hosts((*settings.user_known_hosts, *settings.global_known_hosts))]
    own = [entry for entry in entries if entry.covers(settings.address)]
    if own or settings.address == settings.hostname:
        return own
    return [entry for entry in entries if entry.covers(settings.hostname) and not settings.host_key_alias]


def check_key(settings: HopSettings, key: Any, ask: Callable[[str], str] | None) -> None:
    """Check a host key of paramiko. Raises HostError, step "host key", if it is not trusted."""
    shown = f"its {key.get_name()} key is {key.fingerprint}"
    entries = find_entries(settings)
    equal = {entry.marker: entry.where for entry in entries if entry.key == key.asbytes()}
    if "@revoked" in equal:
        raise _make_error(settings, f"{shown}, which {equal['@revoked']} revokes")
    if "" in equal or settings.strict == "no":
        return
    # A line without a port can confirm a key but not contradict it.
    others = [entry for entry in entries if not entry.marker and entry.covers(settings.address)]
    if others:
        where = next((e for e in others if e.key_type == key.get_name()), others[0]).where
        forget = shlex.join(["ssh-keygen", "-R", settings.address, "-f", where.rpartition(":")[0]])
        why = "someone may intercept the connection, or the host was reinstalled; in that case"
        raise _make_error(settings, f"{shown}, but {where} has another: {why}: {forget}")
    trusted = settings.strict == "accept-new"
    if settings.strict == "ask" and ask:
        question = f"{settings.name} ({settings.address}) is not known; {shown}. Connect? (yes/no) "
        trusted = ask(question).strip().lower() in ("yes", "y")
    if not trusted:
        raise _make_error(settings, f"{shown}, which is not known; {ADVICE}")
    if settings.user_known_hosts:
        _remember(Path(settings.user_known_hosts[0]), settings, key)


def _make_error(settings: HopSettings, detail: str) -> HostError:
    return HostError(settings.name, "host key", detail)


def _remember(path: Path, settings: HopSettings, key: Any) -> None:
    """Append to a known_hosts file. Like ssh, ignores a file that can't be written: it asks again."""
    from paramiko import HostKeys

    name = settings.address.lower()
    name = HostKeys.hash_host(name) if settings.hash_known_hosts else name
    line = f"{name} {key.get_name()} {key.get_base64()}\n".encode()
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        broken = path.read_bytes()[-1:] not in (b"", b"\n")
        with path.open("ab") as file:
            file.write(b"\n" + line if broken else line)


def sort_key_types(entries: Iterable[KnownHost], offered: Sequence[str]) -> list[str]:
    """Return the algorithms, those of known keys first, so that the host shows a known key."""
    known = {entry.key_type for entry in entries if not entry.marker}
    known |= {"rsa-sha2-512", "rsa-sha2-256"} if "ssh-rsa" in known else set()
    return sorted(offered, key=lambda name: name not in known)
