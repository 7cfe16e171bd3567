"""docs/options.md and the code say the same, in both directions."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from pslaunch import cli
from pslaunch.options.args import Split
from pslaunch.options.options import options_of
from pslaunch.options.sources import gather
from pslaunch.options.spec import local_spec
from pslaunch.runtime.pserver import pserver_options
from pslaunch.runtime.shared import env
from support.pages import rows, section, words

ROOT = Path(__file__).parents[3]
PAGE = "options.md"
COMMANDS: dict[str, Any] = vars(typer.main.get_command(cli.app))["commands"]


def row(name: str, metavar: str | None, text: str) -> list[str]:
    """What the page must say of an option: all but the last cell, its ancestor."""
    meaning, _, default = text.removesuffix("]").partition(" [default: ")
    return [f"`--{name}{f' {metavar}' if metavar else ''}`", default, meaning]


def options(command: str) -> list[list[str]]:
    """The same of every option that the code knows."""
    if command == "pserver":
        actions = pserver_options._parser({})._actions
        return [row(a.dest, str(a.metavar), a.help or "") for a in actions if a.dest != "help"]
    return [
        row(p.opts[0].removeprefix("--"), None if p.is_flag else p.metavar, p.help)
        for p in COMMANDS[command].params
        if p.param_type_name == "option"
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_with_default_and_meaning(command: str) -> None:
    said = rows(PAGE, f"pslaunch {command}")
    assert [cells[:3] for cells in said] == options(command)
    assert all(len(cells) == 4 and cells[3] for cells in said), "the ancestor's name, or a dash"


def test_the_commands_are_all() -> None:
    headings = re.findall(r"^## pslaunch (\w+)$", (ROOT / "docs" / PAGE).read_text(), re.MULTILINE)
    assert headings == list(COMMANDS)


def test_what_only_hosts_have_is_told_in_their_own_page() -> None:
    page = (ROOT / "docs/fabric.md").read_text()
    missing = [name for name in options_of("fabric").keys() - options_of("local") if f"--{name}" not in page]
    assert missing == []


def test_the_defaults_of_local_are_what_it_does(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    spec = local_spec(gather("local", Split(), tmp_path), Split(), cwd=tmp_path, environ={})
    for name, default, _ in options("local"):
        field = name.strip("`-").partition(" ")[0]
        value = getattr(spec, field, getattr(spec, f"{field}_s", None))
        if re.fullmatch(r"[0-9.]+|True|False|auto", default):
            assert default == (f"{value:g}" if isinstance(value, float) else str(value)), name


def test_the_defaults_of_pserver_are_what_it_does() -> None:
    parsed = pserver_options.parse_options([], {})
    for name, default, _ in options("pserver"):
        field = name.strip("`-").partition(" ")[0]
        value = getattr(parsed, field, getattr(parsed, f"{field}_s", None))
        if re.fullmatch(r"[0-9.]+", default):
            assert float(default) == value, name


def test_every_argument_of_init_with_its_default_and_meaning() -> None:
    said = rows(PAGE, "init()")
    assert [cells[:4] for cells in said] == [
        [
            f"`{name}`",
            f"`{env.init_var(name)}`",
            "" if arg.default in (None, "") else f"`{arg.default}`",
            arg.meaning,
        ]
        for name, arg in env.INIT_ARGS.items()
    ]
    assert all(len(cells) == 5 and cells[4] for cells in said)


def test_the_trainers_flags() -> None:
    text = section(PAGE, "pslaunch local").rpartition("|\n")[2]
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
    written = env.contract_names() | {env.init_var(name) for name in env.INIT_ARGS}
    assert {words(cells[0])[0] for cells in rows(PAGE, "Variables")} == read_variables() - written
