"""Pslaunch reaches the hosts that `ssh host` reaches, and refuses those it refuses, for the same user."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pslaunch.backends.fabric.spec import FabricReach
from pslaunch.backends.fabric.ssh.channel import BinaryChannel, Channel, ParamikoChannel
from pslaunch.backends.fabric.ssh.fleet import Fleet
from pslaunch.errors import HostError
from pslaunch.options.hosts import Host
from support.process import poll_until
from support.sshd import (
    KEEPER,
    Client,
    Sshd,
    greets,
    make_client,
    make_key,
    make_sshd,
    needs_openssh,
    public,
    reaching,
    without_openssh,
)

pytestmark = needs_openssh


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    authority = make_key(tmp_path / "authority")
    yield from make_sshd(tmp_path / "sshd", f"TrustedUserCAKeys {authority}.pub", "AcceptEnv GIVEN")


@pytest.fixture
def client(tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Client:
    return make_client(tmp_path / "user", sshd, monkeypatch)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """An ssh-agent; adds keys to it."""
    socket = tmp_path / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))

        def add(key: Path) -> None:
            subprocess.run(["ssh-add", "-q", str(key)], check=True, capture_output=True)

        yield add
        process.terminate()


@dataclass
class Asked:
    """Answers questions, and remembers them."""

    answer: str

    def __post_init__(self) -> None:
        self.questions: list[str] = []

    def __call__(self, question: str) -> str:
        self.questions.append(question)
        return self.answer


def reach(
    *names: str, ask: Callable[[str], str] | None = None, how: FabricReach | None = None
) -> type[Channel]:
    """The kind of the channels to these hosts, whose agents have greeted. Raises HostError."""
    kinds = list[type[Channel]]()
    with contextlib.closing(Fleet(how or reaching(), ask=ask)) as fleet:
        for channel in fleet.open([Host(name) for name in names or ("node",)], KEEPER):
            greets(channel)
            assert isinstance(channel, Channel)
            kinds.append(type(channel))
    return kinds[-1]


def both(client: Client, name: str = "node") -> type[Channel]:
    """ssh reaches it, and so do we."""
    done = client.ssh(name)
    assert done.stdout == "works\n", done.stderr
    return reach(name)


def neither(client: Client, name: str = "node") -> HostError:
    """ssh does not reach it, and nor do we."""
    assert client.ssh(name).returncode == 255
    with pytest.raises(HostError) as caught:
        reach(name)
    return caught.value


@pytest.mark.parametrize("kind", ["ecdsa", "rsa"])
def test_all_kinds_of_keys_authenticate_as_with_ssh(client: Client, kind: str) -> None:
    key = make_key(client.folder / kind, kind=kind)
    client.sshd.authorized.write_text(f"{public(key)}\n")
    client.configure(f"Host node\n  IdentityFile {key}\n  IdentitiesOnly yes")
    assert both(client) is ParamikoChannel


def test_include_match_alias_user_and_port(client: Client) -> None:
    (client.folder / "more").write_text(f"Host short\n  HostName localhost\n  User {getpass.getuser()}\n")
    client.configure(
        f"Include {client.folder}/more",
        f"Match originalhost other exec true\n  HostName 127.0.0.1\n  Port {client.sshd.port}",
        "Host *\n  HostKeyAlias the-node",
    )
    client.know(f"the-node {public(client.sshd.host_key)}")
    assert both(client, "short") is ParamikoChannel
    assert both(client, "other") is ParamikoChannel


def test_hashed_known_hosts_are_accepted_as_with_ssh(client: Client) -> None:
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(client.known_hosts)], check=True, capture_output=True)
    assert "127" not in client.known_hosts.read_text().split()[0]
    assert both(client) is ParamikoChannel


def test_an_unknown_host_key(client: Client) -> None:
    client.know("")
    assert neither(client).step == "host key"
    client.configure("Host node\n  StrictHostKeyChecking accept-new")
    assert reach() is ParamikoChannel
    assert client.ssh("node").returncode == 0
    assert client.known_hosts.read_text().strip() == f"{client.sshd.address} {public(client.sshd.host_key)}"


@pytest.mark.parametrize(("more", "kind"), [("", ParamikoChannel), ("  ForwardAgent yes", BinaryChannel)])
def test_the_given_policy_wins_over_the_configuration(client: Client, more: str, kind: type[Channel]) -> None:
    client.know("")
    client.configure(f"Host node\n  StrictHostKeyChecking yes\n{more}")
    assert "--host_key_policy=accept_new" in neither(client).detail
    assert reach(how=reaching(host_key_policy="accept_new")) is kind
    client.know("")
    client.configure(f"Host node\n  StrictHostKeyChecking no\n{more}")
    with pytest.raises(HostError, match="host key"):
        reach(how=reaching(host_key_policy="reject"))
    assert both(client) is kind


def test_identities_only_restricts_keys_as_with_ssh(client: Client, agent: Callable[[Path], None]) -> None:
    """The agent's other keys are not offered; the configured one is, also where the agent alone has it."""
    agent(client.key)
    only = "Host node\n  IdentitiesOnly yes\n  IdentityFile"
    client.configure(f"{only} {make_key(client.folder / 'other')}", identity=False)
    assert neither(client).step == "authenticate"
    (client.folder / "away.pub").write_text(f"{public(client.key)}\n")
    client.configure(f"{only} {client.folder}/away.pub", identity=False)
    assert both(client) is ParamikoChannel


def test_more_keys_than_the_host_has_patience_for(client: Client, agent: Callable[[Path], None]) -> None:
    for n in range(7):
        agent(make_key(client.folder / f"k{n}"))
    client.configure(identity=False)
    assert neither(client).step == "authenticate"
    client.configure("Host node\n  IdentitiesOnly yes")
    assert both(client) is ParamikoChannel


@pytest.mark.parametrize(("beside", "kind"), [(True, "ed25519"), (False, "rsa")])
def test_certificate_authenticates_as_with_ssh(
    client: Client, tmp_path: Path, beside: bool, kind: str
) -> None:
    """Beside its key, where it is found, and elsewhere, where CertificateFile names it."""
    key = make_key(client.folder / "mine", kind=kind)
    client.sshd.authorized.write_text("")
    principal = getpass.getuser()
    sign = ["ssh-keygen", "-q", "-s", str(tmp_path / "authority"), "-I", "me", "-n", principal, f"{key}.pub"]
    subprocess.run(sign, check=True, capture_output=True)
    certificate = Path(f"{key}-cert.pub")
    client.configure(f"Host node\n  IdentityFile {key}\n  IdentitiesOnly yes")
    if not beside:
        certificate = certificate.rename(client.folder / "elsewhere.pub")
        assert neither(client).step == "authenticate"
        client.configure(f"Host node\n  IdentityFile {key}\n  CertificateFile {certificate}")
    assert both(client) is ParamikoChannel


@pytest.mark.parametrize("passphrase", ["in Latin-1: \udce4\udcf6"])
def test_a_passphrase_is_asked_once_for_all_hosts(client: Client, passphrase: str) -> None:
    key = make_key(client.folder / "locked", passphrase=passphrase)
    client.sshd.authorized.write_text(f"{public(key)}\n")
    client.configure(f"Host *\n  IdentityFile {key}\n  IdentitiesOnly yes")
    assert "locked without a terminal" in neither(client).detail
    ask = Asked(passphrase)
    reach("a", "b", "c", ask=ask)
    assert ask.questions == [f"Enter passphrase for key '{key}': "]


def test_a_passphrase_may_take_longer_than_the_host_waits_for_a_login(client: Client) -> None:
    key = make_key(client.folder / "locked", passphrase="open sesame")
    client.sshd.authorized.write_text(f"{public(key)}\n")
    client.configure(f"Host *\n  IdentityFile {key}\n  IdentitiesOnly yes")
    client.sshd.stop()
    client.sshd.start("LoginGraceTime 1")
    asked: list[str] = []

    def late(question: str) -> str:
        asked.append(question)
        poll_until(lambda: not client.sshd.connections(), describe="the host still waits")
        return "open sesame"

    reach("a", ask=late)
    assert len(asked) == 1


def test_an_identity_that_can_not_be_read_is_passed_over(client: Client) -> None:
    folder = client.folder / "a folder"
    folder.mkdir()
    client.configure(f'Host node\n  IdentityFile "{folder}"\n  IdentityFile {client.key}')
    assert both(client) is ParamikoChannel


def test_ctrl_c_at_a_question_ends_it(client: Client) -> None:
    key = make_key(client.folder / "locked", passphrase="open sesame")
    client.configure(f"Host *\n  IdentityFile {key}\n  IdentitiesOnly yes", identity=False)
    given_up = threading.Event()

    def ask(_question: str) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        assert given_up.wait(20)
        return ""

    fleet = Fleet(reaching(), ask=ask, give_up=given_up.set)
    with contextlib.closing(fleet), pytest.raises(KeyboardInterrupt):
        fleet.open([Host("a")], KEEPER)
    assert given_up.is_set()


def test_a_host_key_is_asked_for_once(client: Client) -> None:
    client.know("")
    ask = Asked("yes")
    reach("a", "b", ask=ask)
    (question,) = ask.questions
    assert "SHA256:" in question


@pytest.mark.parametrize("passphrase", ["in Latin-1: \udce4\udcf6"])
def test_questions_of_the_ssh_binary_are_put_once(client: Client, passphrase: str) -> None:
    """The host's key and a passphrase; for hosts one after the other, as they share a lock of the answers."""
    key = make_key(client.folder / "locked", passphrase=passphrase)
    client.sshd.authorized.write_text(f"{public(key)}\n")
    client.know("")
    client.configure(
        f"Host *\n  IdentityFile {key}\n  IdentitiesOnly yes\n  ForwardAgent yes", identity=False
    )
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        if "passphrase" not in question:
            return "yes"
        return passphrase if sum("passphrase" in q for q in asked) > 1 else "a slip"

    assert reach("a", "b", ask=ask, how=reaching(max_connections=1)) is BinaryChannel
    host_key, slip, again = asked
    assert "SHA256:" in host_key
    assert slip == again == f"Enter passphrase for key '{key}': "


def jumps(client: Client) -> None:
    """`deep` is reached over `gate` and then `inner`; all are the same sshd, which counts connections."""
    client.configure("Host deep\n  ProxyJump gate,inner", "Host near\n  ProxyJump gate")


def test_jump_hosts_are_used_as_with_ssh(client: Client) -> None:
    jumps(client)
    assert both(client, "near") is ParamikoChannel
    assert both(client, "deep") is ParamikoChannel


def test_hosts_behind_one_jump_host_share_its_connection(client: Client) -> None:
    client.configure("Host n*\n  ProxyJump gate")
    reach(*(f"n{i}" for i in range(4)))
    assert client.sshd.count("Accepted publickey") == 5


def test_a_jump_host_that_is_refused_is_named(client: Client) -> None:
    other = make_key(client.folder / "other")
    client.configure(f"Host near\n  ProxyJump gate\nHost gate\n  IdentityFile {other}", identity=False)
    error = neither(client, "near")
    assert (error.host, error.step) == ("near", "authenticate")


PUMP = f"""#!{sys.executable}
import os, socket, sys, threading

def pump(source, target):
    while data := os.read(source, 65536):
        os.write(target, data)

with socket.create_connection(sys.argv[1:]) as s:
    threading.Thread(target=pump, args=(s.fileno(), 1), daemon=True).start()
    pump(0, s.fileno())
"""


def test_a_proxy_command_of_the_shell(client: Client) -> None:
    (client.folder / "pump").write_text(PUMP)
    (client.folder / "pump").chmod(0o755)
    client.configure(f"Host node\n  ProxyCommand {client.folder}/pump %h %p | cat")
    assert both(client) is ParamikoChannel


def test_a_proxy_command_that_fails_is_quoted(client: Client) -> None:
    client.configure("Host node\n  ProxyCommand echo no way >&2; sleep 0.1; exit 1\n  ConnectTimeout 1")
    assert "no way" in str(neither(client))


def test_a_certificate_of_the_host_goes_over_ssh(client: Client, tmp_path: Path) -> None:
    client.know(f"@cert-authority * {public(tmp_path / 'authority')}")
    assert neither(client).step == "host key"  # the authority never signed this key
    client.know(
        f"@cert-authority * {public(tmp_path / 'authority')}",
        f"{client.sshd.address} {public(client.sshd.host_key)}",
    )
    assert both(client) is BinaryChannel


def test_a_connection_that_stands_is_the_way_in(client: Client) -> None:
    folder = tempfile.mkdtemp()  # short: a socket's path
    client.configure(f"Host node\n  ControlPath {folder}/%n")
    with subprocess.Popen(["ssh", "-M", "-N", "node"], stdin=subprocess.DEVNULL) as master:
        try:
            poll_until(lambda: Path(folder, "node").exists(), describe="no master")
            client.sshd.authorized.write_text("")
            assert both(client) is BinaryChannel
        finally:
            master.terminate()
    Path(folder).rmdir()


def test_a_local_command_is_run(client: Client) -> None:
    made = client.folder / "made"
    client.configure(f"Host node\n  PermitLocalCommand yes\n  LocalCommand echo %n >{made}")
    assert client.ssh("node").returncode == 0 and made.read_text() == "node\n"
    made.unlink()
    assert reach() is BinaryChannel
    assert made.read_text() == "node\n"


def test_ciphers_that_paramiko_lacks_go_over_ssh(client: Client) -> None:
    client.configure("Host node\n  Ciphers chacha20-poly1305@openssh.com")
    assert both(client) is BinaryChannel


@pytest.mark.parametrize(
    ("allowed", "taken"),
    [
        ("", "aes128-gcm@openssh.com"),
        ("Ciphers aes128-ctr,aes256-gcm@openssh.com", "aes128-ctr"),
    ],
)
def test_first_cipher_is_used_and_else_the_fastest(client: Client, allowed: str, taken: str) -> None:
    client.configure(f"Host node\n  {allowed}")
    with contextlib.closing(Fleet(reaching(), ask=None)) as fleet:
        (channel,) = fleet.open([Host("node")], KEEPER)
        assert isinstance(channel, ParamikoChannel)
        assert channel._session.transport.local_cipher == taken
        greets(channel)


def test_variables_are_sent_as_configured(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIVEN", "it's $HOME")
    client.configure("Host node\n  SendEnv GIV*")
    with contextlib.closing(Fleet(reaching(), ask=None)) as fleet:
        (channel,) = fleet.open([Host("node")], KEEPER)
        for pid in client.sshd.grandchildren():  # keeper and agent
            assert b"GIVEN=it's $HOME" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        greets(channel)


# --- without OpenSSH here ---


def test_without_openssh_the_files_are_read_as_fabric_does(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps(client)
    without_openssh(client, monkeypatch)
    assert reach("deep") is ParamikoChannel


@pytest.mark.parametrize("line", ["PKCS11Provider /usr/lib/p11.so", "Include more"])
def test_without_openssh_a_directive_that_needs_it_is_named_with_its_line(
    client: Client, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    client.configure(f"Host node\n  # a comment\n  {line}")
    without_openssh(client, monkeypatch)
    with pytest.raises(HostError) as caught:
        reach()
    assert f".ssh/config:3: {line}".lower() in str(caught.value).lower()
    assert "install openssh-client" in str(caught.value)
