"""For tests of what runs on nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from pslaunch.node.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    with contextlib.closing(Loop()) as loop:
        yield loop
