"""Trust in host keys, with files in the form of ssh-keygen."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import paramiko
import pytest

from pslaunch.backends.fabric.ssh.hostkeys import check_key, find_entries, sort_key_types
from pslaunch.backends.fabric.ssh.settings import HopSettings
from pslaunch.errors import HostError
from support.sshd import needs_openssh

KEY, OTHER = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
ANOTHER_KIND = paramiko.RSAKey.generate(1024)


def text(key: paramiko.PKey = KEY) -> str:
    return f"{key.get_name()} {key.get_base64()}"


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
    known.write_text("\n".join(lines))


def refusal(settings: HopSettings, key: paramiko.PKey = KEY, ask: Callable[[str], str] | None = None) -> str:
    with pytest.raises(HostError) as caught:
        check_key(settings, key, ask)
    assert caught.value.step == "host key"
    return str(caught.value)


@pytest.mark.parametrize(
    ("names", "port", "is_known"),
    [
        ("node", 22, True),
        ("NODE,10.0.0.1", 22, True),
        ("[node]:2200", 2200, True),
        ("node", 2200, True),  # as ssh does: a line without port vouches for any
        ("[node]:22", 22, False),
        ("n?d*", 22, True),
        ("[n*]:2200", 2200, True),
        ("n*,!node", 22, False),
        ("other", 22, False),
        ("|1|c2FsdCBvZiB0d2VudHkgYnl0ZXM=|oNPB83IcMm2F0eF49qanLzxi0Lk=", 22, True),  # node, by ssh-keygen -H
        ("|1|c2FsdCBvZiB0d2VudHkgYnl0ZXM=|gRf+Mxy6TIsUx13QtrozjLE2NmQ=", 22, False),
        ("|1|no base64|x", 22, False),
        ("|1|", 22, False),
        ("|1|c2hvcnQ=|x", 22, False),
    ],
)
def test_names_of_known_hosts_are_matched_as_by_ssh(
    known: Path, host: Callable[..., HopSettings], names: str, port: int, is_known: bool
) -> None:
    write(known, "# comment", "", "broken", "node ssh-rsa a", f"{names} {text()} a comment\n")
    settings = host(port=port, strict="yes")
    if is_known:
        check_key(settings, KEY, None)
    else:
        assert "which is not known" in refusal(settings)


def test_a_key_of_another_kind_is_a_changed_one(known: Path, host: Callable[..., HopSettings]) -> None:
    write(known, "# first", f"node {text(ANOTHER_KIND)}", f"node {text(OTHER)}", "")
    said = refusal(host(strict="accept-new"), ask=lambda _q: "yes")
    assert f"{known}:3 has another" in said and known.read_text().count("\n") == 3
    assert f"{known}:2 has another" in refusal(host(), paramiko.RSAKey.generate(1024))


@pytest.mark.parametrize("how", [{"port": 2200, "strict": "accept-new"}, {"strict": "no"}])
def test_a_line_without_the_port_and_a_policy_contradict_no_key(
    known: Path, host: Callable[..., HopSettings], how: dict[str, object]
) -> None:
    write(known, f"node {text(OTHER)}\n")
    check_key(host(**how), KEY, None)


def test_a_revoked_key_is_refused_even_if_known_elsewhere(
    known: Path, host: Callable[..., HopSettings]
) -> None:
    write(known, f"node {text()}", f"@revoked * {text()}\n")
    assert f"{known}:2 revokes" in refusal(host(strict="no"))


@needs_openssh
@pytest.mark.parametrize("hashed", [False, True])
def test_accept_new_writes_to_the_first_file(
    known: Path, host: Callable[..., HopSettings], hashed: bool
) -> None:
    settings = host(port=2200, hash_known_hosts=hashed, strict="accept-new")
    check_key(settings, KEY, None)
    assert known.read_text().startswith("|1|" if hashed else "[node]:2200 ecdsa-sha2-")
    argv = ["ssh-keygen", "-F", "[node]:2200", "-f", str(known)]
    assert "found: line 1" in subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    refusal(settings, OTHER)


def test_a_last_line_without_its_end_is_not_continued(known: Path, host: Callable[..., HopSettings]) -> None:
    write(known, f"other {text()}")
    check_key(host(strict="accept-new"), KEY, None)
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

    if accepted:
        check_key(host(strict=strict), KEY, ask if answer else None)
    else:
        assert KEY.fingerprint in refusal(host(strict=strict), ask=ask if answer else None)
    assert bool(asked) == (strict == "ask" and answer is not None)
    assert all(KEY.fingerprint in question for question in asked)


def test_known_types_are_asked_for_first(known: Path, host: Callable[..., HopSettings]) -> None:
    write(known, f"node {text(ANOTHER_KIND)}\n")
    offered = ["ssh-ed25519", "rsa-sha2-512", "ecdsa-sha2-nistp256"]
    found = sort_key_types(find_entries(host()), offered)
    assert found == ["rsa-sha2-512", "ssh-ed25519", "ecdsa-sha2-nistp256"]
