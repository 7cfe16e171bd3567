"""For tests of views."""

from __future__ import annotations

import io

import pytest

from support.view_events import set_size


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Return the output on a terminal of 100 columns."""
    set_size(100, 30, monkeypatch)
    return io.StringIO()
