"""Later shells in tests: commands for jobs that were started before, on test hosts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.jobs import PSLAUNCH
from testbed import Hosts


class Shell:
    """A later shell: its own memory of jobs, and maybe a conf.py."""

    def __init__(self, hosts: Hosts, state: Path, *options: str) -> None:
        self._hosts, self._options = hosts, options
        self._env = {**os.environ, "XDG_STATE_HOME": str(state)}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = self._hosts.as_user([*PSLAUNCH, words[0], *self._options, *words[1:]])
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, env=self._env, check=False)

    def ok(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def list_files(folder: Path) -> list[str]:
    """Return the files that a shell has fetched to a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
