"""Start by hand the files that travel to a node."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


def greet(keeper: Sequence[str]) -> tuple[bytes, bytes]:
    """Start a keeper, close its line once it has greeted; its greeting, and what it said at its end."""
    pipe = subprocess.PIPE
    with subprocess.Popen(keeper, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as process:
        assert process.stdout is not None
        greeting = process.stdout.read(4096)
        _, said = process.communicate(timeout=30)
    return greeting, said
