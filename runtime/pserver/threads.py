"""A shard of a pserver: the thread that runs the compiled core (csrc/shard/ps_shard.h), and its pipes.

A second thread writes what the shard sends of its cuts to files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from .. import _core
from ..client.control import MESSAGES
from ..files.manifest import MANIFEST
from ..files.objects import SetError
from ..files.saving import Entry, File, Header, prepare_folder
from ..files.sets import Found, Share, read_layout
from .pserver_options import Options

EVENT = struct.Struct("<IIQ232s")  # ps_event
Event = tuple[int, int, int, str]  # kind, trainer, number, text
MAIL = struct.Struct("=iIQ")  # ps_mail
MAX_ERROR = 900  # bytes of an error in an answer, which has a limit
STOP, SAVE = -1, 2**32 - 1  # a mail that stops the shard, which saves before if it has PS_MAIL_SAVE
CONNECTED, GONE, FINISHED, STALLED, RESUMED, ERROR, STATS, DROPPED, CUT = range(1, 10)
RECORD, BEGIN = struct.Struct("=I"), struct.Struct("=IQ")  # on the pipe for cuts: ps_mail.h
WHOLE, LOST, BEGINS = 0, 2**32 - 1, 2**32 - 2
PIPE_BYTES = 1 << 20


def read_cut(pipe: IO[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a cut's body. Raises EOFError if the shard could not send all of it."""
    while len(head := pipe.read(RECORD.size)) == RECORD.size:
        (n,) = RECORD.unpack(head)
        if n == WHOLE:
            return
        if n == LOST:
            raise EOFError("memory did not suffice, or a newer cut has begun")
        yield pipe.read(n)
    raise EOFError("the shard has ended")  # perhaps within a record


@dataclass(frozen=True, slots=True)
class Loaded:
    """A set with which a pserver begins, in place of trainer 0's values."""

    shares: Sequence[Share]  # of each port
    place: tuple[int, int]  # index in the list of pservers, and its length
    digest: str  # of the set


class Shard:
    """A shard's threads and pipes."""

    def __init__(
        self,
        number: int,
        options: Options,
        stall_after_s: float,
        share: Share | None,
        make_header: Callable[[int, str], Header],
    ) -> None:
        """`share`: values for its objects. make_header(number, save): of its part in a save on request."""
        mail_out, self._mail = os.pipe()
        self.events, event_in = os.pipe()
        cut_out, cut_in = os.pipe()
        for fd in (self.events, event_in, cut_in):
            os.set_blocking(fd, False)
        with contextlib.suppress(OSError):  # the user's pipes may have taken all that is allowed
            fcntl.fcntl(cut_in, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.failure: BaseException | None = None
        self.parts: dict[int, Entry] = {}  # by step, before the event CUT
        self._file: File | None = None
        self._options, self._share, self._number, self._make_header = options, share, number, make_header
        self._older: list[Path] = []  # its part in the last save on request
        self._pipes = (mail_out, self._mail, self.events)
        writer = threading.Thread(
            target=self._write_cuts, args=(cut_out, event_in), name=f"cuts-{number}", daemon=True
        )

        def run() -> None:
            try:
                trainers, epoch = options.num_gradient_servers, options.epoch
                own = self._save, self._find, self._answer
                _core.run_shard(trainers, epoch, mail_out, event_in, stall_after_s, *own, cut_in)
                if self._file is not None:
                    self._file.seal()
            except BaseException as e:
                self.failure = self.failure or e
            finally:
                os.close(cut_in)
                writer.join()
                os.close(event_in)  # the end of the events

        writer.start()
        self._thread = threading.Thread(target=run, name=f"shard-{number}", daemon=True)
        self._thread.start()

    def deliver(self, sock: socket.socket, trainer: int, incarnation: int) -> None:
        """Hand a connection over to the shard, which owns it from here."""
        os.write(self._mail, MAIL.pack(sock.detach(), trainer, incarnation))

    def take_events(self) -> list[Event]:
        """Return the new events."""
        try:
            data = os.read(self.events, 64 * EVENT.size)
        except BlockingIOError:
            return []
        return self._parse_events(data)

    @staticmethod
    def _parse_events(data: bytes) -> list[Event]:
        records = EVENT.iter_unpack(data[: len(data) // EVENT.size * EVENT.size])
        return [(kind, t, a, text.split(b"\0")[0].decode("utf-8", "replace")) for kind, t, a, text in records]

    def stop(self, file: File | None = None) -> None:
        """End the thread once it has sent its answers; it first saves to the borrowed file."""
        self._file = file
        os.write(self._mail, MAIL.pack(STOP, SAVE if file else 0, 0))

    # What the core calls, in the shard's thread.

    def _save(self, piece: memoryview) -> None:
        assert self._file is not None  # as stop() or SAVE asked for it
        self._file.append(piece)

    def _write_cuts(self, cut_out: int, event_in: int) -> None:
        """Write each cut to its file."""
        with open(cut_out, "rb", buffering=PIPE_BYTES) as pipe:
            while len(head := pipe.read(BEGIN.size)) == BEGIN.size:
                begins, step = BEGIN.unpack(head)
                assert begins == BEGINS
                self._report(event_in, step, self._write_part(pipe, step))

    def _write_part(self, pipe: IO[bytes], step: int) -> str:
        """Write a cut to its own file; return why there is none, or ""."""
        pieces = read_cut(pipe)
        self._share = None  # its objects have their values: files that are removed free their disk
        try:
            header = self._make_header(self._number, "")
            folder = self._options.get_cut_folder(header.epoch, step)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / MANIFEST).unlink(missing_ok=True)  # of another training
            with contextlib.closing(File(folder, header.name, header.encode())) as file:
                for piece in pieces:
                    file.append(piece)
                self.parts[step] = file.finish()
            return ""
        except (OSError, EOFError) as e:
            with contextlib.suppress(EOFError):
                for _ in pieces:  # the next cut follows
                    pass
            return str(e)

    @staticmethod
    def _report(event_in: int, step: int, why: str) -> None:
        event = EVENT.pack(CUT, 0, step, why.encode()[:231])
        while True:
            try:
                os.write(event_in, event)
                return
            except BlockingIOError:  # the shard reports much just now
                time.sleep(0.01)

    def _find(self, *asked: Any) -> Found | None:
        return self._share.find(*asked) if self._share and asked[0] != MESSAGES else None

    def _answer(self, op: str, text: str | None) -> str:
        """Carry out LOAD, or begin SAVE with "", and end it without a text; the answer is JSON."""
        try:
            if text is None:
                return json.dumps(asdict(self._end_save()))
            data = json.loads(text)
            folder, header = (
                self._options.snapshot_dir / data["folder"],
                self._make_header(self._number, data.get("save", "")),
            )
            if op == "LOAD":
                self._share = Share(folder, read_layout(header), header.pserver, header.port)
                return json.dumps({"digest": self._share.set.digest})
            prepare_folder(folder, "saving to ")
            self._file = File(folder, header.name, header.encode())
            return ""
        except (SetError, OSError) as e:
            text = str(e).encode(errors="replace")[:MAX_ERROR].decode(errors="ignore")
            return json.dumps({"error": text}, ensure_ascii=False)

    def _end_save(self) -> Entry:
        """Complete the part of a save on request. The one before it stays until the next, as its set does."""
        assert self._file is not None  # as SAVE has begun
        with contextlib.closing(self._file) as file:
            self._file = None
            entry = file.finish()
        for path in self._older[:-1]:
            path.unlink(missing_ok=True)
        self._older = [*self._older[-1:], file.path]
        return entry

    def join(self) -> Iterator[Event]:
        """Wait until the thread has ended, and yield its last events; `failure` then has its exception."""
        os.set_blocking(self.events, True)
        while data := os.read(self.events, EVENT.size):
            yield from self._parse_events(data)
        self._thread.join()
        for fd in self._pipes:
            os.close(fd)
