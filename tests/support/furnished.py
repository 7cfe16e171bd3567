"""Hosts with what the bundled runtime imports: `--install` makes it once, and each test finds it there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import Hosts

# Of a workspace on a host: what makes environments, and they themselves.
KEPT = (".pslaunch/venv-*", ".pslaunch-wheel", ".pslaunch-wheelhouse")


def options(wheelhouse: Path) -> tuple[str, ...]:
    """Of a job whose hosts are to have the same as this machine."""
    return ("--install", f"--wheelhouse={wheelhouse}")


def need_same_python() -> None:
    """Skip where the hosts, which have the system's Python, can't take the wheels that are here."""
    version = "import sys; print(*sys.version_info[:2])"
    there = subprocess.run(["/usr/bin/python3", "-c", version], capture_output=True, text=True, check=True)
    if there.stdout.split() != [str(n) for n in sys.version_info[:2]]:
        pytest.skip(f"the hosts have Python {there.stdout.strip()}, for which there is no numpy here")


class Environments:
    """Keeps environments of a set of hosts, whose ROOT_DIR is emptied after each test."""

    def __init__(self, hosts: Hosts) -> None:
        self._folders = [(host.root, host.folder / "environments") for host in hosts]

    def put_back(self) -> None:
        """Move the environments back to where they were: an environment knows its own path."""
        for root, kept in self._folders:
            _move(kept, root)

    def keep(self) -> None:
        for root, kept in self._folders:
            _move(root, kept)


def _move(source: Path, target: Path) -> None:
    """Move the kept paths of every workspace."""
    for path in _found(source):
        new = target / path.relative_to(source)
        new.parent.mkdir(parents=True, exist_ok=True)
        path.rename(new)


def _found(folder: Path) -> Iterator[Path]:
    for pattern in KEPT:
        yield from list(folder.glob(f"*/{pattern}"))
