"""Aliases of options: one dash, further names, several values."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from pslaunch import cli
from pslaunch.errors import SpecError
from pslaunch.options import options, toml_file, typer_glue
from pslaunch.options.kinds import Number, Text
from pslaunch.options.options import Option
from pslaunch.options.sources import gather
from pslaunch.options.typer_glue import UsageError

MADE = ("made",)
ROWS = (
    Option("worker_num", Number(1, 9), "Trainers.", "N", 1, backends=MADE, aliases=("-n", "--np")),
    Option("hostfile", Text(), "Hosts.", "FILE", backends=MADE, aliases=("-hostfile",)),
    Option("mca", Text(True, 2), "For mpirun.", "KEY VALUE", backends=MADE, aliases=("-mca",)),
)
Seen = dict[str, Any]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Seen]:
    """Run a command `made apply` whose backend is `made`: what it was given."""
    rows = (*options.OPTIONS, *ROWS)
    for module in (options, typer_glue):
        monkeypatch.setattr(module, "OPTIONS", rows)
    monkeypatch.setattr(toml_file, "OPTION_OF", {row.name: row for row in rows})
    monkeypatch.setattr(toml_file, "SECTIONS", (*toml_file.SECTIONS, "made"))
    found: Seen = {}

    def apply(ctx: typer.Context, **_options: Any) -> None:
        given = gather(ctx.meta["backend"], ctx.meta["split"], tmp_path)
        found.update(
            {row.name: [row.kind.read(v.text, v.label) for v in given.get_all(row.name)] for row in ROWS}
        )
        found["program"] = ctx.meta["split"].program

    app = typer.Typer(cls=typer_glue.Commands)
    group = typer.Typer(cls=typer_glue.Commands)
    cli._add_job_command(group, "apply", backend="made")(apply)
    app.add_typer(group, name="made")
    command = typer.main.get_command(app)

    def run(*words: str) -> Seen:
        command.main(["made", "apply", *words], standalone_mode=False)
        return found

    return run


def test_options_are_taken_by_every_name_that_their_row_has(seen: Callable[..., Seen]) -> None:
    line = ["-n", "3", "-hostfile", "hosts", "--mca", "btl", "tcp,self", "-mca", "a", "b c", "train.py", "-n"]
    assert seen(*line) == {
        "worker_num": [3], "hostfile": ["hosts"], "mca": ["btl tcp,self", "a b c"], "program": "train.py",
    }  # fmt: skip
    assert seen("--np=4", "--hostfile=x")["worker_num"] == [4]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (["-n", "3", "--worker_num=4"], "--worker_num is given twice"),
        (["-n"], "-n needs a value: -n VALUE"),
        (["-n", "-hostfile", "x"], "-n needs a value: -n VALUE .-hostfile is an option"),
        (["--mca", "btl"], "--mca needs 2 values: --mca VALUE VALUE"),
        (["--mca", "a b", "c"], "--mca 'a b' c: only its last value may contain a blank"),
        (["-n=many"], "-n='many'"),
        (["-k", "3"], "-k: options begin with two dashes and a name"),
    ],
)
def test_values_that_do_not_fit_a_row_are_reported(
    seen: Callable[..., Seen], line: list[str], why: str
) -> None:
    with pytest.raises((UsageError, SpecError), match=why):
        seen(*line)


def test_help_has_every_name(seen: Callable[..., Seen], capsys: pytest.CaptureFixture[str]) -> None:
    seen("--help")
    told = capsys.readouterr().out
    for words in ("-n, --np, --worker_num N", "-hostfile, --hostfile FILE", "-mca, --mca KEY VALUE"):
        assert all(name in told for name in words.replace(",", "").split()), told


def test_several_values_are_a_list_in_a_file(seen: Callable[..., Seen], tmp_path: Path) -> None:
    file = tmp_path / "pslaunch.toml"
    file.write_text('[made]\nmca = [["btl", "tcp,self"], ["a", "b c"]]\n')
    assert tomllib.loads(file.read_text())["made"] and seen()["mca"] == ["btl tcp,self", "a b c"]
    file.write_text('[made]\nmca = [["btl"]]\n')
    with pytest.raises(SpecError, match="expected a list of 2 texts, or a list of such lists"):
        seen()
