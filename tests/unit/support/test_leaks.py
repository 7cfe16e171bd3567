"""The net under all other tests holds: what is left behind is found, a skip under --require fails."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support import leaks
from support.process import poll_until, started

DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("up", flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
"""


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave less time to processes on their way out."""
    monkeypatch.setattr(leaks, "GRACE_S", 0.1)


def test_a_process_that_hid_itself_is_found_and_killed(short_grace: None) -> None:
    before = leaks.Leftovers.now()
    with started([sys.executable, "-c", DAEMON], ready="up") as process:
        process.proc.wait(20)
        left = leaks.check(before)
        assert len(left) == 1 and "os.setsid()" in left[0]
    poll_until(lambda: not leaks.Leftovers.now().since(before), describe="the daemon is gone")


def test_a_zombie_is_found(short_grace: None) -> None:
    before = leaks.Leftovers.now()
    child = subprocess.Popen([sys.executable, "-c", ""])
    poll_until(lambda: leaks.zombies() - before.zombies, describe="the child has ended")
    assert leaks.check(before) == [f"process {child.pid} ended and was not waited for"]
    child.wait()


def test_a_listening_port_and_a_file_are_found(short_grace: None) -> None:
    before = leaks.Leftovers.now()
    folder = tempfile.mkdtemp(prefix="pslaunch-")
    with socket.create_server(("127.0.0.1", 0)):
        left = leaks.check(before)
    Path(folder).rmdir()
    assert [line.split()[0] for line in left] == ["listening", folder]


def test_clean_state_has_no_findings() -> None:
    assert leaks.check(leaks.Leftovers.now()) == []


def test_started_shows_the_output_of_a_process_that_died_early() -> None:
    with (
        pytest.raises(AssertionError, match="out of luck"),
        started([sys.executable, "-c", "print('out of luck')"], ready="listening"),
    ):
        pass


def test_exit_code_of_a_signal() -> None:
    with started([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) as process:
        assert process.wait() == 137


@pytest.mark.parametrize(("require", "code"), [("", 0), ("ssh", 0), ("slow", 1), ("all", 1)])
def test_require_turns_skips_into_failures(tmp_path: Path, require: str, code: int) -> None:
    done = run_skipping(tmp_path, f"--require={require}", "@pytest.mark.slow")
    assert done.returncode == code, done.stdout + done.stderr
    assert ("a skip is a failure" in done.stdout) == bool(code)


@pytest.mark.parametrize(("reason", "code"), [("no tool", 0), ("no rights", 1)])
def test_a_skip_for_the_allowed_reason_is_none(tmp_path: Path, reason: str, code: int) -> None:
    done = run_skipping(tmp_path, "--require=all", f"@pytest.mark.may_skip({reason!r})")
    assert done.returncode == code, done.stdout + done.stderr


def run_skipping(folder: Path, option: str, mark: str) -> subprocess.CompletedProcess[str]:
    """Run one test that skips itself for 'no tool'."""
    tests = folder / "test_it.py"
    tests.write_text(f"import pytest\n{mark}\ndef test_it() -> None:\n    pytest.skip('no tool: x')\n")
    root = Path(__file__).parents[3]
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", option]
    argv += ["--rootdir", str(root), "-c", str(root / "pyproject.toml"), "--confcutdir", str(root)]
    argv += ["-p", "conftest", str(tests)]
    env = {**os.environ, "PYTHONPATH": str(root / "tests")}
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
