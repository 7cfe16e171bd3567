"""docs/options.md has the tables of the code, and what its text says of defaults and variables is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import make_tables

from pslaunch.options.args import Split
from pslaunch.options.local_spec import make_local_spec
from pslaunch.options.options import get_options
from pslaunch.options.sources import gather
from pslaunch.runtime.pserver import pserver_options
from pslaunch.runtime.shared import env
from support.pages import rows, section, words

ROOT = Path(__file__).parents[3]
PAGE = "options.md"


def test_the_tables_are_those_of_the_code() -> None:
    page = make_tables.PAGE.read_text()
    assert make_tables.render(page) == page, "make docs writes them anew"
    assert re.findall("<!-- table: (.+) -->", page) == [
        *("pslaunch local", "pslaunch fabric", "pslaunch mpi", "conf.py"),
        *(
            f"pslaunch {name}"
            for name in make_tables.COMMANDS
            if name not in ("local", "fabric", "mpi", "check")
        ),
        "init()",
    ]


def test_the_commands_are_all() -> None:
    headings = re.findall(r"^## pslaunch (\w+)$", (ROOT / "docs" / PAGE).read_text(), re.MULTILINE)
    assert headings == list(make_tables.COMMANDS)


def test_options_for_hosts_alone_are_on_their_own_page() -> None:
    page = (ROOT / "docs/fabric.md").read_text()
    missing = [
        name for name in get_options("fabric").keys() - get_options("local") if f"--{name}" not in page
    ]
    assert missing == []


def test_documented_defaults_of_local_are_its_behaviour(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    spec = make_local_spec(gather("local", Split(), tmp_path), Split(), cwd=tmp_path, environ={})
    values = {**spec._asdict(), "nodes": len(spec.site.nodes)}
    for name, _, default, _ in make_tables.list_options("local"):
        value = values.get(name, values.get(f"{name}_s"))
        if re.fullmatch(r"[0-9.]+|True|False|auto", default):
            assert default == (f"{value:g}" if isinstance(value, float) else str(value)), name


def test_documented_defaults_of_pserver_are_its_behaviour() -> None:
    parsed = pserver_options.parse_options([], {})
    for name, _, default, _ in make_tables.list_options("pserver"):
        value = getattr(parsed, name, getattr(parsed, f"{name}_s", None))
        if re.fullmatch(r"[0-9.]+", default):
            assert float(default) == value, name


def test_documented_flags_of_the_trainer_are_those_of_the_code() -> None:
    text = section(PAGE, "pslaunch local").rpartition("-->\n")[2]
    assert words(text) == [f"--{name}" for name in env.TRAINER_FLAGS]


def read_variables() -> set[str]:
    """Names of all variables that the code reads by their names."""
    found = set()
    for path in [*(ROOT / "launcher").rglob("*.py"), *(ROOT / "runtime").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _is(
                    node.func, "environ.get", "getenv"
                ):
                    found.add(name)
                case ast.Subscript(slice=ast.Constant(value=str(name)), ctx=ast.Load()) if _is(
                    node.value, "environ"
                ):
                    found.add(name)
    return found


def _is(node: ast.expr, *names: str) -> bool:
    return ast.unparse(node).endswith(names)


def test_every_variable_that_is_read() -> None:
    written = env.list_contract_names() | {env.get_init_var(name) for name in env.INIT_ARGS}
    assert {words(cells[0])[0] for cells in rows(PAGE, "Variables")} == read_variables() - written
