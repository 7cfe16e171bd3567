"""The wire between head and agent, and head and observer: frames over any two descriptors.

A frame is a header of 6 bytes (body length u32, kind u8, flags u8, little endian) and a body, at most
64 KiB in all; pieces of files are longer. Control is JSON, split over several frames if longer, and sent
before bulk. Bulk that a slow reader can't take is left out and counted. Any byte is a sign of life.

Over TCP each frame has a MAC, but for the contents of files, which the manifest's hashes prove: there it
covers header, number and offset, and precedes the content.
"""

from __future__ import annotations

import json
import os
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Generic, NamedTuple, TypeVar, Union, cast

from ... import __version__
from ..loop import Loop
from ..silence import Silence

if TYPE_CHECKING:
    from ..messages import HelloMsg
    from .seal import Seal
    from .trace import Note

WIRE_VERSION = 16
HEADER = struct.Struct("<IBB")
MAX_FRAME_BYTES = 64 * 1024
MAX_BODY_BYTES = MAX_FRAME_BYTES - HEADER.size
MAX_CONTROL_BYTES = 16 * 1024 * 1024
MAX_DATA_BYTES = 256 * 1024  # of a file, in one frame
READ_BYTES = 256 * 1024  # in one round of the loop: perhaps as many lines, while others wait
MAX_BULK_BYTES = 8 * 1024 * 1024  # waiting to be sent; more is left out
MAX_BULK_LINES = 200_000  # of output among it, and pieces: the head takes 2 s for them
HEARTBEAT_S = 1.0
MAX_PARTS = 1024  # that the system writes at once
LAST_WORDS_S = 1.0  # to read the last messages of a side that reads no more

CONTROL, OUTPUT, HEARTBEAT, DATA = 1, 2, 3, 4
MORE = 1  # flag of a control frame: its message continues in the next one
_PIECE_HEAD = struct.Struct("<IQ")  # number of the process or file, offset of the piece in its log or content
MAX_OUTPUT_BYTES = MAX_BODY_BYTES - _PIECE_HEAD.size
_DATA_HEAD_BYTES = HEADER.size + _PIECE_HEAD.size

Message = dict[str, Any]  # received: has a type; messages.py lists the other keys
Sent = TypeVar("Sent", contravariant=True)  # the messages of one side of a line

# Errors of handling a message with missing or wrong values.
NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

_KINDS = frozenset({CONTROL, OUTPUT, HEARTBEAT, DATA})


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


def _make_frame(kind: int, body: bytes, flags: int = 0, head: bytes = b"") -> bytes:
    """Return a frame; `head` is the first part of its body, so that a large rest is copied once."""
    return HEADER.pack(len(head) + len(body), kind, flags) + head + body


BEAT = _make_frame(HEARTBEAT, b"")


def encode_control(message: object) -> list[bytes]:
    """Return the frames of one message; raises WireError above MAX_CONTROL_BYTES."""
    text = json.dumps(message, separators=(",", ":"), ensure_ascii=True).encode()
    if len(text) > MAX_CONTROL_BYTES:
        raise WireError(f"a message of {len(text)} bytes is over the limit of {MAX_CONTROL_BYTES}")
    pieces = [text[i : i + MAX_BODY_BYTES] for i in range(0, len(text), MAX_BODY_BYTES)]
    return [_make_frame(CONTROL, piece, MORE if i + 1 < len(pieces) else 0) for i, piece in enumerate(pieces)]


def encode_output(piece: Output) -> bytes:
    """Return the frame of a piece of at most MAX_OUTPUT_BYTES."""
    return _make_frame(OUTPUT, piece.data, head=_PIECE_HEAD.pack(piece.process, piece.offset))


def encode_data_head(piece: Data) -> bytes:
    """Return the beginning of a frame, which the data of a piece of at most MAX_DATA_BYTES follows."""
    header = HEADER.pack(_PIECE_HEAD.size + len(piece.data), DATA, 0)
    return header + _PIECE_HEAD.pack(piece.file, piece.offset)


def make_hello() -> HelloMsg:
    """Return the first message of both directions."""
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


def _cut(parts: list[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    """Return the parts that follow the first `sent` bytes."""
    for i, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[i + 1 :]]
        sent -= len(part)
    return []


class Decoder:
    """Decoder of bytes in any pieces. Holds at most one frame and one unfinished message."""

    def __init__(self, seal: Seal | None = None) -> None:
        self._seal, self._mac_bytes = seal, seal.mac_bytes if seal else 0
        self._frame = bytearray()  # its beginning
        self._message = bytearray()

    def feed(self, data: bytes) -> list[Item]:
        """Return the items complete by now, in order; raises WireError on foreign bytes."""
        found: list[Item] = []
        rest = memoryview(data)
        while rest:  # a frame that came at once is not copied
            lacking = self._measure(self._frame or rest) - len(self._frame)
            frame, rest = rest[:lacking], rest[lacking:]
            if self._frame or len(frame) < lacking:
                self._frame += frame
                if len(self._frame) < self._measure(self._frame):
                    continue
                frame, self._frame = memoryview(self._frame), bytearray()
            item = self._decode_item(frame)
            if item is not None:
                found.append(item)
        return found

    def _measure(self, data: memoryview | bytearray) -> int:
        """Return the bytes of a frame, or of its header; raises WireError on foreign bytes."""
        if len(data) < HEADER.size:
            return HEADER.size
        length, kind, flags = cast("tuple[int, int, int]", HEADER.unpack_from(data))
        most = _PIECE_HEAD.size + MAX_DATA_BYTES if kind == DATA else MAX_BODY_BYTES
        if length > most or kind not in _KINDS or flags & ~MORE:
            raise WireError(f"not a pslaunch peer; it sent {bytes(data[:60])!r}")
        if kind in (OUTPUT, DATA) and length < _PIECE_HEAD.size:
            raise WireError(f"a frame of kind {kind} and {length} bytes")
        return HEADER.size + length + self._mac_bytes

    def _decode_item(self, frame: memoryview) -> Item | None:
        _, kind, flags = HEADER.unpack_from(frame)
        end = _DATA_HEAD_BYTES if kind == DATA else len(frame) - self._mac_bytes
        after = end + self._mac_bytes
        if self._seal and not self._seal.fits(frame[:end], bytes(frame[end:after])):
            raise WireError("a frame was changed on its way, or is not of this line")
        body = frame[HEADER.size : end]
        if kind == HEARTBEAT:
            return None
        if kind in (OUTPUT, DATA):
            number, offset = _PIECE_HEAD.unpack_from(body)
            if kind == DATA:
                return Data(number, offset, frame[after:])
            return Output(number, offset, bytes(body[_PIECE_HEAD.size :]))
        self._message += body
        if len(self._message) > MAX_CONTROL_BYTES:
            raise WireError(f"a message is over the limit of {MAX_CONTROL_BYTES} bytes")
        if flags & MORE:
            return None
        text, self._message = bytes(self._message), bytearray()
        try:
            message = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as e:
            raise WireError(f"a message is not JSON: {e}") from None
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
        read_fd: int,
        write_fd: int,
        *,
        lost_after_s: float,
        on_message: Callable[[Any], None],
        on_lost: Callable[[str], None],
        on_output: Callable[[Output], None] = lambda _piece: None,
        on_data: Callable[[Data], None] = lambda _piece: None,
        seals: tuple[Seal, Seal] | None = None,
        trace: Note | None = None,
    ) -> None:
        """`seals`: for sending and receiving, over TCP."""
        self._loop, self._read_fd, self._write_fd = loop, read_fd, write_fd
        self.lost_after_s = lost_after_s
        self._on_message, self._on_lost = on_message, on_lost
        self._on_output, self._on_data = on_output, on_data
        self._seal = seals[0] if seals else None
        self.trace = trace
        self._decoder = Decoder(seals[1] if seals else None)
        self._greeted = False
        self.open = True
        self._deaf = False  # the peer reads no more
        self._sending: list[bytes | memoryview] = []
        # Frames of one message stay together.
        self._control: deque[list[bytes]] = deque()
        self._bulk: deque[tuple[list[bytes], int]] = deque()  # with its lines of output
        self._bulk_bytes = self._bulk_lines = 0
        self._source: Callable[[], list[Data]] = list  # asked for pieces when nothing else waits
        self._wants_write = True
        self._last_sent_s = loop.now()
        self.silence = Silence(loop.now())
        for fd in {read_fd, write_fd}:
            os.set_blocking(fd, False)
        # Sent by the loop: no loss may be reported before the owner has this object.
        self._control.append(encode_control(self._note("sent", make_hello())))
        self._watch()
        loop.call_after(HEARTBEAT_S, self._beat)

    # --- sending ---

    def send(self, message: Sent, *, in_order: bool = False) -> None:
        """Queue a message before all bulk, or with `in_order` after the queued bulk."""
        if not self.open or self._deaf:
            return
        frames = encode_control(self._note("sent", message))
        if in_order and self._bulk:
            self._queue_bulk(frames)
        else:
            self._control.append(frames)
        self._write()

    def send_output(self, piece: Output) -> bool:
        """Queue a piece of output; return False where a slow reader makes us leave it out."""
        is_full = self._bulk_bytes > MAX_BULK_BYTES or self._bulk_lines > MAX_BULK_LINES
        if not self.open or self._deaf or is_full:
            return False
        self._queue_bulk([encode_output(piece)], max(1, piece.data.count(b"\n")))
        self._write()
        return True

    def _queue_bulk(self, frames: list[bytes], lines: int = 0) -> None:
        self._bulk.append((frames, lines))
        self._bulk_bytes += sum(map(len, frames))
        self._bulk_lines += lines

    def draw(self, source: Callable[[], list[Data]]) -> None:
        """Send pieces of `source` whenever nothing else waits, until it returns none."""
        self._source = source
        self._write()

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

    def _take_next(self) -> list[bytes | memoryview]:
        """Return the next bytes to send, in parts."""
        data: list[bytes | memoryview] = []
        if self._control:
            frames = self._control.popleft()
        elif self._bulk:
            frames, lines = self._bulk.popleft()
            self._bulk_bytes -= sum(map(len, frames))
            self._bulk_lines -= lines
        else:
            pieces = self._source()
            frames, data = list(map(encode_data_head, pieces)), [piece.data for piece in pieces]
        if self._seal:
            frames = [frame + self._seal.compute_mac(frame) for frame in frames]
        return [part for both in zip(frames, data) for part in both] if data else [*frames]

    def _write(self) -> None:
        while self.open:
            if not self._sending:
                self._sending = self._take_next()
                if not self._sending:
                    break
            try:
                sent = os.writev(self._write_fd, self._sending[:MAX_PARTS])
            except BlockingIOError:
                break
            except OSError as e:
                self._stop_writing(f"the line was closed ({e.strerror})")
                return
            self._sending = _cut(self._sending, sent)
            self._last_sent_s = self._loop.now()
        if self.open and self._wants_write != bool(self._sending):
            self._wants_write = bool(self._sending)
            self._watch()

    def _stop_writing(self, reason: str) -> None:
        """Send no more; lose the line after reading the last messages of the peer."""
        self._deaf = True
        self._control.clear()
        self._bulk.clear()
        self._sending = []
        self._wants_write = False
        self._watch()
        self._loop.call_after(LAST_WORDS_S, lambda: self._lose(reason))

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
        if isinstance(item, Output):
            self._on_output(item)
        elif isinstance(item, Data):
            self._on_data(item)
        else:
            self._tell(item)

    def _tell(self, message: Message) -> None:
        """Pass a message on; raise WireError where a value in it is missing or wrong."""
        try:
            self._on_message(self._note("got", message))
        except NONSENSE as e:
            kind = str(message["type"])[:40]
            raise WireError(f"the message {kind!r} can't be right: {type(e).__name__}: {e}") from e

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
            self._lose(f"no message for {now - self.silence.heard_s:.0f} s")
            return
        if now - self._last_sent_s >= HEARTBEAT_S * 0.9 and not self._sending and not self._deaf:
            self._control.append([BEAT])
            self._write()
        self._loop.call_after(min(HEARTBEAT_S, max(0.05, self.lost_after_s - silent_s)), self._beat)

    def _lose(self, reason: str) -> None:
        if self.open:
            self.close()
            pause_s = self._loop.get_pause_s(self.lost_after_s)
            if pause_s >= self.lost_after_s / 2:  # the peer may have given us up meanwhile
                reason += f"; this side did not run for {pause_s:.0f} s (stopped, or the machine asleep?)"
            self._on_lost(reason)

    def close(self) -> None:
        """Close the descriptors. May be called twice."""
        if not self.open:
            return
        self.open = False
        self._control.clear()
        self._bulk.clear()
        self._sending = []
        for fd in {self._read_fd, self._write_fd}:
            self._loop.watch(fd)
            os.close(fd)
