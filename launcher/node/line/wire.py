"""The wire between head and agent, and head and observer: frames over any two descriptors.

A frame is a header of 5 bytes (body length u32, kind u8, little endian) and a body. Control is JSON, and sent
before bulk. Output that a slow reader can't take is left out and counted. Any byte is a sign of life.

Over TCP each frame has a MAC, but for the contents of files, which the manifest's hashes prove: there it
covers header, number and offset, and precedes the content.
"""

from __future__ import annotations

import json
import os
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Generic, NamedTuple, TypeVar, Union

from ... import __version__
from ..loop import Loop, Silence

if TYPE_CHECKING:
    from ..messages import HelloMsg
    from .trace import Note

WIRE_VERSION = 22
HEADER = struct.Struct("<IB")
MAX_CONTROL_BYTES = 16 * 1024 * 1024
MAX_WAITING_BYTES = 4 * MAX_CONTROL_BYTES  # of messages to a peer that does not read
MAX_OUTPUT_BYTES = 64 * 1024  # of a process, in one frame
MAX_DATA_BYTES = 256 * 1024  # of a file, in one frame
READ_BYTES = 256 * 1024  # in one round of the loop: perhaps as many lines, while others wait
MAX_BULK_BYTES = 8 * 1024 * 1024  # waiting to be sent; more is left out
MAX_BULK_LINES = 200_000  # of output among it, and pieces: the head takes 2 s for them
HEARTBEAT_S = 1.0
SILENCE = "no message for"  # with seconds: the reason of a line that was lost without a word
PEER_LOST_AFTER_S = 30.0  # of silence on a line between two agents
PEER_WORDS_S = 1.0  # to read the last messages of a side that reads no more

CONTROL, OUTPUT, HEARTBEAT, DATA = 1, 2, 3, 4
_PIECE_HEAD = struct.Struct("<IQ")  # number of the process or file, offset of the piece in its log or content
_DATA_HEAD_BYTES = HEADER.size + _PIECE_HEAD.size
# Bytes of a body by its kind, from and to.
_SIZES = {
    CONTROL: (0, MAX_CONTROL_BYTES),
    OUTPUT: (_PIECE_HEAD.size, _PIECE_HEAD.size + MAX_OUTPUT_BYTES),
    HEARTBEAT: (0, 0),
    DATA: (_PIECE_HEAD.size, _PIECE_HEAD.size + MAX_DATA_BYTES),
}

Message = dict[str, Any]  # received: has a type; messages.py lists the other keys
Sent = TypeVar("Sent", contravariant=True)  # the messages of one side of a line

# Errors of handling a message with missing or wrong values.
NONSENSE = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError
)  # fmt: skip


class WireError(Exception):
    """Bytes that are not of this protocol, or not of this version."""


class Output(NamedTuple):
    """A piece of a process's output, and its offset in the log."""

    process: int
    offset: int
    data: bytes


class Data(NamedTuple):
    """A piece of a dispatched file, and its offset there; it may continue into the next file."""

    file: int
    offset: int
    data: bytes | memoryview


Item = Union[Message, Output, Data]


class Seal:
    """MACs of one direction of a line: they reveal changed, missing, repeated and foreign frames."""

    mac_bytes = 16

    def __init__(self, key: bytes) -> None:
        import hmac  # which loads OpenSSL: only lines over TCP need it

        self._keyed, self._number, self._is_equal = hmac.new(key, digestmod="sha256"), 0, hmac.compare_digest

    def compute_mac(self, frame: bytes | bytearray) -> bytes:
        """Return the MAC of the next frame."""
        self._number += 1
        mac = self._keyed.copy()
        mac.update(struct.pack("<Q", self._number))
        mac.update(frame)
        return mac.digest()[: self.mac_bytes]

    def fits(self, frame: bytes | bytearray, mac: bytes | bytearray) -> bool:
        """Return True if this is the MAC of the next frame."""
        return self._is_equal(self.compute_mac(frame), mac)


Seals = tuple[Seal, Seal]  # for sending and receiving


class Line(NamedTuple):
    """Line to an agent, a head or an observer. The taker of the descriptors closes them."""

    read_fd: int
    write_fd: int
    diagnosis: Callable[[], str] = str  # returns the last words of the other end
    seals: Seals | None = None  # None: nobody else can reach it

    def close(self) -> None:
        """Close a line that nobody took; its agent then ends."""
        for fd in {self.read_fd, self.write_fd}:
            os.close(fd)

    def send(self, frame: bytes) -> None:
        """Send a frame, while nobody else uses the line. Raises OSError."""
        os.write(self.write_fd, frame + (self.seals[0].compute_mac(frame) if self.seals else b""))


BEAT = HEADER.pack(0, HEARTBEAT)


def encode_control(message: object) -> bytes:
    """Return the frame of a message; raises WireError above MAX_CONTROL_BYTES."""
    text = json.dumps(message, separators=(",", ":"), ensure_ascii=True).encode()
    if len(text) > MAX_CONTROL_BYTES:
        raise WireError(f"a message of {len(text)} bytes is over the limit of {MAX_CONTROL_BYTES}")
    return HEADER.pack(len(text), CONTROL) + text


def encode_head(piece: Output | Data) -> bytes:
    """Return the beginning of a frame, which the data of a piece follows, no more than its kind may have."""
    number, offset, data = piece
    kind = OUTPUT if isinstance(piece, Output) else DATA
    return HEADER.pack(_PIECE_HEAD.size + len(data), kind) + _PIECE_HEAD.pack(number, offset)


def make_hello() -> HelloMsg:
    return {"type": "hello", "wire": WIRE_VERSION, "version": __version__}


def check_hello(message: Message) -> None:
    """Raise WireError unless `message` is a hello of this wire version."""
    if message.get("type") != "hello":
        raise WireError(f"the first message is {message.get('type')!r}, not hello")
    if message.get("wire") != WIRE_VERSION:
        raise WireError(
            f"the other side speaks version {message.get('wire')} of the wire (pslaunch "
            f"{message.get('version')}), this side {WIRE_VERSION} (pslaunch {__version__}): they must match"
        )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


class Decoder:
    """Decoder of bytes in any pieces. Holds at most one frame."""

    def __init__(self, seal: Seal | None = None) -> None:
        self._seal, self._mac_bytes = seal, seal.mac_bytes if seal else 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Item]:
        """Return the items complete by now, in order; raises WireError on foreign bytes."""
        found: list[Item] = []
        self._buffer += data
        at = 0
        while at + (size := self._measure(at)) <= len(self._buffer):
            item = self._decode_item(self._buffer[at : at + size])
            if item is not None:
                found.append(item)
            at += size
        del self._buffer[:at]
        return found

    def _measure(self, at: int) -> int:
        """Return the bytes of the next frame, or of its header; raises WireError on foreign bytes."""
        if len(self._buffer) - at < HEADER.size:
            return HEADER.size
        length, kind = HEADER.unpack_from(self._buffer, at)
        least, most = _SIZES.get(kind, (0, -1))
        if not least <= length <= most:
            raise WireError(f"not a pslaunch peer; it sent {bytes(self._buffer[at : at + 60])!r}")
        return int(HEADER.size + length + self._mac_bytes)

    def _decode_item(self, frame: bytearray) -> Item | None:
        kind = HEADER.unpack_from(frame)[1]
        end = _DATA_HEAD_BYTES if kind == DATA else len(frame) - self._mac_bytes
        after = end + self._mac_bytes
        if self._seal and not self._seal.fits(frame[:end], frame[end:after]):
            raise WireError("a frame was changed on its way, or is not of this line")
        if kind == HEARTBEAT:
            return None
        if kind == CONTROL:
            return _decode_message(frame[HEADER.size : end])
        number, offset = _PIECE_HEAD.unpack_from(frame, HEADER.size)
        if kind == DATA:
            return Data(number, offset, memoryview(frame)[after:])
        return Output(number, offset, bytes(frame[_DATA_HEAD_BYTES:end]))


def _decode_message(text: bytearray) -> Message:
    try:
        message = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as e:
        raise WireError(f"a message is not JSON, perhaps of another version of pslaunch: {e}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise WireError("a message has no type")
    return message


class MessageLine(Generic[Sent]):
    """Line to one peer on a loop: sends and receives without blocking, keeps alive, notices loss.

    `on_message` gets each message after a valid hello, `on_output` each piece of output, `on_data` each piece
    of a file, `on_lost` a reason, once: the line was closed, was silent for `lost_after_s`, or sent nonsense.
    After that nothing is sent or received. The line owns its descriptors.
    """

    def __init__(
        self,
        loop: Loop,
        line: Line,
        *,
        lost_after_s: float,
        on_message: Callable[[Any], None],
        on_lost: Callable[[str], None],
        on_output: Callable[[Output], None] = lambda _piece: None,
        on_data: Callable[[Data], None] = lambda _piece: None,
        trace: Note | None = None,
    ) -> None:
        self._loop, (self._read_fd, self._write_fd, _, seals) = loop, line
        self.lost_after_s = lost_after_s
        self._on_message, self._on_lost = on_message, on_lost
        self._on_output, self._on_data = on_output, on_data
        self._seal = seals[0] if seals else None
        self.trace = trace
        self._decoder = Decoder(seals[1] if seals else None)
        self._greeted = False
        self.open = True
        self._deaf = False  # the peer reads no more
        self._sending = memoryview(b"")
        self._control: deque[bytes] = deque()
        # Frames, with what follows their MAC, and lines of output.
        self._bulk: deque[tuple[bytes, bytes | memoryview, int]] = deque()
        self._control_bytes = self._bulk_bytes = self._bulk_lines = 0
        self._wants_write = True
        self._last_sent_s = loop.now()
        self.silence = Silence(loop.now())
        for fd in {self._read_fd, self._write_fd}:
            os.set_blocking(fd, False)
        # Sent by the loop: no loss may be reported before the owner has this object.
        self._queue_control(encode_control(self._note("sent", make_hello())))
        self._watch()
        loop.call_after(HEARTBEAT_S, self._beat)

    # --- sending ---

    def send(self, message: Sent, *, in_order: bool = False) -> None:
        """Queue a message before all bulk, or with `in_order` after the queued bulk."""
        if not self.open or self._deaf:
            return
        frame = encode_control(self._note("sent", message))
        if in_order and self._bulk:
            self._queue_bulk(frame)
        else:
            self._queue_control(frame)
        self._write()
        if self._control_bytes > MAX_WAITING_BYTES:
            self._stop_writing("it does not read what is sent to it")

    def send_output(self, piece: Output) -> bool:
        """Queue a piece of output; return False where a slow reader makes us leave it out."""
        is_full = self._bulk_bytes > MAX_BULK_BYTES or self._bulk_lines > MAX_BULK_LINES
        if not self.open or self._deaf or is_full:
            return False
        self._queue_bulk(encode_head(piece) + piece.data, lines=max(1, piece.data.count(b"\n")))
        self._write()
        return True

    def send_data(self, piece: Data) -> None:
        """Queue a piece of a file, of which the peer has granted so many bytes."""
        if self.open and not self._deaf:
            self._queue_bulk(encode_head(piece), piece.data)
            self._write()

    def _queue_control(self, frame: bytes) -> None:
        self._control.append(frame)
        self._control_bytes += len(frame)

    def _queue_bulk(self, frame: bytes, rest: bytes | memoryview = b"", lines: int = 0) -> None:
        self._bulk.append((frame, rest, lines))
        self._bulk_bytes += len(frame) + len(rest)
        self._bulk_lines += lines

    @property
    def is_behind(self) -> bool:
        """True while output waits to be sent, and with it all that is sent in order."""
        return bool(self._bulk)

    @property
    def is_sealed(self) -> bool:
        """True over TCP: the peer has proved that it knows the job's secret."""
        return self._seal is not None

    @property
    def is_idle(self) -> bool:
        """True once everything queued has been sent, or never can be."""
        return not self.open or not (self._sending or self._control or self._bulk)

    def _take_next(self) -> bytes:
        if self._control:
            frame = self._control.popleft()
            self._control_bytes -= len(frame)
            return self._seal_frame(frame)
        if self._bulk:
            frame, rest, lines = self._bulk.popleft()
            self._bulk_bytes -= len(frame) + len(rest)
            self._bulk_lines -= lines
            return self._seal_frame(frame) + rest
        return b""

    def _seal_frame(self, frame: bytes) -> bytes:
        return frame + self._seal.compute_mac(frame) if self._seal else frame

    def _write(self) -> None:
        while self.open:
            if not self._sending:
                self._sending = memoryview(self._take_next())
                if not self._sending:
                    break
            try:
                sent = os.write(self._write_fd, self._sending)
            except BlockingIOError:
                break
            except OSError as e:
                self._stop_writing(f"the line was closed ({e.strerror})")
                return
            self._sending = self._sending[sent:]
            self._last_sent_s = self._loop.now()
        if self.open and self._wants_write != bool(self._sending):
            self._wants_write = bool(self._sending)
            self._watch()

    def _stop_writing(self, reason: str) -> None:
        """Send no more; lose the line after reading the last messages of the peer."""
        self._deaf = True
        self._control.clear()
        self._control_bytes = 0
        self._bulk.clear()
        self._sending = memoryview(b"")
        self._wants_write = False
        self._watch()
        self._loop.call_after(PEER_WORDS_S, lambda: self._lose(reason))

    def _watch(self) -> None:
        write = self._write if self._wants_write else None
        if self._read_fd == self._write_fd:
            self._loop.watch(self._read_fd, read=self._read, write=write)
        else:
            self._loop.watch(self._read_fd, read=self._read)
            self._loop.watch(self._write_fd, write=write)

    # --- receiving ---

    def _read(self) -> None:
        try:
            data = os.read(self._read_fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError as e:
            self._lose(f"the line was closed ({e.strerror})")
            return
        if not data:
            self._lose("the line was closed")
            return
        self.silence.hear(self._loop.now())
        try:
            for item in self._decoder.feed(data):
                if not self.open:
                    return
                self._take(item)
        except WireError as e:
            self._lose(str(e))

    def _take(self, item: Item) -> None:
        if not self._greeted:
            if isinstance(item, (Output, Data)):
                raise WireError("something came before the hello")
            check_hello(item)
            self._greeted = True
        try:
            if isinstance(item, Output):
                self._on_output(item)
            elif isinstance(item, Data):
                self._on_data(item)
            else:
                self._on_message(self._note("got", item))
        except NONSENSE as e:
            kind = repr(item["type"][:40]) if isinstance(item, dict) else "with a piece"
            raise WireError(f"the message {kind} can't be right: {type(e).__name__}: {e}") from e

    def _note(self, direction: str, message: Any) -> Any:
        if self.trace:
            self.trace(direction, message)
        return message

    def _beat(self) -> None:
        if not self.open:
            return
        now = self._loop.now()
        silent_s = self.silence.measure(now)
        if silent_s >= self.lost_after_s:
            self._lose(f"{SILENCE} {now - self.silence.heard_s:.0f} s")
            return
        if now - self._last_sent_s >= HEARTBEAT_S * 0.9 and not self._sending and not self._deaf:
            self._queue_control(BEAT)
            self._write()
        self._loop.call_after(min(HEARTBEAT_S, max(0.05, self.lost_after_s - silent_s)), self._beat)

    def _lose(self, reason: str) -> None:
        if self.open:
            self.close()
            if pause := self._loop.describe_pause(self.lost_after_s):
                reason += f"; this side {pause}"
            self._on_lost(reason)

    def close(self) -> None:
        """Close the descriptors. May be called twice."""
        if not self.open:
            return
        self.open = False
        self._control.clear()
        self._bulk.clear()
        self._sending = memoryview(b"")
        for fd in {self._read_fd, self._write_fd}:
            self._loop.watch(fd)
            os.close(fd)
