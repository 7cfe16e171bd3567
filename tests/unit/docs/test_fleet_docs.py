"""docs/fleet.md: its tables of names, the lines that change and the messages are those of the code."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from pslaunch import runtime
from pslaunch.runtime.paddle2.base.role_maker import read_part
from support.pages import DOCS, read_name_tables

PAGE = (DOCS / "fleet.md").read_text()
TABLES = read_name_tables()
V2 = {*runtime._V2, "infer", "init"}  # docs/v2.md has these


def find_module(name: str) -> Any:
    return importlib.import_module(name.replace("paddle", "pslaunch.runtime", 1))


def list_names(module: str, *states: str) -> set[str]:
    """Return the names of a module's table in these states."""
    return {name for name, state in TABLES[module].items() if state.partition(":")[0] in states}


@pytest.mark.parametrize("module", TABLES)
def test_tables_have_every_name_that_is_there(module: str) -> None:
    inner = V2 | set(runtime._PADDLE2) if module == "paddle" else set()
    assert list_names(module, "works", "differs", "ours") == set(dir(find_module(module))) - inner


@pytest.mark.parametrize("module", TABLES)
def test_absent_names_are_absent(module: str) -> None:
    for name in list_names(module, "absent"):
        with pytest.raises(AttributeError, match=rf"\.{name} is not in this runtime"):
            getattr(find_module(module), name)


def test_blocks_by_hand_are_complete() -> None:
    block = re.search(r"```\n(# a server.*?)```", PAGE, re.DOTALL)
    assert block
    server, worker = (
        dict(re.findall(r"^export (\w+)=(\S+)$", part, re.MULTILINE)) for part in block[1].split("\n\n")
    )
    assert (read_part(server).is_server, read_part(server).index) == (True, 0)
    assert (read_part(worker).is_server, read_part(worker).workers) == (False, 2)
