"""README.md and docs/v2.md say what is there, docs/index.md every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pslaunch import cli, runtime
from support.pages import DOCS

TEXT = (DOCS.parent / "README.md").read_text()
API = re.findall(r"^\| `paddle(?:\.(\w+))?` \| (.*) \|$", (DOCS / "v2.md").read_text(), re.MULTILINE)


def test_the_readme_fits_a_first_look() -> None:
    assert len(TEXT.splitlines()) <= 120
    assert max(map(len, TEXT.splitlines())) <= 120


def test_the_v2_names_are_there() -> None:
    assert [module for module, _ in API if module] and {module for module, _ in API if module} == set(
        runtime._V2
    )
    for module, names in API:
        place = getattr(runtime, module) if module else runtime
        for name in re.findall(r"`(\w+)`", names):
            assert hasattr(place, name), f"{module}.{name}"


def test_the_commands_are_there() -> None:
    commands = set(cli.app.list_commands(None))
    assert set(re.findall(r"`pslaunch (\w+)", TEXT)) <= commands


@pytest.mark.parametrize(
    "page", [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda p: p.name
)
def test_links_lead_to_existing_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    assert [t for t in targets if "://" not in t and not (page.parent / t).exists()] == []


def test_every_page_is_in_the_index() -> None:
    pages = {page.name for page in DOCS.glob("*.md")} - {"index.md"}
    assert pages - {*re.findall(r"\]\(([^)#]+)\)", (DOCS / "index.md").read_text())} == set()
