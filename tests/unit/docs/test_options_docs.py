"""docs/options.md has the tables of the code, and what its text says of defaults and variables is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import make_tables
import pytest

from pslaunch.backends.registry import get_options
from pslaunch.node import binding
from pslaunch.options.foreign import FOREIGN
from pslaunch.runtime.shared import env
from support.command_line import make_spec
from support.pages import rows, section, words

ROOT = Path(__file__).parents[3]
PAGE = "options.md"


@pytest.mark.parametrize("page", make_tables.PAGES, ids=lambda page: page.name)
def test_the_tables_are_those_of_the_code(page: Path) -> None:
    text = page.read_text()
    assert make_tables.render(text) == text, "make docs writes them anew"


def test_every_option_is_in_a_table() -> None:
    tables = re.findall("<!-- table: (.+) -->", (ROOT / "docs" / PAGE).read_text())
    assert {*make_tables.SHARED, "conf.py", "init()"} < {*tables}
    for name in make_tables.COMMANDS.keys() - {"check", "delete", "help", "version"}:
        assert bool(make_tables.list_own_options(name)) == (f"pslaunch {name}" in tables), name
    assert make_tables.list_own_options("delete") == make_tables.list_own_options("stop")


def test_every_other_launcher_has_its_table() -> None:
    assert re.findall("<!-- table: (.+) -->", (ROOT / "docs/from_others.md").read_text()) == [*FOREIGN]


def test_shared_and_own_tables_have_all_options_of_a_command() -> None:
    for name in make_tables.COMMANDS.keys() - {"check"}:
        rows: dict[str, make_tables.Row] = {}
        for table in (t for t, commands in make_tables.SHARED.items() if name in commands):
            rows |= make_tables.share_options(table)
        rows |= {row[0]: row for row in make_tables.list_own_options(name)}
        assert rows == {row[0]: row for row in make_tables.list_options(name)}, name


def test_the_commands_are_all() -> None:
    headings = re.findall(r"^## pslaunch (\w+)$", (ROOT / "docs" / PAGE).read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(make_tables.COMMANDS)


@pytest.mark.parametrize(("page", "name"), [("fabric", "fabric"), ("mpi", "mpi"), ("kubernetes", "k8s")])
def test_page_of_a_backend_names_the_options_that_only_some_have(page: str, name: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text().replace("`-", "`--").replace("-", "_")
    others = get_options("local").keys() | (get_options("fabric").keys() if name == "k8s" else set())
    assert {o for o in get_options(name).keys() - others if f"__{o}" not in text} <= {"host"}


def test_documented_defaults_of_local_are_its_behaviour(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    spec = make_spec("local", [], tmp_path, {})
    draft = spec.draft
    values = {**draft._asdict(), **draft.limits._asdict(), **spec._asdict(), "nodes": len(spec.site.nodes)}
    for name, _, default, _ in make_tables.list_options("local"):
        value = values.get(name, values.get(f"{name}_s"))
        if re.fullmatch(r"[0-9.]+|True|False|auto", default):
            assert default == (f"{value:g}" if isinstance(value, float) else str(value)), name


def test_documented_flags_of_the_trainer_are_those_of_the_code() -> None:
    text = section(PAGE, "Options of every job").rpartition("-->\n")[2]
    assert [word for word in words(text) if word.startswith("--")] == [
        f"--{name}" for name in env.TRAINER_FLAGS
    ]


def read_variables() -> set[str]:
    """Names of all variables that the code reads by their names."""
    found = set()
    for path in [*(ROOT / "launcher").rglob("*.py"), *(ROOT / "runtime").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _is(
                    node.func, "environ.get", "getenv", "read_count"
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
    written = binding.list_contract_names() | {env.get_init_var(name) for name in env.INIT_ARGS}
    assert {words(cells[0])[0] for cells in rows(PAGE, "Variables")} == read_variables() - written
