"""Handshake of a data-plane connection: both sides prove the job's secret, then compare numbers.

prove.py has the proofs; this module has the compared numbers. A shard gets the connection only
after the handshake. docs/protocol.md documents it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields

from ..shared import prove

PLANE = prove.Plane(
    b"pslaunch data plane", "pserver", "trainer", advice="option --secret_file, on both sides"
)
OBSERVER = b'{"observer": true}'  # in place of a hello: of one that trains nothing, and may ask for stats
FOREIGN = {b"PRI * HTTP/2.0": "gRPC", b"PRPC": "brpc"}  # first bytes of a Fleet program's own client


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """A trainer's description of itself and of the job, as the trainer sees it."""

    trainer_id: int
    num_gradient_servers: int
    ports_num: int
    ports_num_for_sparse: int
    incarnation: int  # 64 bits, drawn at random when the trainer starts
    epoch: int
    pserver: int  # index of this pserver in the trainer's list, from 0
    pservers: int  # length of that list
    shard: int  # index of the port in its pserver, dense ports first

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def decode(cls, text: bytes) -> Hello:
        """Parse the wire form. Raises ValueError unless it has exactly these whole numbers, none negative."""
        found = json.loads(text)
        names = {f.name for f in fields(cls)}
        if not isinstance(found, dict) or set(found) != names:
            raise ValueError(f"a hello must have exactly {sorted(names)}")
        for name, value in found.items():
            if type(value) is not int or not 0 <= value < 2**64:
                raise ValueError(f"hello: {name}={value!r}, expected a whole number below 2**64")
        return cls(**found)


def compare(theirs: Hello, ours: Hello, pserver: str, listing: str = "of another trainer") -> str:
    """Return the first difference between trainer and pserver, with both values and the option; "" if none.

    The trainer's own numbers (id, incarnation) in `ours` are ignored. `listing` names the owner of the list
    of pservers that gave `ours` its place.
    """
    who = f"trainer {theirs.trainer_id}"
    for name in ("num_gradient_servers", "ports_num", "ports_num_for_sparse"):
        their_value, our_value = getattr(theirs, name), getattr(ours, name)
        if their_value != our_value:
            return (
                f"{name} is {their_value} at {who} and {our_value} at the pserver {pserver} (option --{name})"
            )
    if theirs.epoch != ours.epoch:
        return f"{who} is of epoch {theirs.epoch} of the job, the pserver {pserver} of epoch {ours.epoch}"
    if theirs.trainer_id >= ours.num_gradient_servers:
        return (
            f"{who} is one too many: num_gradient_servers (number of trainers) is "
            f"{ours.num_gradient_servers} at the pserver {pserver}, ids begin at 0"
        )
    if (theirs.pserver, theirs.pservers) != (ours.pserver, ours.pservers):
        return (
            f"{pserver} is number {theirs.pserver} of {theirs.pservers} in the pservers of {who}, number "
            f"{ours.pserver} of {ours.pservers} in those {listing} (option pservers, in one order)"
        )
    if theirs.shard != ours.shard:
        return f"{who} expects port number {theirs.shard} of its pserver at {pserver}; it is {ours.shard}"
    return ""


def read_hello(text: bytes) -> Hello | None:
    """Return what a trainer has proved; None for an observer. Raises ValueError."""
    return None if text == OBSERVER else Hello.decode(text)


def make_side(secret: bytes, accept: Callable[[Hello], str], loaded: str = "") -> prove.Server:
    """Return the pserver's side of one connection.

    `accept` returns "", or the reason to refuse a trainer that has proved the secret. `loaded`: the digest of
    the file with this pserver's values, or "".
    """

    def check(text: bytes) -> str:
        hello = read_hello(text)
        return accept(hello) if hello else ""

    return prove.Server(PLANE, secret, check, loaded.encode())


def find_foreign(first: bytes) -> str:
    """Return the name of the foreign protocol that begins with these bytes, or ""."""
    return next((name for preface, name in FOREIGN.items() if first.startswith(preface)), "")


def greet(sock: socket.socket, secret: bytes, hello: Hello) -> str:
    """Do the trainer's side on a blocking socket; its timeout limits the whole handshake.

    Returns the digest of the file that the pserver has loaded, or "". Raises ProofError, or OSError
    (TimeoutError, ConnectionError) if a retry may help.
    """
    limit_s = sock.gettimeout() or prove.TIMEOUT_S
    _, loaded = prove.dial(sock, PLANE, secret, hello.encode(), time.monotonic() + limit_s)
    return loaded.decode("ascii", "replace")


def is_silent(address: tuple[str, int], secret: bytes, limit_s: float) -> bool:
    """Return True if the pserver accepts connections but answers nothing, as a stopped process does.

    A pserver that is gone is not silent: its connections break, which tells more.
    """
    try:
        with socket.create_connection(address, timeout=limit_s) as sock:
            sock.sendall(PLANE.knock(secret, os.urandom(prove.NONCE_BYTES)))
            sock.recv(1)
    except ConnectionError:
        return False
    except OSError:  # no answer in time, or no route
        return True
    return False
