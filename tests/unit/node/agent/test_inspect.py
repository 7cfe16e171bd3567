"""Facts of the programs' Python, even if another program was named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node.agent.inspect import inspect_python

ORDER: Any = {"modules": ["json", "no_such_thing"], "packages": [], "pins": [], "env": {}}


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_wrapper_may_say_something_first(tmp_path: Path) -> None:
    python = script(tmp_path / "python", f'echo activating\nexec "{sys.executable}" "$@"')
    facts = inspect_python(python, ORDER, str(tmp_path))
    assert facts["error"] == "" and facts["missing"] == ["no_such_thing"]


@pytest.mark.parametrize("text", ["echo '[1]'", "echo '{'", "exit 0", "echo 1 2"])
def test_other_programs_than_python_are_reported(tmp_path: Path, text: str) -> None:
    facts = inspect_python(script(tmp_path / "python", text), ORDER, str(tmp_path))
    assert facts["error"].endswith("it is not Python 3")
