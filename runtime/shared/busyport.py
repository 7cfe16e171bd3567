"""Why a port of this machine can't be had, and who holds it: shared by agents and pservers.

Standard library only, Python 3.9 or later: it travels to any node, as env.py does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct

MAX_COMMAND_CHARS = 100
_MAPPED = bytes(10) + b"\xff\xff"  # of an IPv4 address among those of IPv6
_ANY, _ANY_IPV4 = bytes(16), _MAPPED + bytes(4)


def explain(error: OSError, port: int) -> str:
    """Return why the system did not let us listen at this port: in its words, and which rights that needs."""
    why = (error.strerror or str(error)).partition(" (while ")[0]  # Python says the address once more
    if error.errno != errno.EACCES:
        return why
    first = 1024
    with contextlib.suppress(OSError), open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as f:
        first = int(f.read())
    setting = "net.ipv4.ip_unprivileged_port_start"
    return f"{why}: only root may listen below port {first} ({setting})" if port < first else why


def find_holder(addr: str, port: int, mark: str = "") -> str:
    """Return who keeps us from listening at an address, as far as we may see: `pid 12 (redis-server *:7164)`.

    Where nobody listens: who holds this abstract Unix socket. Empty where nobody is found.
    """
    sockets = _list_listening(_packed(addr), port) or _list_bound(mark)
    if not sockets:
        return ""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if _has_open(pid, sockets):
                return f"pid {pid} ({_read_command(pid)})"
    return ""


def _packed(addr: str) -> bytes:
    """Return an address as 16 bytes; an empty one is all of this machine's."""
    if ":" in addr:
        return socket.inet_pton(socket.AF_INET6, addr.partition("%")[0])
    return _MAPPED + socket.inet_pton(socket.AF_INET, addr) if addr else _ANY


def _list_listening(addr: bytes, port: int) -> set[str]:
    """Return the sockets that keep others from listening there, in the words of /proc/PID/fd.

    At this very address, if there is one; else at all addresses, or at any where all are wanted.
    """
    here, anywhere = set(), set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as f:
            for line in f:
                words = line.split()
                if len(words) <= 9 or words[3] != "0A" or int(words[1].rpartition(":")[2], 16) != port:
                    continue
                raw = bytes.fromhex(words[1].partition(":")[0])  # words of 32 bits, as this machine has them
                other = struct.pack(f"!{len(raw) // 4}I", *struct.unpack(f"={len(raw) // 4}I", raw))
                other = other if len(other) == 16 else _MAPPED + other
                if other == addr:
                    here.add(f"socket:[{words[9]}]")
                elif _ANY in (addr, other) or (_ANY_IPV4 in (addr, other) and addr[:12] == other[:12]):
                    anywhere.add(f"socket:[{words[9]}]")
    return here or anywhere


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
        words = f.read().replace(b"\0", b" ").decode("utf-8", "replace")
    words = words.strip()
    return words if len(words) <= MAX_COMMAND_CHARS else f"{words[: MAX_COMMAND_CHARS - 1]}…"
