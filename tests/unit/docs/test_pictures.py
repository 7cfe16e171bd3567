"""The pictures of docs/pictures/ are those that the code draws now (`make pictures`)."""

from __future__ import annotations

import re

import make_pictures
import pytest


def read_words(svg: str) -> list[str]:
    """Return the words in an SVG: fonts and colours differ between versions of rich."""
    return " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg)).replace("&#160;", " ").split()


def test_live_view_of_the_recorded_job_is_the_picture() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("COLUMNS", "")  # both are set, and put back at the end
        monkeypatch.setenv("LINES", "")
        drawn = read_words(make_pictures.draw_run())
    assert {"trainer/0", "pserver/0", "samples/s", "memory", "left"} <= set(drawn)
    assert drawn == read_words((make_pictures.PICTURES / "run.svg").read_text())


def test_parts_are_the_picture() -> None:
    assert make_pictures.draw_parts() == (make_pictures.PICTURES / "parts.svg").read_text()
