"""docs/environment.md and runtime/shared/env.py say the same."""

from pslaunch.node import binding
from pslaunch.runtime.shared import env, reports
from support import pages
from support.pages import words as names

PAGE = (pages.DOCS / "environment.md").read_text()
FAMILIES = ("v2", "Fleet", "MPI", "torch", "tensorflow", "Ours")


def rows(heading: str) -> list[list[str]]:
    return pages.rows("environment.md", heading)


def test_every_variable_is_there_and_no_other() -> None:
    said = {names(row[0])[0] for heading in FAMILIES for row in rows(heading)}
    assert said == binding.list_contract_names()


def test_roles_of_each_variable_are_documented() -> None:
    trainers_only = {
        names(row[0])[0] for heading in FAMILIES for row in rows(heading) if row[1] == "trainers"
    }
    assert trainers_only == binding.list_contract_names() - binding.list_contract_names(env.PSERVER)


def test_removed_and_inherited_variables_are_documented() -> None:
    found = {name: row[1] for row in rows("Everything else") for name in names(row[0])}
    assert {name for name, words in found.items() if words.startswith("removed")} == env.PROXIES
    kept = {name: names(words)[0] for name, words in found.items() if not words.startswith("removed")}
    assert kept == dict(env.DEFAULTS)


def test_documented_files_are_those_of_the_code() -> None:
    found = [names(" ".join(row[:2])) for row in rows("Files")]
    assert found == [
        [name(role, 0, 0), name(role, 2, 1)]
        for name in (env.get_output_log, env.get_info_log)
        for role in (env.TRAINER, env.PSERVER)
    ]


def test_documented_progress_fields_are_those_of_the_code() -> None:
    assert {names(row[0])[0]: row[1] for row in rows("Progress")} == {
        name: "quoted" if read is reports.unquote else read.__name__
        for name, read in reports.PROGRESS_FIELDS.items()
    }
    assert f"at most {reports.MAX_PROGRESS_BYTES} bytes" in PAGE
    assert f"at most {reports.MAX_WHY_BYTES} bytes" in PAGE
