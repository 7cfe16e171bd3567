"""README.md and docs/v2.md say what is there, README.zh-CN.md the same, docs/index.md every page."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from pslaunch import cli, runtime
from support.pages import DOCS, list_blocks

TEXT = (DOCS.parent / "README.md").read_text()
CHINESE = (DOCS.parent / "README.zh-CN.md").read_text()
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
    commands = set(cli.app.list_commands())
    assert set(re.findall(r"`pslaunch (\w+)", TEXT)) <= commands


def test_the_chinese_readme_has_the_same_blocks_commands_numbers_and_links() -> None:
    assert list_blocks(CHINESE) == list_blocks(TEXT)
    assert sorted(re.findall("`([^`\n]+)`", CHINESE)) == sorted(re.findall("`([^`\n]+)`", TEXT))
    assert Counter(re.findall(r"\d[\d,.]*\b", CHINESE)) == Counter(re.findall(r"\d[\d,.]*\b", TEXT))
    links = [{*re.findall(r"\]\(([^)]+)\)", text)} for text in (CHINESE, TEXT)]
    assert links[0] ^ links[1] == {"README.md", "README.zh-CN.md"}


def list_headings(page: Path) -> list[str]:
    """Return the headings of a page as links name them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found]


@pytest.mark.parametrize(
    "page", [*sorted(DOCS.parent.glob("README*.md")), *sorted(DOCS.glob("*.md"))], ids=lambda p: p.name
)
def test_links_lead_to_existing_files_and_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text())
    targets = [
        (page.parent / path if path else page, heading) for path, heading in links if "://" not in path
    ]
    assert [str(path) for path, _ in targets if not path.exists()] == []
    assert [link for link in targets if link[1] and link[1] not in list_headings(link[0])] == []


def test_every_page_is_in_the_index() -> None:
    pages = {page.name for page in DOCS.glob("*.md")} - {"index.md"}
    assert pages - {*re.findall(r"\]\(([^)#]+)\)", (DOCS / "index.md").read_text())} == set()
