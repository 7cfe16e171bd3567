"""Trust in host keys, with files in the form of ssh-keygen."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pslaunch.backends.fabric.ssh.hostkeys import (
    HostKeyChecker,
    find_entries,
    judge,
    make_fingerprint,
    sort_key_types,
)
from pslaunch.backends.fabric.ssh.settings import HopSettings
from pslaunch.errors import HostError
from support.sshd import needs_openssh

KEY, OTHER = b"the key", b"another"
TYPE = "ssh-ed25519"


def text(key: bytes = KEY, kind: str = TYPE) -> str:
    return f"{kind} {base64.b64encode(key).decode()}"


@pytest.fixture
def known(tmp_path: Path) -> Path:
    return tmp_path / "ssh" / "known_hosts"


@pytest.fixture
def host(known: Path) -> Callable[..., HopSettings]:
    def make(**more: object) -> HopSettings:
        given = {"name": "n", "hostname": "node", "user": "u", "port": 22, "user_known_hosts": (str(known),)}
        return HopSettings(**{**given, **more})  # type: ignore[arg-type] # of the tests' own words

    return make


def write(known: Path, *lines: str) -> None:
    known.parent.mkdir(exist_ok=True)
    known.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("names", "port", "verdict"),
    [
        ("node", 22, "known"),
        ("NODE,10.0.0.1", 22, "known"),
        ("[node]:2200", 2200, "known"),
        ("node", 2200, "known"),  # as ssh does: a line without port vouches for any
        ("[node]:22", 22, "unknown"),
        ("n?d*", 22, "known"),
        ("[n*]:2200", 2200, "known"),
        ("n*,!node", 22, "unknown"),
        ("other", 22, "unknown"),
    ],
)
def test_verdict_follows_the_names_of_known_hosts(
    known: Path, host: Callable[..., HopSettings], names: str, port: int, verdict: str
) -> None:
    write(known, "# comment", "", "broken", f"{names} {text()} a comment")
    settings = host(port=port)
    assert judge(find_entries(settings), settings.address, TYPE, KEY)[0] == verdict


def refusal(settings: HopSettings, keeper: HostKeyChecker, key: bytes = KEY) -> str:
    with pytest.raises(HostError) as caught:
        keeper.check(settings, TYPE, key)
    assert caught.value.step == "host key"
    return str(caught.value)


def test_a_key_of_another_kind_is_a_changed_one(known: Path, host: Callable[..., HopSettings]) -> None:
    write(known, "# first", f"node {text(OTHER, 'ssh-rsa')}")
    said = refusal(host(strict="accept-new"), HostKeyChecker(lambda _q: "yes"))
    assert f"{known}:2 has another" in said and known.read_text().count("\n") == 2


def test_a_line_without_a_port_contradicts_no_key(known: Path, host: Callable[..., HopSettings]) -> None:
    write(known, f"node {text(OTHER)}")
    HostKeyChecker(None).check(host(port=2200, strict="accept-new"), TYPE, KEY)


def test_a_revoked_key_is_refused_even_if_known_elsewhere(
    known: Path, host: Callable[..., HopSettings]
) -> None:
    write(known, f"node {text()}", f"@revoked * {text()}")
    assert f"{known}:2 revokes" in refusal(host(strict="no"), HostKeyChecker(None))


@needs_openssh
@pytest.mark.parametrize("hashed", [False, True])
def test_accept_new_writes_to_the_first_file(
    known: Path, host: Callable[..., HopSettings], hashed: bool
) -> None:
    settings = host(port=2200, hash_known_hosts=hashed, strict="accept-new")
    HostKeyChecker(None).check(settings, TYPE, KEY)
    assert known.read_text().startswith("|1|" if hashed else "[node]:2200 ssh-ed25519 ")
    found = subprocess.run(
        ["ssh-keygen", "-F", "[node]:2200", "-f", str(known)], capture_output=True, text=True, check=True
    )
    assert "found: line 1" in found.stdout
    refusal(settings, HostKeyChecker(None), OTHER)


def test_a_last_line_without_its_end_is_not_continued(known: Path, host: Callable[..., HopSettings]) -> None:
    write(known)
    known.write_text(f"other {text()}")
    HostKeyChecker(None).check(host(strict="accept-new"), TYPE, KEY)
    assert known.read_text() == f"other {text()}\nnode {text()}\n"


@pytest.mark.parametrize(
    ("strict", "answer", "accepted"),
    [
        ("ask", None, False),
        ("ask", "yes", True),
        ("ask", "no", False),
        ("yes", "yes", False),
        ("accept-new", None, True),
        ("no", None, True),
    ],
)
def test_unknown_key_follows_the_policy(
    host: Callable[..., HopSettings], strict: str, answer: str | None, accepted: bool
) -> None:
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return str(answer)

    keeper = HostKeyChecker(ask if answer else None)
    if accepted:
        keeper.check(host(strict=strict), TYPE, KEY)
    else:
        assert make_fingerprint(KEY) in refusal(host(strict=strict), keeper)
    assert bool(asked) == (strict == "ask" and answer is not None)
    assert all(make_fingerprint(KEY) in question for question in asked)


def test_strict_no_accepts_a_changed_key_as_ssh_does(known: Path, host: Callable[..., HopSettings]) -> None:
    write(known, f"node {text(OTHER)}")
    HostKeyChecker(None).check(host(strict="no"), TYPE, KEY)


@needs_openssh
def test_the_fingerprint_is_that_of_ssh_keygen(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "id")], check=True)
    argv = ["ssh-keygen", "-l", "-f", str(tmp_path / "id.pub")]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    key = base64.b64decode((tmp_path / "id.pub").read_text().split()[1])
    assert make_fingerprint(key) == said.split()[1]


def test_known_types_are_asked_for_first(known: Path, host: Callable[..., HopSettings]) -> None:
    write(known, f"node {text(kind='ssh-rsa')}")
    offered = ["ssh-ed25519", "rsa-sha2-512", "ecdsa-sha2-nistp256"]
    assert sort_key_types(find_entries(host()), offered) == [
        "rsa-sha2-512",
        "ssh-ed25519",
        "ecdsa-sha2-nistp256",
    ]
