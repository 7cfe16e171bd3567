"""The process at the other end of a TCP connection, as far as this machine knows of it.

Standard library only, Python 3.9 or later: pservers and nodes ask the same question.
"""

from __future__ import annotations

import contextlib
import socket
import sys

_UID, _INODE = 7, 9


def find_user(sock: socket.socket) -> int | None:
    """Return the user whose process has the other end; None if it is gone, or on another machine.

    Anybody may open a connection to a port of this machine; this tells our own user's programs from others.
    """
    with contextlib.suppress(OSError, ValueError):
        ends = _as_listed(sock.getpeername()), _as_listed(sock.getsockname())
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with contextlib.suppress(FileNotFoundError), open(table, encoding="ascii") as f:
                for words in map(str.split, f):
                    # An end that was closed has no inode any more, and its user may be shown as root.
                    if words[1].endswith(ends[0]) and words[2].endswith(ends[1]) and words[_INODE] != "0":
                        return int(words[_UID])
    return None


def _as_listed(name: tuple[str, int]) -> str:
    """Return address and port as the kernel's tables end with them, IPv4 alike in both."""
    family = socket.AF_INET6 if ":" in name[0] else socket.AF_INET
    raw = socket.inet_pton(family, name[0].partition("%")[0])
    if raw.startswith(b"\0" * 10 + b"\xff\xff"):
        raw = raw[12:]
    words = (int.from_bytes(raw[i : i + 4], sys.byteorder) for i in range(0, len(raw), 4))
    return "".join(f"{word:08X}" for word in words) + f":{name[1]:04X}"
