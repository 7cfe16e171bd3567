"""Facts of the programs' Python, even if another program was named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node.agent.inspect import inspect_python, list_cards
from support.process import make_script

ORDER: Any = {"modules": ["json", "no_such_thing"], "packages": [], "pins": [], "env": {}}


def test_a_wrapper_may_say_something_first(tmp_path: Path) -> None:
    python = make_script(tmp_path / "python", f'echo activating\nexec "{sys.executable}" "$@"')
    facts = inspect_python(python, ORDER, str(tmp_path))
    assert facts["error"] == "" and facts["missing"] == ["no_such_thing"]


@pytest.mark.parametrize("text", ["echo '[1]'", "echo '{'", "exit 0", "echo 1 2"])
def test_other_programs_than_python_are_reported(tmp_path: Path, text: str) -> None:
    facts = inspect_python(make_script(tmp_path / "python", text), ORDER, str(tmp_path))
    assert facts["error"].endswith("it is not Python 3")


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("echo '550.54, NVIDIA H100 80GB HBM3, 81559'", [("550.54", "NVIDIA H100 80GB HBM3", 81559 << 20)]),
        ("echo 'NVIDIA-SMI has failed, for it could not reach the driver'; exit 9", []),
        ("echo '550.54, Orin, [N/A]'", []),
    ],
)
def test_cards_are_those_of_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, cards: list[tuple[str, str, int]]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list_cards() == [], "there is no such command"
    make_script(tmp_path / "nvidia-smi", text)
    assert list_cards() == cards
