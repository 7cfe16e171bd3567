"""The first words on a data-plane connection: both sides prove the job's secret, then compare numbers.

Both sides as machines that are fed with bytes, so that tests need no sockets; `greet` is the client's
over a blocking socket. The shards see a connection only after this. docs/protocol.md says the same.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from enum import IntEnum

MAGIC = b"PSHS"
VERSION = 1
HEAD = struct.Struct("<4sBBH")  # magic, version, kind, length of the body
MAX_BODY_BYTES = 4096
NONCE_BYTES = 32
MAC_BYTES = 32
TIMEOUT_S = 10.0  # from the first byte expected to the welcome
MAX_UNPROVEN = 64  # connections at once that have not proved themselves
FOREIGN = {b"PRI * HTTP/2.0": "gRPC", b"PRPC": "brpc"}  # how a Fleet program's own client begins


class Kind(IntEnum):
    """What a handshake message is."""

    NONCE = 1  # client: nonce
    CHALLENGE = 2  # server: nonce, MAC
    PROOF = 3  # client: MAC, hello as JSON
    WELCOME = 4  # server: MAC
    REFUSED = 5  # server: text


class Refused(RuntimeError):
    """The other side said no, or isn't what it should be; trying again is no use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """What a trainer says of itself and the job, as it sees it."""

    trainer_id: int
    num_gradient_servers: int
    ports_num: int
    ports_num_for_sparse: int
    incarnation: int  # 64 bits, drawn at random when the trainer starts
    epoch: int
    shard: int  # number of the port in its pserver, dense ports first

    def to_json(self) -> bytes:
        """As the wire has it."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Hello:
        """Raises ValueError unless it is an object of just these whole numbers, none negative."""
        found = json.loads(text)
        names = {f.name for f in fields(cls)}
        if not isinstance(found, dict) or set(found) != names:
            raise ValueError(f"a hello has {sorted(names)}")
        for name, value in found.items():
            if type(value) is not int or not 0 <= value < 2**64:
                raise ValueError(f"{name}={value!r} in a hello")
        return cls(**found)


def message(kind: Kind, body: bytes) -> bytes:
    """One handshake message; a body that is too long is cut off."""
    body = body[:MAX_BODY_BYTES]
    return HEAD.pack(MAGIC, VERSION, kind, len(body)) + body


def mac(secret: bytes, who: bytes, nonces: bytes, text: bytes = b"") -> bytes:
    """HMAC-SHA256 under the job's secret: who proves what to whom, so that no message serves twice."""
    return hmac.digest(secret, b"pslaunch data plane\0" + who + b"\0" + nonces + text, "sha256")


def take_message(buffer: bytes) -> tuple[Kind, bytes, int] | None:
    """Kind, body and length of the message at the start; None if it isn't whole. Raises Refused."""
    if not MAGIC.startswith(buffer[: len(MAGIC)]):
        raise Refused(f"not pslaunch's protocol: it begins with {buffer[:16]!r}")
    if len(buffer) < HEAD.size:
        return None
    magic, version, kind, length = HEAD.unpack_from(buffer)
    if magic != MAGIC:
        raise Refused(f"not pslaunch's protocol: it begins with {buffer[:16]!r}")
    if version != VERSION:
        raise Refused(
            f"handshake version {version} on one side, {VERSION} on the other: equal versions of pslaunch"
        )
    if length > MAX_BODY_BYTES or kind not in Kind.__members__.values():
        raise Refused(f"a handshake message of kind {kind} and {length} bytes")
    if len(buffer) < HEAD.size + length:
        return None
    return Kind(kind), buffer[HEAD.size : HEAD.size + length], HEAD.size + length


def foreign_protocol(begin: bytes) -> str:
    """The name of the protocol that begins so, if it is one that a Fleet program speaks; else ""."""
    for preface, name in FOREIGN.items():
        if begin.startswith(preface):
            return name
    return ""


def compare(theirs: Hello, ours: Hello, pserver: str) -> str:
    """What trainer and pserver disagree on, with both values and the option; "" if they agree.

    Of `ours` the trainer's own numbers (id, incarnation) don't count.
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
    if theirs.shard != ours.shard:
        return (
            f"{who} takes {pserver} for port number {theirs.shard} of its pserver, it is number {ours.shard}"
        )
    return ""


class ServerSide:
    """The pserver's side of one connection. Feed it; send what it returns; then look at `state`."""

    def __init__(self, secret: bytes, accept: Callable[[Hello], str]) -> None:
        """`accept` says "" or why the trainer, which has proved the secret, is refused."""
        self._secret, self._accept = secret, accept
        self._buffer = b""
        self._nonces = b""
        self.hello: Hello | None = None  # once welcome
        self.failure = ""  # once refused
        self.foreign = ""  # name of the foreign protocol that it speaks

    def feed(self, data: bytes) -> bytes:
        """What to send in answer to these bytes."""
        self._buffer += data
        try:
            return self._step()
        except (Refused, ValueError, RecursionError) as e:
            self.foreign = foreign_protocol(self._buffer)
            return self._refuse(str(e))

    def _refuse(self, why: str) -> bytes:
        self.failure = why
        return message(Kind.REFUSED, why.encode())

    def _step(self) -> bytes:
        taken = take_message(self._buffer)
        if taken is None:
            return b""
        kind, body, used = taken
        self._buffer = self._buffer[used:]
        if kind is Kind.NONCE and not self._nonces and len(body) == NONCE_BYTES:
            nonce = secrets.token_bytes(NONCE_BYTES)
            self._nonces = body + nonce
            return message(Kind.CHALLENGE, nonce + mac(self._secret, b"pserver", self._nonces))
        if kind is Kind.PROOF and self._nonces:
            return self._prove(body[:MAC_BYTES], body[MAC_BYTES:])
        raise Refused(f"an unexpected handshake message {kind.name}")

    def _prove(self, proof: bytes, text: bytes) -> bytes:
        if not hmac.compare_digest(proof, mac(self._secret, b"trainer", self._nonces, text)):
            raise Refused("the trainer's secret is not the pserver's (option --secret_file, on both sides)")
        hello = Hello.from_json(text)
        if why := self._accept(hello):
            raise Refused(why)
        self.hello = hello
        return message(Kind.WELCOME, mac(self._secret, b"welcome", self._nonces, text))


def _receive(sock: socket.socket, expected: Kind) -> bytes:
    buffer = b""
    while True:
        taken = take_message(buffer)
        if taken is not None:
            break
        room = HEAD.size if len(buffer) < HEAD.size else HEAD.size + HEAD.unpack_from(buffer)[3]
        data = sock.recv(room - len(buffer))  # never more: what follows is the shard's
        if not data:
            raise ConnectionError("the pserver closed the connection while it was greeted")
        buffer += data
    kind, body, _ = taken
    if kind is Kind.REFUSED:
        raise Refused(body.decode("utf-8", "replace"))
    if kind is not expected:
        raise Refused(f"the pserver answers {kind.name} in place of {expected.name}")
    return body


def greet(sock: socket.socket, secret: bytes, hello: Hello) -> None:
    """The trainer's side over a blocking socket with a time limit of its own.

    Raises Refused, or OSError (TimeoutError, ConnectionError) if it may be worth trying again.
    """
    nonce, text = secrets.token_bytes(NONCE_BYTES), hello.to_json()
    sock.sendall(message(Kind.NONCE, nonce))
    body = _receive(sock, Kind.CHALLENGE)
    nonces, proof = nonce + body[:NONCE_BYTES], body[NONCE_BYTES:]
    if not hmac.compare_digest(proof, mac(secret, b"pserver", nonces)):
        raise Refused("the pserver's secret is not this trainer's (option --secret_file, on both sides)")
    sock.sendall(message(Kind.PROOF, mac(secret, b"trainer", nonces, text) + text))
    proof = _receive(sock, Kind.WELCOME)
    if not hmac.compare_digest(proof, mac(secret, b"welcome", nonces, text)):
        raise Refused("the pserver's welcome is not of this job")
