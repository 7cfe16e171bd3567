"""Causes and holders of unavailable ports of this machine, and users of connections, for agents and pservers.

Standard library only, Python 3.9 or later: it travels to any node, as env.py does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator

MAX_COMMAND_CHARS = 100
_MAPPED = bytes(10) + b"\xff\xff"  # of an IPv4 address among those of IPv6
_ANY, _ANY_IPV4 = bytes(16), _MAPPED + bytes(4)


def explain(error: OSError, port: int) -> str:
    """Return the system's error for listening at this port, and the rights that are missing, if any."""
    why = (error.strerror or str(error)).partition(" (while ")[0]  # Python repeats the address
    if error.errno != errno.EACCES:
        return why
    first = 1024
    with contextlib.suppress(OSError), open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as f:
        first = int(f.read())
    setting = "net.ipv4.ip_unprivileged_port_start"
    return f"{why}: only root may listen below port {first} ({setting})" if port < first else why


def find_holder(addr: str, port: int, mark: str = "") -> str:
    """Return the process that keeps this address busy, if visible to us: `pid 12 (redis-server *:7164)`.

    If none listens: the holder of this abstract Unix socket. Empty if none is found.
    """
    sockets = _list_listening(_pack_address(addr), port) or _list_bound(mark)
    if not sockets:
        return ""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if _has_open(pid, sockets):
                return f"pid {pid} ({_read_command(pid)})"
    return ""


def _pack_address(addr: str) -> bytes:
    """Return an address as 16 bytes; the empty one stands for all addresses of this machine."""
    if ":" in addr:
        return socket.inet_pton(socket.AF_INET6, addr.partition("%")[0])
    return _MAPPED + socket.inet_pton(socket.AF_INET, addr) if addr else _ANY


def _list_listening(addr: bytes, port: int) -> set[str]:
    """Return the sockets that keep others from listening there, as /proc/PID/fd names them.

    Those at this very address, if any; else those at all addresses, or at any address if all are wanted.
    """
    here, anywhere = set(), set()
    for (other, its_port), _, words in _list_tcp():
        if words[3] != "0A" or its_port != port:
            continue
        if other == addr:
            here.add(f"socket:[{words[9]}]")
        elif _ANY in (addr, other) or (_ANY_IPV4 in (addr, other) and addr[:12] == other[:12]):
            anywhere.add(f"socket:[{words[9]}]")
    return here or anywhere


def _list_tcp() -> Iterator[tuple[tuple[bytes, int], tuple[bytes, int], list[str]]]:
    """Yield both ends of each TCP socket, its own first, and all words of the kernel about it."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as f:
            for words in [*map(str.split, f)][1:]:
                yield _read_end(words[1]), _read_end(words[2]), words


def _read_end(text: str) -> tuple[bytes, int]:
    """Return the address as 16 bytes, and the port."""
    addr, _, port = text.partition(":")
    raw = bytes.fromhex(addr)  # words of 32 bits in this machine's byte order
    raw = struct.pack(f"!{len(raw) // 4}I", *struct.unpack(f"={len(raw) // 4}I", raw))
    return raw if len(raw) == 16 else _MAPPED + raw, int(port, 16)


def find_user(sock: socket.socket) -> int | None:
    """Return the user whose process has the other end; None if it is gone, or on another machine.

    Anybody may connect to a port of this machine; this distinguishes our own user's programs from others.
    """
    with contextlib.suppress(OSError):
        ends = [(_pack_address(addr), port) for addr, port, *_ in (sock.getpeername(), sock.getsockname())]
        for other, own, words in _list_tcp():
            # A closed end has no inode any more, and its user may be shown as root.
            if [other, own] == ends and words[9] != "0":
                return int(words[7])
    return None


def _list_bound(mark: str) -> set[str]:
    with contextlib.suppress(OSError), open("/proc/net/unix", encoding="latin-1") as f:
        return {f"socket:[{words[6]}]" for words in map(str.split, f) if words[7:] == [f"@{mark}"]}
    return set()


def _has_open(pid: str, targets: set[str]) -> bool:
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{fd}") in targets:
                return True
    return False


def _read_command(pid: str) -> str:
    with open(f"/proc/{pid}/cmdline", "rb") as f:
        words = f.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return words if len(words) <= MAX_COMMAND_CHARS else f"{words[: MAX_COMMAND_CHARS - 1]}…"
