"""A shard of a pserver: the thread that runs the compiled core (csrc/shard/ps_shard.h), and its two pipes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import _core
from ..files.objects import SetError
from ..files.saving import Entry, File, Header, prepare_folder, sync_folder
from ..files.sets import Found, Share, read_layout
from .pserver_options import Options

EVENT = struct.Struct("<IIQ232s")  # ps_event
Event = tuple[int, int, int, str]  # kind, trainer, number, text
MAIL = struct.Struct("=iIQ")  # ps_mail
MAX_ERROR = 900  # characters of an error in an answer, which has a limit
STOP, SAVE = -1, 2**32 - 1  # a mail that stops the shard, which saves before if it has PS_MAIL_SAVE
CONNECTED, GONE, FINISHED, STALLED, RESUMED, ERROR, STATS, DROPPED = range(1, 9)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A set with which a pserver begins, in place of trainer 0's values."""

    shares: Sequence[Share]  # of each port
    place: tuple[int, int]  # index in the list of pservers, and its length
    digest: str  # of the set


class Shard:
    """A shard's thread and its two pipes."""

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
        os.set_blocking(self.events, False)
        os.set_blocking(event_in, False)
        self.failure: BaseException | None = None
        self._file: File | None = None
        self._share, self._number, self._make_header = share, number, make_header
        self._older: list[Path] = []  # its part in the last save on request
        self._pipes = (mail_out, self._mail, self.events)

        def run() -> None:
            try:
                trainers, epoch = options.num_gradient_servers, options.epoch
                own = self._save, self._find, self._answer
                _core.run_shard(trainers, epoch, mail_out, event_in, stall_after_s, *own)
                if self._file is not None:
                    self._file.seal()
            except BaseException as e:
                self.failure = e
            finally:
                os.close(event_in)  # the end of the events

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

    def _find(self, *asked: Any) -> Found | None:
        return self._share.find(*asked) if self._share else None

    def _answer(self, op: str, text: str | None) -> str:
        """Carry out LOAD, or begin SAVE with "", and end it without a text; the answer is JSON."""
        try:
            if text is None:
                return json.dumps(asdict(self._end_save()))
            data = json.loads(text)
            folder, header = Path(data["folder"]), self._make_header(self._number, data.get("save", ""))
            if op == "LOAD":
                self._share = Share(folder, read_layout(header), header.pserver, header.port)
                return json.dumps({"digest": self._share.set.digest})
            prepare_folder(folder, "saving to ")
            self._file = File(folder, header)
            return ""
        except (SetError, OSError) as e:
            return json.dumps({"error": str(e)[:MAX_ERROR]})

    def _end_save(self) -> Entry:
        """Complete the part of a save on request. The one before it stays until the next, as its set does."""
        assert self._file is not None  # as SAVE has begun
        with contextlib.closing(self._file) as file:
            self._file = None
            try:
                entry = file.seal()
            except OSError as e:
                raise file.make_error(e) from None
            file.place()
            sync_folder(file.path.parent)
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
