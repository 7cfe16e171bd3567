"""Aliases of options: one dash, further names, several values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pslaunch.backends import gather, registry
from pslaunch.errors import SpecError
from pslaunch.options.args import split_command_line
from pslaunch.options.kinds import Number, Text
from pslaunch.options.options import COMMON, GIVEN, Need, Option, join_rows, make_flag
from pslaunch.options.spec import refuse_unmet

ROWS = (
    Option("worker_num", Number(1, 9), "Trainers.", "N", 1, aliases=("-n", "--np")),
    Option("hostfile", Text(), "Hosts.", "FILE", aliases=("-hostfile",)),
    Option("mca", Text(True, 2), "For mpirun.", "KEY VALUE", aliases=("-mca",)),
    Option("file", Text(), "A file.", needs=(Need("write", False), Need("mca", GIVEN, "where mca is set"))),
    Option("mode", Number(0, 9), "A mode.", default=1, needs=(Need("worker_num", 2), Need("absent", True))),
    make_flag("write", "Write.", needs=(Need("hostfile", None), Need("mode", 0, "in mode 0"))),
)
Seen = dict[str, Any]


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Seen]:
    """Read a command line with these rows: what was given."""
    rows = {row.name: row for row in join_rows(ROWS, COMMON)}
    for module in (registry, gather):
        monkeypatch.setattr(module, "OWN", ("local",))
        monkeypatch.setattr(module, "get_options", lambda _name: rows)

    def run(*words: str) -> Seen:
        split = split_command_line(words, rows)
        given = gather.gather_given("local", split, tmp_path)
        refuse_unmet(given)
        names = ("worker_num", "hostfile", "mca")
        found: Seen = {n: [rows[n].kind.read(v.text, v.label) for v in given.get_all(n)] for n in names}
        return {**found, "program": split.program}

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
        (["-n"], "-n needs a value: -n N"),
        (["-n", "-hostfile", "x"], "-n needs a value: -n N .-hostfile is an option"),
        (["--mca", "btl"], "--mca needs 2 values: --mca KEY VALUE"),
        (["--mca", "a b", "c"], "--mca 'a b' c: only its last value may contain a blank"),
        (["-n=many"], "-n='many'"),
        (["-k", "3"], "-k: options begin with two dashes and a name"),
    ],
)
def test_values_that_do_not_fit_a_row_are_reported(
    seen: Callable[..., Seen], line: list[str], why: str
) -> None:
    with pytest.raises(SpecError, match=why):
        seen(*line)


def test_several_values_are_a_list_in_a_file(seen: Callable[..., Seen], tmp_path: Path) -> None:
    file = tmp_path / "pslaunch.toml"
    file.write_text('[local]\nmca = [["btl", "tcp,self"], ["a", "b c"]]\n')
    assert seen()["mca"] == ["btl tcp,self", "a b c"]
    file.write_text('[local]\nmca = [["btl"]]\n')
    with pytest.raises(SpecError, match="expected a list of 2 texts, or several in a list"):
        seen()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--file=a", "--file=a has no effect without --write"),
        ("--file=a --write --hostfile=h --mca a b", "--file=a has no effect where mca is set"),
        ("--write", "--write has no effect without --hostfile"),
        ("--write --hostfile=h --mode=0", "--write has no effect in mode 0"),
        ("--mode=3 -n 2", "--mode=3 has no effect with --worker_num=2"),
    ],
)
def test_options_without_effect_beside_others_are_refused(
    seen: Callable[..., Seen], tmp_path: Path, line: str, why: str
) -> None:
    with pytest.raises(SpecError, match=f"^{why}$"):
        seen(*line.split())
    file = "".join(f"{word}\n" for word in ("file = 'a'", "mode = 3"))
    (tmp_path / "pslaunch.toml").write_text(file)
    assert seen("-n", "2", "--write=false")["worker_num"] == [2]  # a file may be for other jobs
