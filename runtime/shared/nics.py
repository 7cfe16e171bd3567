"""The network interfaces of this machine and their addresses.

Standard library only, Python 3.9 or later: shared by pservers and nodes.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct

from .env import EnvError

_SIOCGIFADDR = 0x8915
_IF_INET6 = "/proc/net/if_inet6"
_LINK_SCOPE = "20"


def list_addresses() -> dict[str, list[str]]:
    """Return the addresses of each interface, IPv4 first, without link-local ones (fe80::)."""
    found: dict[str, list[str]] = {name: _get_ipv4(name) for _, name in socket.if_nameindex()}
    with contextlib.suppress(OSError), open(_IF_INET6, encoding="ascii") as f:
        for line in f:
            words = line.split()
            addr = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))
            if words[3] != _LINK_SCOPE:
                found.setdefault(words[5], []).append(addr)
    return found


def _get_ipv4(name: str) -> list[str]:
    request = struct.pack("256s", name.encode()[:15])
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return [socket.inet_ntoa(fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)[20:24])]
    return []


def get_address(name: str, label: str = "") -> str:
    """Return the first address of an interface. Raises EnvError with the known ones; label: begins it."""
    there = list_addresses()
    if there.get(name):
        return there[name][0]
    known = ", ".join(f"{n} {' '.join(found)}".strip() for n, found in sorted(there.items()))
    why = "has no address" if name in there else "does not exist"
    raise EnvError(f"{label}the interface {name!r} {why}; known: {known}")


def list_outside_addresses() -> list[str]:
    """Return all addresses by which other machines may reach this one: without loopback."""
    found = [a for _, addrs in sorted(list_addresses().items()) for a in addrs]
    return [a for a in found if not is_loopback(a)]


def is_loopback(address: str) -> bool:
    """Return True if only this machine can reach the address."""
    plain = address.partition("%")[0].rpartition("::ffff:")[2]  # as IPv6 has those of IPv4
    return plain == "::1" or plain.startswith("127.")
