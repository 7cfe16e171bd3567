"""The boot in common login shells: finds a Python, discards noise, starts the zipapp."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pslaunch.backends.fabric.ssh.boot import COMMAND, NoMarkerError, make_boot, wait_for_marker
from support.process import make_script

SHELLS = ("sh", "dash", "bash", "tcsh", "fish")


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    if not shutil.which(request.param):
        pytest.skip(f"no {request.param} here; apt-get install {request.param}")
    return str(shutil.which(request.param))


class Login:
    """A login shell that runs the command, as sshd starts it."""

    def __init__(self, shell: str, payload: bytes, env: dict[str, str] | None = None) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [shell, "-c", COMMAND], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, env=env, cwd="/"
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.process.stdin.write(payload)

    def read(self, n: int) -> bytes:
        assert self.process.stdout
        return self.process.stdout.read(n) or b""

    def end(self) -> tuple[int, str]:
        """Close its line; return its exit code and stderr."""
        _, said = self.process.communicate(timeout=20)
        return self.process.returncode, said.decode()


@pytest.fixture
def pythons(tmp_path: Path) -> Path:
    """Return a folder for PATH with sh; tests add to it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


OLD_PYTHON = "echo 3.6.8\nexit 1"


def test_every_shell_starts_the_keeper(shell: str) -> None:
    boot = make_boot(["keeper", "5", "1"], sys.executable)
    login = Login(shell, boot.payload)
    assert wait_for_marker(login.read, boot.marker) == b""
    assert b'"type":"hello"' in login.read(4096)
    code, said = login.end()
    assert "the head is gone" in said and code == 75


def test_words_arrive_byte_for_byte(shell: str) -> None:
    words = ["a b", "it's", '"', "$HOME", "`id`", "!x", "\\", "é\n\t", "", "*"]
    boot = make_boot(words, sys.executable)
    login = Login(shell, boot.payload)
    wait_for_marker(login.read, boot.marker)
    assert login.end() == (1, f"unknown: {words}\n")


@pytest.mark.parametrize(
    ("link", "given"), [("python3.12", None), ("my python", "~/my python")], ids=["searched", "in its home"]
)
def test_a_python_is_found_and_too_old_ones_are_passed_over(
    pythons: Path, link: str, given: str | None
) -> None:
    make_script(pythons / "python3", OLD_PYTHON)
    (pythons / link).symlink_to(sys.executable)
    boot = make_boot(["x"], given)
    login = Login("/bin/sh", boot.payload, {"PATH": str(pythons), "HOME": str(pythons)})
    wait_for_marker(login.read, boot.marker)
    assert login.end()[0] == 1


@pytest.mark.parametrize(("name", "found"), [("old python", "{} (3.6.8)"), ("gone", "none")])
def test_the_error_without_a_python_lists_the_old_ones(pythons: Path, name: str, found: str) -> None:
    make_script(pythons / "old python", OLD_PYTHON)
    given = str(pythons / name)
    boot = make_boot(["x"], given)
    login = Login("/bin/sh", boot.payload)
    with pytest.raises(NoMarkerError):
        wait_for_marker(login.read, boot.marker)
    why = f"no Python 3.9 or later on {os.uname().nodename}: {found.format(given)} found; looked for {given}"
    assert login.end() == (127, f"pslaunch boot: {why}\n")


def test_a_damaged_zipapp_is_not_run() -> None:
    boot = make_boot(["x"], sys.executable)
    login = Login("/bin/sh", boot.payload[:-1000] + b"\0" * 1000)
    with pytest.raises(NoMarkerError):
        wait_for_marker(login.read, boot.marker)
    assert "the received data differ from what was sent" in login.end()[1]


def test_an_echo_is_not_the_marker() -> None:
    boot = make_boot(["x"], None)
    with pytest.raises(NoMarkerError):
        wait_for_marker(io.BytesIO(boot.payload).read, boot.marker)


@pytest.mark.parametrize("noise", [b"", b"Welcome!\n", b"0123" * 8, b"x" * 10_000])
def test_noise_before_the_marker_is_discarded_and_nothing_after_it_is_read(noise: bytes) -> None:
    marker = b"0123456789abcdef" * 2
    stream = io.BytesIO(noise + marker[:5] + marker + b"rest")
    assert wait_for_marker(stream.read, marker) == noise + marker[:5]
    assert stream.read() == b"rest"


def test_noise_has_a_bound() -> None:
    with pytest.raises(NoMarkerError) as caught:
        wait_for_marker(lambda n: b"y" * n, b"m" * 32)
    assert "too much output" in str(caught.value)
    assert caught.value.noise == "y" * 500


def test_no_program_inherits_the_zipapp() -> None:
    boot = make_boot(["keeper", "5", "1"], sys.executable)
    login = Login("/bin/sh", boot.payload)
    wait_for_marker(login.read, boot.marker)
    assert b'"type":"hello"' in login.read(4096)  # by the agent, which was forked, and has loaded from it
    proc = Path(f"/proc/{login.process.pid}")
    (app,) = [fd for fd in (proc / "fd").iterdir() if "memfd:pslaunch" in str(fd.readlink())]
    (flags,) = re.findall(r"flags:\s+(\d+)", (proc / "fdinfo" / app.name).read_text())
    assert int(flags, 8) & os.O_CLOEXEC
    login.end()
