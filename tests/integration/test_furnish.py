"""Nodes are made ready: an environment with our wheel, used again while nothing changes; own commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pslaunch.node import codes
from pslaunch.node.agent.install import OWN_WHEEL, WHEELHOUSE
from pslaunch.node.listing import CHOSEN_PYTHON
from pslaunch.node.logs import ADVICE_MARK
from pslaunch.ship.wheel import keep_wheel, make_wheel_name


def made_wheel(cache: Path) -> Path:
    return keep_wheel(None, {"XDG_CACHE_HOME": str(cache)}) / make_wheel_name()


class Node:
    """A workspace on a node, as dispatch leaves it."""

    def __init__(self, folder: Path) -> None:
        self.workspace, self.state = folder / "ws", folder / "ws/.pslaunch"
        for path in (self.state, self.workspace / OWN_WHEEL, self.workspace / WHEELHOUSE):
            path.mkdir(parents=True)
        self.wheel = self.workspace / OWN_WHEEL / make_wheel_name()
        self.wheel.write_bytes(made_wheel(folder / "cache").read_bytes())

    def furnish(self, *, install: bool = True, setup: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        wanted = {"wheel": self.wheel.name, "pins": [], "offline": True} if install else None
        order = {
            "workspace": str(self.workspace),
            "state_dir": str(self.state),
            "install": wanted,
            "setup": setup,
        }
        argv = [sys.executable, "-P", "-m", "pslaunch.node", "furnish", json.dumps(order)]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=100)

    def python(self) -> str:
        return (self.state / CHOSEN_PYTHON).read_text()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_environment_has_this_pslaunch_and_is_used_again(node: Node) -> None:
    done = node.furnish(setup=["command -v python", "echo from > setup"])
    assert done.returncode == codes.OK, done.stdout + done.stderr
    first = node.python()
    assert first in done.stdout and (node.workspace / "setup").read_text() == "from\n"
    probe = "import pslaunch.runtime._core as c, pslaunch; print(pslaunch.__file__, sorted(c.get_features()))"
    found = subprocess.run([first, "-P", "-c", probe], capture_output=True, text=True, check=True).stdout
    assert found.startswith(str(node.state)) and "avx2" in found

    again = node.furnish()
    assert "making" not in again.stdout and node.python() == first

    (node.workspace / "requirements.txt").write_text("# nothing yet\n")
    other = node.furnish()
    assert "making" in other.stdout and node.python() != first and not Path(first).exists()


def test_unavailable_packages_are_named(node: Node) -> None:
    (node.workspace / "requirements.txt").write_text("no-such-thing==1\n")
    done = node.furnish()
    assert done.returncode == codes.PREFLIGHT
    assert "no-such-thing" in done.stderr
    failed, advice = done.stdout.splitlines()[-2:]
    assert (
        failed.endswith("failed (1)") and advice == f"{ADVICE_MARK}put what is missing into the --wheelhouse"
    )


def test_the_first_command_that_fails_ends_it(node: Node) -> None:
    done = node.furnish(install=False, setup=["exit 7", "echo never"])
    assert done.returncode == 7 and "never" not in done.stdout
    assert done.stdout.splitlines()[-1] == "--setup 'exit 7' ended with 7"
    assert node.furnish(install=False, setup=["kill -9 $$"]).returncode == codes.SIGNAL_BASE + 9
    assert node.furnish(install=False).returncode == codes.OK and node.python() == ""


def test_wheels_are_kept_for_a_month(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    given = tmp_path / "mine-1-py3-none-any.whl"
    given.write_bytes(b"a wheel")
    ours, other = keep_wheel(None, environ), keep_wheel(given, environ)
    assert [path.name for path in ours.iterdir()] == [make_wheel_name()]
    assert (other / given.name).read_bytes() == b"a wheel"
    first = (ours / make_wheel_name()).stat()
    os.utime(other, (1, 1))
    assert keep_wheel(None, environ) == ours and (ours / make_wheel_name()).stat().st_ino == first.st_ino
    assert not other.exists()
