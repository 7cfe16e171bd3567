"""The local process at the other end of a TCP connection.

Standard library only, Python 3.9 or later: shared by pservers and nodes.
"""

from __future__ import annotations

import contextlib
import socket
import sys

_UID, _INODE = 7, 9


def find_user(sock: socket.socket) -> int | None:
    """Return the user whose process has the other end; None if it is gone, or on another machine.

    Anybody may connect to a port of this machine; this distinguishes our own user's programs from others.
    """
    with contextlib.suppress(OSError, ValueError):
        ends = _format_listed(sock.getpeername()), _format_listed(sock.getsockname())
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with contextlib.suppress(FileNotFoundError), open(table, encoding="ascii") as f:
                for words in map(str.split, f):
                    # A closed end has no inode any more, and its user may be shown as root.
                    if words[1].endswith(ends[0]) and words[2].endswith(ends[1]) and words[_INODE] != "0":
                        return int(words[_UID])
    return None


def _format_listed(name: tuple[str, int]) -> str:
    """Return address and port in the form of the kernel's tables, IPv4 the same in both."""
    family = socket.AF_INET6 if ":" in name[0] else socket.AF_INET
    raw = socket.inet_pton(family, name[0].partition("%")[0])
    if raw.startswith(b"\0" * 10 + b"\xff\xff"):
        raw = raw[12:]
    words = (int.from_bytes(raw[i : i + 4], sys.byteorder) for i in range(0, len(raw), 4))
    return "".join(f"{word:08X}" for word in words) + f":{name[1]:04X}"
