"""Settings from the output of `ssh -G`; pure, and with the installed ssh."""

from __future__ import annotations

import base64
import os
import pwd
import socket
import struct
from pathlib import Path

import pytest

from pslaunch.backends.fabric.ssh import keys
from pslaunch.backends.fabric.ssh.settings import (
    Config,
    HopSettings,
    Route,
    make_settings,
    parse_ssh_output,
)
from pslaunch.errors import HostError, SpecError
from pslaunch.options.hosts import Host
from support.process import make_script
from support.sshd import needs_openssh

SAID = """host node
user ann
hostname 10.0.0.7
port 2200
identitiesonly yes
stricthostkeychecking true
identityfile ~/.ssh/%h_%r
identityfile /k/two
certificatefile ${KEYS}/c-cert.pub
userknownhostsfile /home/ann/.ssh/known /with a space/known
globalknownhostsfile none
hashknownhosts yes
serveraliveinterval 7
connecttimeout 5
compression yes
proxyjump bob@gate:2222,inner
setenv A=b c
setenv D=e=f
sendenv LC_*
forwardagent no
gssapiauthentication yes
securitykeyprovider internal
controlpath none
ciphers aes256-ctr,aes128-ctr
"""


def made(text: str = SAID, **environ: str) -> HopSettings:
    return make_settings("node", parse_ssh_output(text), home="/home/ann", local_user="ann", environ=environ)


def test_output_of_ssh_becomes_settings() -> None:
    settings = made(KEYS="/keys", LC_ALL="C", HOME="/x")
    assert (settings.hostname, settings.user, settings.port) == ("10.0.0.7", "ann", 2200)
    assert settings.address == "[10.0.0.7]:2200"
    assert settings.identity_files == ("/home/ann/.ssh/10.0.0.7_ann", "/k/two")
    assert settings.certificate_files == ("/keys/c-cert.pub",)
    assert settings.user_known_hosts == ("/home/ann/.ssh/known", "/with a space/known")
    assert settings.global_known_hosts == ()
    assert (settings.strict, settings.identities_only, settings.hash_known_hosts) == ("yes", True, True)
    assert (settings.connect_timeout_s, settings.keepalive_s, settings.compression) == (5.0, 7, True)
    assert [jump.text for jump in settings.jumps] == ["bob@gate:2222", "inner"]
    assert settings.env == (("LC_ALL", "C"), ("A", "b c"), ("D", "e=f"))
    assert settings.algorithms[0] == ("aes256-ctr", "aes128-ctr")
    assert settings.only_ssh == ""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("pkcs11provider /usr/lib/p11.so", True),
        ("knownhostscommand /bin/echo", True),
        ("revokedhostkeys /etc/revoked", True),
        ("hostbasedauthentication yes", True),
        ("identityagent /run/agent", True),
        ("forwardagent yes", True),
        ("preferredauthentications gssapi-with-mic", True),
        ("nohostauthenticationforlocalhost yes", True),
        ("localcommand touch %h\npermitlocalcommand yes", True),
        ("localcommand touch %h\npermitlocalcommand no", False),
        ("localcommand touch %h", False),
        ("localcommand none\npermitlocalcommand yes", False),
    ],
)
def test_directives_that_paramiko_can_not_honour_are_named(text: str, named: bool) -> None:
    assert made(f"{text}\n").only_ssh == (text.partition("\n")[0] if named else "")


def test_an_open_shared_connection_is_used(tmp_path: Path) -> None:
    path = tmp_path / "master"
    assert made(f"controlpath {path}\n").only_ssh == ""
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))
        assert made(f"controlpath {path}\n").only_ssh == f"controlpath {path}"


def test_an_alias_of_the_key_has_no_port() -> None:
    assert made("hostname h\nport 2200\nhostkeyalias a\n").address == "a"
    assert made("hostname h\n").address == "h"


@pytest.mark.parametrize(
    ("jump", "parts"),
    [
        ("gate", ("gate", None, None)),
        ("bob@gate:22", ("gate", "bob", 22)),
        ("bob@[fe80::1]:2200", ("fe80::1", "bob", 2200)),
        ("ssh://bob@gate:2200", ("gate", "bob", 2200)),
        ("a@b@gate", ("gate", "a@b", None)),
        ("aws+prod", ("aws+prod", None, None)),  # a name that --hosts refuses
    ],
)
def test_jump_is_split_into_host_user_and_port(jump: str, parts: tuple[str, str | None, int | None]) -> None:
    assert [one[:3] for one in made(f"proxyjump {jump}\n").jumps] == [parts]


def field(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def test_a_security_key_goes_over_ssh(tmp_path: Path) -> None:
    blob = field(b"sk-ssh-ed25519@openssh.com") + field(b"k" * 32) + field(b"ssh:")
    (tmp_path / "id.pub").write_text(f"sk-ssh-ed25519@openssh.com {base64.b64encode(blob).decode()} me\n")
    assert "a security key" in keys.find_security_key([str(tmp_path / "none"), str(tmp_path / "id")])
    body = base64.b64encode(b"openssh-key-v1\0" + field(b"none") * 2 + field(b"") + b"\0\0\0\1" + field(blob))
    text = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{body.decode()}\n-----END OPENSSH PRIVATE KEY-----\n"
    (tmp_path / "alone").write_text(text)
    assert keys.read_public_blob(str(tmp_path / "alone")) == blob
    assert not keys.is_encrypted(str(tmp_path / "alone"))


@pytest.mark.parametrize("data", [b"", b"x", b"-----BEGIN", b"-----BEGIN X\n!!!\n", b"ssh-ed25519 %%%"])
def test_nonsense_is_no_key(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "id").write_bytes(data)
    assert keys.read_public_blob(str(tmp_path / "id")) is None


# --- with the installed ssh ---


def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Config:
    (tmp_path / "config").write_text(text)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = Config()
    assert found.ssh is not None
    make_script(tmp_path / "ssh", f'exec {found.ssh} -F {tmp_path}/config "$@"')
    return Config()


def names(route: Route) -> list[tuple[str, str, int]]:
    return [(hop.hostname, hop.user, hop.port) for hop in route]


@needs_openssh
def test_a_chain_of_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first hop's own ProxyJump counts, as with ssh -J."""
    text = """
Host deep
  ProxyJump bob@gate:2222,inner
Host gate
  HostName 10.0.0.1
  ProxyJump outer
Host inner
  User ian
  ProxyJump nowhere
Match host deep user ann
  Port 2300
Host *
  User all
"""
    route = config(tmp_path, monkeypatch, text).find_route(Host("deep", "ann"))
    assert names(route) == [
        ("outer", "all", 22),
        ("10.0.0.1", "bob", 2222),
        ("inner", "ian", 22),
        ("deep", "ann", 2300),
    ]


@needs_openssh
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Host *\n  ProxyJump gate\n", "gate: resolve failed: ssh -G: jumphost loop via gate"),
        ("Host node\n  ProxyJump b\nHost b\n  ProxyJump node\n", "circular"),
        ("Host node\n  Portt 7\n", r"config: line 2: Bad configuration option: portt"),
    ],
)
def test_a_wrong_configuration_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    with pytest.raises(HostError, match=told) as caught:
        config(tmp_path, monkeypatch, text).find_route(Host("node"))
    assert caught.value.step == "resolve"


def test_invalid_values_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # no ssh
    (tmp_path / ".ssh").mkdir()
    for line in ("connecttimeout 1m30s", "port many"):
        (tmp_path / ".ssh/config").write_text(f"Host node\n  {line}\n")
        with pytest.raises(HostError, match=line):
            Config().find_route(Host("node"))


def test_the_error_for_a_user_without_a_name_has_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    with pytest.raises(SpecError, match="variable USER"):
        Config()
