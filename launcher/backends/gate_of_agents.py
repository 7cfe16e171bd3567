"""The gate for agents that a carrier has started: hands out their zip, and admits those of the job."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..errors import PreflightError
from ..node.codes import Refusal
from ..node.job import Node
from ..node.line import wire
from ..node.line.gate import Gate
from ..node.line.reach import check_addrs, list_candidates
from ..node.loop import Loop
from ..options.hosts import NAME
from ..options.options import DEFAULT
from ..ship.find_python import make_search
from ..ship.zipapp import make_zipapp
from .lines import Line

MAX_SHOWN: Final = 64  # characters of a host name that is none

# Fetches the zip of all that runs on nodes, keeps it in memory, and executes Python on it.
_LOADER: Final = """
import os, socket, sys, time
from hashlib import sha256
def fetch(addrs, port, request, digest, limit_s):
    end_s = time.time() + limit_s
    while True:
        why = []
        for addr in addrs:
            try:
                with socket.create_connection((addr, port), 5) as s:
                    s.sendall(request)
                    data = b"".join(iter(lambda: s.recv(1 << 20), b""))
                if sha256(data).hexdigest() == digest:
                    return data
                why.append("another content than was offered")
            except OSError as e:
                why.append(e)
        if time.time() > end_s or all(isinstance(e, ConnectionRefusedError) for e in why):
            raise SystemExit("pslaunch: %s can't reach the launcher at port %d of %s" % (
                socket.gethostname(), port, ", ".join("%s (%s)" % pair for pair in zip(addrs, why))))
        time.sleep(0.2)
def run(addrs, port, request, digest, limit_s, argv):
    data = memoryview(fetch(addrs, port, request, digest, limit_s))
    fd = os.memfd_create("pslaunch", 0)
    while data:
        data = data[os.write(fd, data):]
    os.execv(sys.executable, [sys.executable, "-I", "-S", "/proc/self/fd/%d" % fd, *argv])
"""


class HeadAddress(NamedTuple):
    """A head on a node, for later shells."""

    node: str  # its name
    addrs: tuple[str, ...]
    port: int
    secret_file: str


class CarriedAgents(NamedTuple):
    """The agents of a carrier, and what they need to begin."""

    ranks: int  # processes that the carrier starts
    node: Node  # template of all nodes: folders on them, `dispatched`
    nic: str = ""  # of the launcher and the nodes, as in Plan
    port: int = 0  # of the gate, past the pservers' ports; 0: any
    agent_python: str | None = None  # its path; None: search
    connect_timeout_s: float = DEFAULT["connect_timeout"]
    head: HeadAddress | None = None  # of a running job, if it is on a node


@contextlib.contextmanager
def open_gate(
    loop: Loop, agents: CarriedAgents, secret: bytes, came: list[Arrival], refused: list[str]
) -> Iterator[Offer]:
    """Listen for agents, which are added to `came`, and offer them the zip."""

    def check(text: bytes) -> str:
        return _check_arrival(text, {rank for one in came for rank in one.trainers}, agents.ranks)

    def admit(text: bytes, line: Line) -> None:
        came.append(Arrival(json.loads(text), line))

    try:
        addrs = list_candidates(agents.nic)
    except Refusal as e:
        raise PreflightError(f"the launcher's machine: {e}") from None
    app = make_zipapp()
    digest = hashlib.sha256(app).hexdigest()
    request = f"pslaunch zip {digest}\n".encode()
    gate = Gate(
        loop,
        "",
        secret,
        check=check,
        admit=admit,
        note_refusal=refused.append,
        port=agents.port,
        handout=(request, app),
    )
    try:
        yield Offer(addrs, gate.port, request, digest)
    finally:
        gate.close()


class Offer(NamedTuple):
    """Address of the gate, and the zip that it hands out."""

    addrs: list[str]
    port: int
    request: bytes
    digest: str

    def make_program(self, argv: Sequence[str], agents: CarriedAgents) -> list[str]:
        """Return the words by which the carrier runs a mode of `pslaunch.node`."""
        where = f"{self.addrs!a}, {self.port}, {self.request!a}, {self.digest!a}, {agents.connect_timeout_s}"
        return ["/bin/sh", "-c", make_search(f"{_LOADER}run({where}, {list(argv)!a})", agents.agent_python)]


class Arrival:
    """An agent that has proved the secret: its host and ranks, and its line."""

    def __init__(self, told: Mapping[str, Any], line: Line) -> None:
        self.host = str(told["host"])
        self.trainers = unpack_ranks(told["trainers"])
        self._own = frozenset(map(str, told["own"]))
        self.line = line

    def has_name(self, name: str) -> bool:
        """Return True if this is the name, or an address, of its host."""
        if name.partition(".")[0] == self.host.partition(".")[0]:
            return True
        found = _resolve(name)
        looped = any(addr.startswith("127.") or addr == "::1" for addr in found)
        return bool(found & self._own) or (looped and self.host == socket.gethostname())


@functools.cache
def _resolve(name: str) -> frozenset[str]:
    """Return the addresses of a host, none where only ssh knows it."""
    with contextlib.suppress(OSError, UnicodeError):
        return frozenset(str(info[4][0]) for info in socket.getaddrinfo(name, None))
    return frozenset()


def unpack_ranks(packed: str) -> tuple[int, ...]:
    """Return the ranks in `brought.pack_ranks`, in order. Raises ValueError, TypeError."""
    bits = f"{int(packed, 16):b}"[::-1]
    return tuple(rank for rank, bit in enumerate(bits) if bit == "1")


def _check_arrival(text: bytes, known: set[int], count: int) -> str:
    """Return why an agent is refused, or "". count: of all ranks; known: those that have come."""
    try:
        told = json.loads(text)
        ranks = set(unpack_ranks(told["trainers"]))
        check_addrs(told["own"])
        if not NAME.fullmatch(told["host"]):  # which the carrier and ssh may get
            return f"{str(told['host'])[:MAX_SHOWN]!r} is not a host name"
    except wire.NONSENSE:
        return "its message lacks ranks, host or addresses"
    expected = ranks and not ranks & known and max(ranks) < count
    return "" if expected else "its ranks are not among those expected"
