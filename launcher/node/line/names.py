"""Search for a name that name servers do not know yet, so that none of them remembers that it is missing."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time

UNUSED_TYPES = range(65280, 65535)  # of records, for private use (RFC 6895)
PORT = 53
ANSWER_BYTES = 512


class Search:
    """Search for `name` below the first domain that this machine searches.

    A server remembers for up to half a minute that a name has no record of some type, and tells all who ask.
    So each question is for another type that nobody uses: its answer tells a missing name from a known one.
    """

    def __init__(self, name: str, configuration: str = "/etc/resolv.conf", port: int = PORT) -> None:
        self.name = name
        self._id, self._asked = os.urandom(2), os.urandom(1)[0]
        self._server: socket.socket | None = None
        with contextlib.suppress(OSError, ValueError), open(configuration, encoding="utf-8") as f:
            said = {words[0]: words[1] for words in map(str.split, reversed(f.readlines())) if len(words) > 1}
            if "nameserver" in said and "search" in said:
                labels = f"{name}.{said['search']}".rstrip(".").encode().split(b".")
                self._labels = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
                self._server = _connect(said["nameserver"], port)

    def wait(self, limit_s: float) -> bool:
        """Return True as soon as the name is known, False after the limit."""
        end_s = time.monotonic() + limit_s
        if self._server is None:
            time.sleep(limit_s)
            return False
        with contextlib.suppress(OSError):  # a server that is away: it is asked again in the next turn
            self._server.send(self._make_question())
        while select.select([self._server], [], [], max(0.0, end_s - time.monotonic()))[0]:
            with contextlib.suppress(OSError):
                answer = self._server.recv(ANSWER_BYTES)
                if answer[:2] == self._id and len(answer) > 3 and not answer[3] & 15:
                    return True
        return False

    def _make_question(self) -> bytes:
        self._asked += 1
        kind = UNUSED_TYPES[self._asked % len(UNUSED_TYPES)]
        header = self._id + bytes([1, 0, 0, 1, 0, 0, 0, 0, 0, 0])  # one question; others may be asked for it
        return header + self._labels + kind.to_bytes(2, "big") + b"\0\1"

    def close(self) -> None:
        if self._server:
            self._server.close()


def _connect(server: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    try:
        sock.connect((server, port))
    except OSError:
        sock.close()
        raise
    return sock
