"""Which addresses of which nodes can be reached from where: every node tries the others' doors.

An address alone says little: 172.17.0.1 is the container bridge of every machine, and trying it reaches
oneself. So who opens says which node it is, under the job's secret.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from _blake2 import blake2b  # hmac and hashlib bring OpenSSL with them, which costs megabytes
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pslaunch.runtime.shared import nics

from ..loop import Loop
from .listener import Listening

ALL_PAIRS = 32  # nodes; among more, each tries a few others
TRY_S = 3.0
FIRST_S = 1.0  # for the likeliest address of each node, before all are tried
SETTLE_S = 0.25
MAX_TRIES = 256  # connections at once
PASS_BYTES = 16
MAX_ADDRS = 64  # of a node
MAX_ADDR_CHARS = 64


class Target(NamedTuple):
    """A door to try: of which node, where."""

    node: int
    addr: str
    port: int


def candidates(nic: str) -> list[str]:
    """Addresses of this machine that others might know, the likeliest first. Raises LookupError.

    Of the interface that was asked for; else the one by which we were called over SSH comes first.
    """
    if nic:
        return [nics.get_address(nic)]
    called_by = [a for a in os.environ.get("SSH_CONNECTION", "").split()[2:3] if is_address(a)]
    return list(dict.fromkeys([*called_by, *nics.list_outside_addresses()]))[:MAX_ADDRS] or ["127.0.0.1"]


def check_addrs(told: Any) -> list[str]:
    """Return the addresses that a node tells of itself. Raises ValueError where they can't be that."""
    if not told:
        raise ValueError("a node has at least one address")
    if len(told) > MAX_ADDRS:
        raise ValueError(f"a node has at most {MAX_ADDRS} addresses")
    for addr in told:
        if not is_address(addr):
            raise ValueError(f"{str(addr)[:MAX_ADDR_CHARS]!r} is no address")
    return list(told)


def is_address(text: str) -> bool:
    """An sshd that serves a pipe in place of a connection (`docker exec -i NAME sshd -i`) says UNKNOWN."""
    with contextlib.suppress(OSError, TypeError):
        # As bytes: else it loads what names of other alphabets need.
        host = os.fsencode(text)
        return len(host) <= MAX_ADDR_CHARS and bool(
            socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
        )
    return False


def word(secret: bytes, node: int) -> bytes:
    """What the door of a node says."""
    return blake2b(b"pslaunch door of node %d" % node, key=secret, digest_size=PASS_BYTES).digest()


class Door:
    """Listens at every address and says to everyone which node this is; knows no more and hears nothing.

    Who came closes its connection first: the port is to be a program's at once, and what this side had closed
    would hold it for another minute against one that binds it without SO_REUSEADDR.
    """

    def __init__(self, loop: Loop, says: bytes, port: int = 0) -> None:
        """At this port, if it can be had; else at any."""
        listener = listen("", port)
        self._says = says
        self._callers: list[socket.socket] = []
        self.port = int(listener.getsockname()[1])
        self._listening = Listening(loop, listener, self._open)

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
    """A non-blocking listener at an address, "" for all of this machine's; at this port, or else at any."""
    at = _listen_at if addr else _listen_everywhere
    try:
        return at(addr, port)
    except OSError:
        return at(addr, 0)


def _listen_at(addr: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in addr else socket.AF_INET
    return _listen((addr, port), family, both=False)


def _listen_everywhere(_addr: str, port: int) -> socket.socket:
    """Of both families where there are both."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 may be switched off in the kernel
            return _listen(("::", port), socket.AF_INET6, both=True)
    return _listen(("", port), socket.AF_INET, both=False)


def _listen(at: tuple[str, int], family: int, *, both: bool) -> socket.socket:
    sock = socket.create_server(at, family=family, dualstack_ipv6=both, backlog=1024)
    sock.setblocking(False)
    return sock


def try_all(targets: Sequence[Target], secret: bytes, limit_s: float = TRY_S) -> list[Target]:
    """The targets whose door opened and said the right word, each tried for at most `limit_s`.

    Where the first of every node opens, hardly anybody needs the others: they get less time.
    """
    opened: list[Target] = []
    for at in range(0, len(targets), MAX_TRIES):
        opened += _try_some(targets[at : at + MAX_TRIES], secret, limit_s)
    return opened


def _try_some(targets: Sequence[Target], secret: bytes, limit_s: float) -> list[Target]:
    opened: list[Target] = []
    begin_s = time.monotonic()
    end_s = begin_s + limit_s
    likeliest = set({target.node: target for target in reversed(targets)}.values())
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        for target in targets:
            sock = stack.enter_context(_calling(target))
            selector.register(sock, selectors.EVENT_READ, (sock, target))
        while selector.get_map() and (left_s := end_s - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                sock, target = key.data
                selector.unregister(sock)
                with contextlib.suppress(OSError):
                    # Not in constant time: whoever is asked learns nothing from how long we compare.
                    if sock.recv(PASS_BYTES) == word(secret, target.node):
                        opened.append(target)
                        likeliest.discard(target)
            if not likeliest:
                now_s = time.monotonic()
                end_s = min(end_s, now_s + max(SETTLE_S, now_s - begin_s))
    return opened


def _calling(target: Target) -> socket.socket:
    family = socket.AF_INET6 if ":" in target.addr else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    with contextlib.suppress(OSError):  # in progress; what fails at once is found when it is read
        sock.connect((target.addr, target.port))
    return sock


# --- Who tries whom, and what follows from it. Pure. ---


def tries(nodes: int) -> dict[int, list[int]]:
    """Whose doors each node tries: all others', or among many those at distances 1, 2, 4, … of a ring."""
    if nodes <= ALL_PAIRS:
        return {i: [k for k in range(nodes) if k != i] for i in range(nodes)}
    steps = [1 << b for b in range((nodes - 1).bit_length())]
    return {i: sorted({(i + step) % nodes for step in steps} - {i}) for i in range(nodes)}


def choose(
    names: Sequence[str], known: Sequence[Sequence[str]], opened: Mapping[int, Sequence[tuple[int, str]]]
) -> list[str]:
    """For each node the first of its `known` addresses that all who tried it could open.

    opened: by node, the (node, address) pairs that it could open. Raises LookupError, which names every
    node that has no such address, and who could not reach it.
    """
    chosen, wrong = sort_out(names, known, opened)
    if wrong:
        raise LookupError("; ".join(f"{names[k]} {why}" for k, why in wrong.items()))
    return [chosen[k] for k in range(len(names))]


def sort_out(
    names: Sequence[str], known: Sequence[Sequence[str]], opened: Mapping[int, Sequence[tuple[int, str]]]
) -> tuple[dict[int, str], dict[int, str]]:
    """By node the address that all who tried it could open, or else, in words, who could not."""
    who_tried: dict[int, list[int]] = {i: [] for i in range(len(names))}
    for i, tried in tries(len(names)).items():
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
