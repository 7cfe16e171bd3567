"""Pages of docs/ in a terminal."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from pslaunch.views.pages import list_pages, read_title, show_page

DOCS = Path(__file__).parents[3] / "docs"


def test_each_page_has_a_title() -> None:
    titles = {name: read_title(page) for name, page in list_pages().items()}
    assert titles.keys() == {path.stem for path in DOCS.glob("*.md")} and all(titles.values())
    assert titles["fabric"] == "Jobs on hosts by SSH"


@pytest.fixture
def terminal() -> Iterator[TextIO]:
    master, slave = os.openpty()
    with os.fdopen(master, "r"), os.fdopen(slave, "w") as opened:
        yield opened


def test_a_terminal_gets_a_page_in_its_pager_and_others_its_text(
    tmp_path: Path, terminal: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, shown, out = tmp_path / "page.md", tmp_path / "shown", io.StringIO()
    page.write_text("# Title\n\n* one\n")
    show_page(page, out)
    assert out.getvalue() == page.read_text()
    for name, value in {"PAGER": f"cat > '{shown}'", "TERM": "xterm", "LESS": "-R"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("sys.stdout", terminal)
    show_page(page, terminal)
    assert "Title\x1b" in shown.read_text() and "•" in shown.read_text()
