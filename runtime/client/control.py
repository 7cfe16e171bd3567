"""Messages between a trainer and a pserver beside the data plane: JSON objects, each after its length.

A connection is greeted as those of the shards, with the number after the last one; it then belongs to the
pserver's main thread. Each question has one answer, in order; one with `error` is a refusal.
"""

from __future__ import annotations

import base64
import errno
import json
import socket
import struct
from pathlib import Path
from typing import IO, Any

from ..files.saving import write_whole

Message = dict[str, Any]
MESSAGES = "messages of trainers"  # the table of messages.py; a pserver knows it, without numpy
_LENGTH = struct.Struct("<I")
_MOST_BYTES = 64 << 20
_READ_BYTES = 1 << 18
_SEND_S = 10.0
_ANSWER_S = 60.0


class Control:
    """One end of such a connection, which it owns. Raises OSError if the other end is gone, or confused."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()
        sock.settimeout(_SEND_S)

    def send(self, message: Message) -> None:
        text = json.dumps(message).encode()
        self.sock.sendall(_LENGTH.pack(len(text)) + text)

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message, None if there is none in time."""
        self.sock.settimeout(timeout_s)
        try:
            while (message := self._take()) is None:
                data = self.sock.recv(_READ_BYTES)
                if not data:
                    raise ConnectionError("the other end has closed the connection")
                self._buffer += data
            return message
        except (BlockingIOError, TimeoutError):
            return None
        finally:
            self.sock.settimeout(_SEND_S)

    def _take(self) -> Message | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (n,) = _LENGTH.unpack_from(self._buffer)
        if n > _MOST_BYTES:
            raise ConnectionError(f"a message of {n} bytes, limit {_MOST_BYTES}")
        if len(self._buffer) < _LENGTH.size + n:
            return None
        text = bytes(self._buffer[_LENGTH.size : _LENGTH.size + n])
        del self._buffer[: _LENGTH.size + n]
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise ConnectionError("the other end sends no messages")
        return message

    def close(self) -> None:
        self.sock.close()


def take_file(control: Control, folder: str, path: Path) -> None:
    """Write a file that a pserver has in `folder`. Raises OSError, FileNotFoundError if it has none."""

    def ask(at: int) -> bytes:
        control.send({"ask": "piece", "folder": folder, "name": path.name, "at": at})
        if (answer := control.receive(_ANSWER_S)) is None:
            raise TimeoutError(errno.ETIMEDOUT, f"no answer within {_ANSWER_S:g} s")
        if "error" in answer:
            raise OSError(answer.get("errno") or errno.EPROTO, answer["error"])  # of the class of errno
        return base64.b64decode(answer["piece"])

    def write(f: IO[bytes]) -> None:
        piece = first
        while piece:
            f.write(piece)
            piece = ask(f.tell())

    first = ask(0)  # before anything is made
    write_whole(path, write)
