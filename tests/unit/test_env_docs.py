"""docs/environment.md and runtime/env.py say the same."""

import re
from pathlib import Path

from pslaunch.runtime import env

PAGE = (Path(__file__).parents[2] / "docs" / "environment.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of every table row below a heading, up to the next."""
    section = PAGE.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line[:1] == "|"
    ]
    return [row for row in cells if row[0].startswith("`")]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_argument_of_init_with_its_default_and_meaning() -> None:
    found = [row for row in rows("v2") if len(row) == 4]
    assert found == [
        [
            f"`{name}`",
            f"`{env.init_var(name)}`",
            "" if arg.default in (None, "") else f"`{arg.default}`",
            arg.meaning,
        ]
        for name, arg in env.INIT_ARGS.items()
    ]


def test_every_variable_is_there_and_no_other() -> None:
    said = {row[1].strip("`") if len(row) == 4 else row[0].strip("`") for row in rows("v2")}
    for heading in ("Fleet", "MPI", "Ours"):
        said |= {name for row in rows(heading) for name in names(row[0])}
    assert said == env.contract_names() | {env.init_var(name) for name in env.INIT_ARGS}


def test_who_gets_a_variable() -> None:
    trainers_only = env.contract_names() & {
        names(row[0])[0] for heading in ("Fleet", "MPI") for row in rows(heading) if row[1] == "trainers"
    }
    assert {*trainers_only, "PADDLE_INIT_TRAINER_ID"} == set(env._TRAINER_ONLY)


def test_what_happens_to_all_others() -> None:
    found = {name: row[1] for row in rows("Everything else") for name in names(row[0])}
    assert {name for name, words in found.items() if words.startswith("removed")} == env.PROXIES
    kept = {name: names(words)[0] for name, words in found.items() if not words.startswith("removed")}
    assert kept == dict(env.DEFAULTS)


def test_files() -> None:
    found = [names(" ".join(row[:2])) for row in rows("Files")]
    assert found == [
        [name(role, 0, 0), name(role, 2, 1)]
        for name in (env.output_log, env.info_log)
        for role in (env.TRAINER, env.PSERVER)
    ]


def test_progress() -> None:
    assert {names(row[0])[0]: row[1] for row in rows("Progress")} == {
        name: read.__name__ for name, read in env.PROGRESS_FIELDS.items()
    }
    assert f"at most {env.MAX_PROGRESS_BYTES} bytes" in PAGE


def test_the_trainers_flags() -> None:
    assert ", ".join(f"`{name}`" for name in env.TRAINER_FLAGS) in " ".join(PAGE.split())
