"""Completion of words in shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pslaunch.cli import app
from pslaunch.node.later.record import get_folder

PSLAUNCH = '#!/bin/sh\nexec "{}" -P -m pslaunch "$@"\n'


@pytest.mark.parametrize(
    ("words", "incomplete", "offered"),
    [
        ("", "lo", "local logs"),
        ("", "--", "--version --install-completion --show-completion --help"),
        ("k8s", "", "apply render --help"),
        ("check", "fab", "fabric"),
        ("local", "--head", "--head"),
        ("local --head", "", "launcher node"),
        ("local --head =", "la", "launcher"),  # as bash parts it
        ("local --head", "=", "launcher node"),
        ("local", "--head=la", "--head=launcher"),
        ("local --nodes", "", ""),
        ("local --detach", "--dr", "--dry_run"),
        ("mpi", "-n", "-n -np"),
        ("local", "tr", ""),
        ("local train.py", "--h", ""),
        ("logs", "my", "my.job-1"),
        ("logs my.job-1", "--fo", "--follow"),
        ("logs my.job-1", "", ""),
        ("nothing", "", ""),
    ],
)
def test_the_words_that_may_follow_are_offered(
    words: str, incomplete: str, offered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = Path(get_folder())
    folder.mkdir(parents=True)
    for name in ("my.job-1.json", "my.job-1.at.json", "my.job-1.secret", "other-1.at.json"):
        (folder / name).touch()
    with app.make_context("pslaunch", words.split(), resilient_parsing=True) as ctx:
        assert sorted(word.value for word in app.shell_complete(ctx, incomplete)) == sorted(offered.split())


BASH = """
eval "$(pslaunch --show-completion bash)"
COMP_WORDS=(pslaunch local --head '') COMP_CWORD=3
_pslaunch_completion pslaunch
echo "${COMPREPLY[@]}"
"""
FISH = "pslaunch --show-completion fish | source; complete -C 'pslaunch local --head ' | string join ' '"


@pytest.mark.parametrize(("shell", "script"), [("bash", BASH), ("fish", FISH)])
def test_a_shell_completes_with_our_script(shell: str, script: str, tmp_path: Path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here; apt-get install {shell}")
    program = tmp_path / "pslaunch"
    program.write_text(PSLAUNCH.format(sys.executable))
    program.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    argv = [shell, "-c", script]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "launcher node\n", done.stderr
