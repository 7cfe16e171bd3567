"""Lines of a test's loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pslaunch.node.line.wire import Line, MessageLine, Output, encode_head
from pslaunch.node.loop import Loop, ignore


def open_line(
    loop: Loop,
    fd: int | Line,
    on_message: Callable[[Any], None] = ignore,
    *,
    on_lost: Callable[[str], None] = ignore,
    lost_after_s: float = 30,
    **more: Any,
) -> MessageLine[Any]:
    """Return a line over a socket, or another line."""
    line = Line(fd, fd) if isinstance(fd, int) else fd
    return MessageLine(loop, line, lost_after_s=lost_after_s, on_message=on_message, on_lost=on_lost, **more)


def encode_piece(piece: Output) -> bytes:
    """Return the frame of a piece of output."""
    return encode_head(piece) + piece.data
