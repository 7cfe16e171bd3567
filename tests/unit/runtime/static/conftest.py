"""Fresh default programs for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pslaunch.runtime.paddle2 import static


@pytest.fixture(autouse=True)
def programs() -> Iterator[tuple[static.Program, static.Program]]:
    """A main and a startup program, to which functions add."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        yield main, startup
