"""Pages of docs/ in a terminal."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from pslaunch.errors import SpecError
from pslaunch.views.pages import find_topic, list_topics, show_page

DOCS = Path(__file__).parents[3] / "docs"
COMMANDS = ("local", "mpi", "k8s")


def test_each_page_is_a_topic_with_its_title() -> None:
    listed = [line.split(maxsplit=1) for line in list_topics().splitlines()[1:]]
    assert {name for name, _ in listed} == {path.stem for path in DOCS.glob("*.md")}
    assert ["fabric", "Jobs on hosts by SSH"] in listed


def test_a_topic_is_a_page_or_a_command_or_an_error_with_the_nearest() -> None:
    assert find_topic(["mpi"], COMMANDS) == find_topic(["mpi.md"], COMMANDS) == DOCS / "mpi.md"
    assert find_topic(["k8s", "render"], COMMANDS) is find_topic(["local"], COMMANDS) is None
    with pytest.raises(SpecError, match="no topic 'kubernets'; did you mean 'kubernetes'"):
        find_topic(["kubernets"], COMMANDS)


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
