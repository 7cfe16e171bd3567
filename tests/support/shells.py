"""Later shells in tests: commands for jobs that were started before, on test hosts."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.jobs import run_pslaunch
from testbed import Hosts


class Shell:
    """A later shell: its own memory of jobs, and maybe a conf.py."""

    def __init__(self, hosts: Hosts, state: Path, *options: str) -> None:
        self._hosts, self._state, self._options = hosts, state, options

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        own, env = (words[0], *self._options, *words[1:]), {"XDG_STATE_HOME": str(self._state)}
        return run_pslaunch(*own, hosts=self._hosts, env=env, timeout_s=120)

    def ok(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def list_files(folder: Path) -> list[str]:
    """Return the files that a shell has fetched to a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
