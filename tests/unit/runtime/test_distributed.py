"""Names of `distributed`: Fleet's modules are found there."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime import PUBLIC
from pslaunch.runtime.paddle2 import fleet

PAGE = (Path(__file__).parents[3] / "docs/fleet.md").read_text()
STATEMENTS = re.findall(r"\| `(import pslaunch\.[^`]+)` \|$", PAGE, re.MULTILINE)
assert len(STATEMENTS) == 5


@pytest.mark.parametrize("name", ["fleet", *(name for name in PUBLIC if name.startswith("fleet."))])
def test_modules_of_fleet_are_the_same_in_their_place_of_paddlepaddle(name: str) -> None:
    found = importlib.import_module(f"pslaunch.runtime.distributed.{name}")
    assert found is importlib.import_module(f"pslaunch.runtime.{name}")
    assert found is importlib.import_module(f"pslaunch.runtime.{PUBLIC[name]}")
    assert paddle.distributed.fleet is fleet
    assert isinstance(fleet.util, fleet.UtilBase)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_import_statements_of_the_page_work_in_a_new_process(statement: str) -> None:
    subprocess.run([sys.executable, "-c", statement], check=True)


@pytest.mark.parametrize("name", ["launch", "fleet.launch", "fleet.base.launch"])
def test_missing_modules_are_refused_in_pythons_words(name: str) -> None:
    whole = f"pslaunch.runtime.distributed.{name}"
    with pytest.raises(ModuleNotFoundError, match=rf"^No module named '{re.escape(whole)}'$"):
        importlib.import_module(whole)
