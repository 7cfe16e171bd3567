"""Handshake: both sides of a connection prove that they know the job's secret, before anything else.

The same on the data plane (handshake.py) and between head and agents: four messages, each proof under
a label with its purpose and its sender. Standard library only, Python 3.9 or later, so that it
can travel to any node. Both sides as state machines or on a blocking socket; see docs/protocol.md.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import time
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

MAGIC = b"PSHS"
VERSION = 5
HEAD = struct.Struct("<4sBBH")  # magic, version, kind, length of the body
MAX_BODY_BYTES = 4096
NONCE_BYTES = 32
MAC_BYTES = 32
TIMEOUT_S = 10.0  # from the first expected byte to the welcome
SUM_UP_S = 60.0
IN_FULL = 20  # reports on one address in full within this time
ADDRESSES = 100  # addresses counted separately within it


class MessageKind(IntEnum):
    NONCE = 1  # client: nonce, MAC
    CHALLENGE = 2  # server: nonce, MAC
    PROOF = 3  # client: MAC, text of the plane
    WELCOME = 4  # server: MAC, text of the plane
    REFUSED = 5  # server: text


class ProofError(RuntimeError):
    """The other side refused, or is not of this job; a retry does not help."""


class Plane(NamedTuple):
    """Purpose of a connection: its label in every proof, and the names of its two sides."""

    label: bytes
    server: str
    client: str
    advice: str = ""  # advice if the secrets differ

    def compute_mac(self, secret: bytes, who: bytes, nonces: bytes, text: bytes = b"") -> bytes:
        """Return the HMAC-SHA256 under the secret: it names prover and purpose, so it is valid only once."""
        return hmac.digest(secret, self.label + b"\0" + who + b"\0" + nonces + text, "sha256")

    def knock(self, secret: bytes, nonce: bytes) -> bytes:
        """Return the first message, which shows knowledge of the secret before the server keeps any state."""
        return encode_message(MessageKind.NONCE, nonce + self.compute_mac(secret, b"knock", nonce))

    def describe_difference(self, whose: str, other: str) -> str:
        """Return the message for different secrets."""
        return f"the {whose}'s secret is not the {other}'s" + (f" ({self.advice})" if self.advice else "")


def encode_message(kind: MessageKind, body: bytes) -> bytes:
    """Return one message; a body that is too long is cut off."""
    body = body[:MAX_BODY_BYTES]
    return HEAD.pack(MAGIC, VERSION, kind, len(body)) + body


def take_message(buffer: bytes) -> tuple[MessageKind, bytes, int] | None:
    """Return kind, body and length of the first message; None if it is incomplete. Raises ProofError."""
    if not MAGIC.startswith(buffer[: len(MAGIC)]):
        raise ProofError(f"not pslaunch's protocol: first bytes {buffer[:16]!r}")
    if len(buffer) < HEAD.size:
        return None
    _, version, kind, length = HEAD.unpack_from(buffer)
    if version != VERSION:
        raise ProofError(
            f"handshake version {version} on one side, {VERSION} on the other; use equal versions of pslaunch"
        )
    if length > MAX_BODY_BYTES or kind not in MessageKind.__members__.values():
        raise ProofError(f"a handshake message of kind {kind} and {length} bytes")
    if len(buffer) < HEAD.size + length:
        return None
    return MessageKind(kind), buffer[HEAD.size : HEAD.size + length], HEAD.size + length


class Refusals:
    """Limits reports on unproven peers: the first of each address in full, the others as a count.

    The output stays small, however many there are.
    """

    def __init__(self) -> None:
        self._of: dict[str, tuple[float, int]] = {}  # address: since when, number

    def admit(self, host: str, now_s: float) -> bool:
        """Count a refusal; return True if it is to be reported in full."""
        if host not in self._of and len(self._of) >= ADDRESSES:
            host = "other addresses"
        since_s, count = self._of.get(host, (now_s, 0))
        self._of[host] = since_s, count + 1
        return count < IN_FULL

    def collect_sums(self, now_s: float) -> list[str]:
        """Return a line per address with unreported refusals whose minute has passed. Call it regularly."""
        over = [host for host, (since_s, _) in self._of.items() if now_s >= since_s + SUM_UP_S]
        counts = [(host, self._of.pop(host)[1] - IN_FULL) for host in over]
        return [f"... and {n} more from {host} in the last minute" for host, n in counts if n > 0]


class Server:
    """The side that accepts. Feed it bytes, send the returned bytes, then read `proved` and `failure`."""

    def __init__(
        self, plane: Plane, secret: bytes, accept: Callable[[bytes], str], welcome: bytes = b""
    ) -> None:
        """`accept` gets the client's proved text, and returns "" or the reason of a refusal.

        A client that is not refused gets the text `welcome`.
        """
        self._plane, self._secret, self._accept, self._welcome = plane, secret, accept, welcome
        self.buffer = b""  # received, not yet processed
        self.nonces = b""  # set once the client has shown the secret; its message may still be a replay
        self.text = b""  # of the client, once it has proved the secret
        self.proved = False
        self.failure = ""  # set once refused

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to send in answer."""
        self.buffer += data
        answer = b""
        try:
            while not self.proved and (more := self._step()):
                answer += more
        except (ProofError, ValueError, RecursionError) as e:
            self.failure = str(e)
            answer += encode_message(MessageKind.REFUSED, self.failure.encode())
        return answer

    def _step(self) -> bytes:
        taken = take_message(self.buffer)
        if taken is None:
            return b""
        kind, body, used = taken
        self.buffer = self.buffer[used:]
        if kind is MessageKind.NONCE and not self.nonces and len(body) == NONCE_BYTES + MAC_BYTES:
            plane, theirs, nonce = self._plane, body[:NONCE_BYTES], os.urandom(NONCE_BYTES)
            if not hmac.compare_digest(body[NONCE_BYTES:], plane.compute_mac(self._secret, b"knock", theirs)):
                raise ProofError(plane.describe_difference(plane.client, plane.server))
            self.nonces = theirs + nonce
            return encode_message(MessageKind.CHALLENGE, nonce + self._compute_mac(plane.server.encode()))
        if kind is MessageKind.PROOF and self.nonces and not self.proved:
            return self._prove(body[:MAC_BYTES], body[MAC_BYTES:])
        raise ProofError(f"unexpected handshake message {kind.name}")

    def _prove(self, proof: bytes, text: bytes) -> bytes:
        plane = self._plane
        if not hmac.compare_digest(proof, self._compute_mac(plane.client.encode(), text)):
            raise ProofError(plane.describe_difference(plane.client, plane.server))
        if why := self._accept(text):
            raise ProofError(why)
        self.text, self.proved = text, True
        proof = self._compute_mac(b"welcome", text + self._welcome)
        return encode_message(MessageKind.WELCOME, proof + self._welcome)

    def _compute_mac(self, who: bytes, text: bytes = b"") -> bytes:
        return self._plane.compute_mac(self._secret, who, self.nonces, text)


def _wait(sock: socket.socket, end_s: float) -> None:
    """Set the socket's timeout to the time left. Raises TimeoutError."""
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    sock.settimeout(left_s)


def _receive(sock: socket.socket, plane: Plane, expected: MessageKind, end_s: float) -> bytes:
    buffer = b""
    while True:
        taken = take_message(buffer)
        if taken is not None:
            break
        room = HEAD.size if len(buffer) < HEAD.size else HEAD.size + HEAD.unpack_from(buffer)[3]
        _wait(sock, end_s)
        data = sock.recv(room - len(buffer))  # never more: what follows does not belong to the handshake
        if not data:
            raise ConnectionError(f"the {plane.server} closed the connection during the handshake")
        buffer += data
    kind, body, _ = taken
    if kind is MessageKind.REFUSED:
        raise ProofError(body.decode("utf-8", "replace"))
    if kind is not expected:
        raise ProofError(f"the {plane.server} answered {kind.name}, expected {expected.name}")
    return body


def dial(sock: socket.socket, plane: Plane, secret: bytes, text: bytes, end_s: float) -> tuple[bytes, bytes]:
    """Do the dialling side on a blocking socket, until `end_s` by the monotonic clock.

    Returns both nonces, and the server's text.

    Changes the socket's timeout. Raises ProofError, or OSError (TimeoutError, ConnectionError) if a retry
    may help.
    """
    if len(text) > MAX_BODY_BYTES - MAC_BYTES:
        raise ProofError(f"{len(text)} bytes to prove; {MAX_BODY_BYTES - MAC_BYTES} at most")
    nonce = os.urandom(NONCE_BYTES)
    _wait(sock, end_s)
    sock.sendall(plane.knock(secret, nonce))
    body = _receive(sock, plane, MessageKind.CHALLENGE, end_s)
    nonces, proof = nonce + body[:NONCE_BYTES], body[NONCE_BYTES:]
    if not hmac.compare_digest(proof, plane.compute_mac(secret, plane.server.encode(), nonces)):
        raise ProofError(plane.describe_difference(plane.server, plane.client))
    _wait(sock, end_s)
    proof = plane.compute_mac(secret, plane.client.encode(), nonces, text)
    sock.sendall(encode_message(MessageKind.PROOF, proof + text))
    body = _receive(sock, plane, MessageKind.WELCOME, end_s)
    proof, welcome = body[:MAC_BYTES], body[MAC_BYTES:]
    if not hmac.compare_digest(proof, plane.compute_mac(secret, b"welcome", nonces, text + welcome)):
        raise ProofError(f"the {plane.server} belongs to another job")
    return nonces, welcome
