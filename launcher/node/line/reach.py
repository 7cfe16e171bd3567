"""Reachable addresses of nodes: every node tries the doors of the others.

A connection alone proves little: 172.17.0.1 is the container bridge of every machine, so trying it reaches
oneself. So a door sends a word that identifies its node, under the job's secret.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import socket
import time
from _blake2 import blake2b  # hmac and hashlib load OpenSSL, which costs megabytes
from collections.abc import Mapping, Sequence
from typing import Any

from pslaunch.runtime.shared import nics
from pslaunch.runtime.shared.env import EnvError

from ..codes import PREFLIGHT, Refusal
from ..loop import Listener, Loop

ALL_PAIRS = 32  # nodes; among more, each tries only some others
REACH_S = 3.0
FIRST_REACH_S = 1.0  # for the likeliest addresses, before all are tried
REACH_SETTLE_S = 0.25
MAX_TRIES = 256  # connections at once
PASS_BYTES = 16
MAX_ADDRS = 64  # of a node
MAX_ADDR_CHARS = 64


def list_candidates(nic: str) -> list[str]:
    """Return addresses at which others may reach this machine, the likeliest first. Raises Refusal.

    Only the address of `nic`, if given; else the address called over SSH comes first.
    """
    if nic:
        try:
            return [nics.get_address(nic)]
        except EnvError as e:
            raise Refusal(PREFLIGHT, str(e)) from None
    called_by = [a for a in os.environ.get("SSH_CONNECTION", "").split()[2:3] if is_address(a)]
    return list(dict.fromkeys([*called_by, *nics.list_outside_addresses()]))[:MAX_ADDRS] or ["127.0.0.1"]


def check_addrs(told: Any) -> list[str]:
    """Return the addresses that a node reports of itself, or raise ValueError."""
    if not told:
        raise ValueError("a node has at least one address")
    if len(told) > MAX_ADDRS:
        raise ValueError(f"a node has at most {MAX_ADDRS} addresses")
    for addr in told:
        if not is_address(addr):
            raise ValueError(f"{str(addr)[:MAX_ADDR_CHARS]!r} is not an address")
    return list(told)


def is_address(text: str) -> bool:
    """Return True for an IP address; an sshd on a pipe (`docker exec -i NAME sshd -i`) gives UNKNOWN."""
    with contextlib.suppress(OSError, TypeError):
        # As bytes: a str would load the codecs for international names.
        host = os.fsencode(text)
        return len(host) <= MAX_ADDR_CHARS and bool(
            socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
        )
    return False


def make_word(secret: bytes, node: int) -> bytes:
    return blake2b(b"pslaunch door of node %d" % node, key=secret, digest_size=PASS_BYTES).digest()


class Door:
    """Listener at every address that sends each caller the word of this node and reads nothing.

    Callers close first: a connection closed by this side would keep the port for a minute from a program that
    binds it without SO_REUSEADDR.
    """

    def __init__(self, loop: Loop, says: bytes, port: int = 0) -> None:
        """Listen at this port if it is free, else at any."""
        listener = listen("", port)
        self._says = says
        self._callers: list[socket.socket] = []
        self.port = int(listener.getsockname()[1])
        self._listening = Listener(loop, listener, self._open)

    def _open(self, sock: socket.socket, _address: object) -> None:
        self._callers.append(sock)
        with contextlib.suppress(OSError):
            sock.setblocking(False)
            sock.send(self._says)
        if len(self._callers) > MAX_TRIES:
            self._callers.pop(0).close()

    def close(self) -> None:
        self._listening.close()
        for sock in self._callers:
            sock.close()


def listen(addr: str, port: int) -> socket.socket:
    """Return a non-blocking listener at an address, "" for all, and at this port, or any if it is busy."""
    families = [socket.AF_INET6 if ":" in addr else socket.AF_INET]
    if not addr and socket.has_dualstack_ipv6():
        families.insert(0, socket.AF_INET6)  # first: it may be switched off in the kernel
    *ways, last = itertools.product((port, 0), families)
    for way in ways:
        with contextlib.suppress(OSError):
            return _listen(addr, *way)
    return _listen(addr, *last)


def _listen(addr: str, port: int, family: int) -> socket.socket:
    both = not addr and family == socket.AF_INET6
    sock = socket.create_server((addr, port), family=family, dualstack_ipv6=both, backlog=1024)
    sock.setblocking(False)
    return sock


def try_all(
    doors: Sequence[tuple[int, str, int]], secret: bytes, limit_s: float = REACH_S
) -> list[tuple[int, str]]:
    """Return those of doors (node, address, port) that sent the right word within `limit_s`: node, address.

    Once the first address of every node has answered, the others get less time.
    """
    opened: list[tuple[int, str]] = []
    for at in range(0, len(doors), MAX_TRIES):
        some, begin_s = doors[at : at + MAX_TRIES], time.monotonic()
        end_s = begin_s + limit_s
        likeliest = {node: addr for node, addr, _ in reversed(some)}
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            for node, addr, port in some:
                sock = stack.enter_context(_begin_connect(addr, port))
                selector.register(sock, selectors.EVENT_READ, (sock, node, addr))
            while selector.get_map() and (left_s := end_s - time.monotonic()) > 0:
                for key, _ in selector.select(left_s):
                    sock, node, addr = key.data
                    selector.unregister(sock)
                    with contextlib.suppress(OSError):
                        # Not in constant time: the peer learns nothing from the duration.
                        if sock.recv(PASS_BYTES) == make_word(secret, node):
                            opened.append((node, addr))
                            if likeliest.get(node) == addr:
                                del likeliest[node]
                if not likeliest:
                    now_s = time.monotonic()
                    end_s = min(end_s, now_s + max(REACH_SETTLE_S, now_s - begin_s))
    return opened


def _begin_connect(addr: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in addr else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    with contextlib.suppress(OSError):  # in progress; an immediate failure is found by the read
        sock.connect((addr, port))
    return sock


# --- Choice of addresses. Pure. ---


def plan_tries(nodes: int) -> dict[int, list[int]]:
    """Return the nodes tried by each: all others, or among many those at distances 1, 2, 4, … of a ring."""
    if nodes <= ALL_PAIRS:
        return {i: [k for k in range(nodes) if k != i] for i in range(nodes)}
    steps = [1 << b for b in range((nodes - 1).bit_length())]
    return {i: sorted({(i + step) % nodes for step in steps} - {i}) for i in range(nodes)}


def sort_out(
    names: Sequence[str], known: Sequence[Sequence[str]], opened: Mapping[int, Sequence[tuple[int, str]]]
) -> tuple[dict[int, str], dict[int, str]]:
    """Return by node the address that all who tried it could open, or a text naming those who could not."""
    who_tried: dict[int, list[int]] = {i: [] for i in range(len(names))}
    for i, tried in plan_tries(len(names)).items():
        for k in tried:
            who_tried[k].append(i)
    reached = {(i, node, addr) for i, pairs in opened.items() for node, addr in pairs}
    chosen, wrong = {}, {}
    for k, addrs in enumerate(known):
        fits = [a for a in addrs if all((i, k, a) in reached for i in who_tried[k])]
        if fits:
            chosen[k] = fits[0]
            continue
        cut_off = [names[i] for i in who_tried[k] if not any((i, k, a) in reached for a in addrs)]
        by = f"from {', '.join(cut_off)}" if cut_off else "by one address from all the others"
        wrong[k] = f"({', '.join(addrs)}) can't be reached {by}"
    return chosen, wrong
