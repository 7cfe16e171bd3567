"""A shard of a pserver: the thread that runs the compiled core (csrc/shard/ps_shard.c), and its pipes.

A second thread writes what the shard sends of its cuts to files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .. import _core
from ..client.control import MESSAGES
from ..files.exports import write_index
from ..files.manifest import MANIFEST
from ..files.objects import SetError
from ..files.saving import Entry, File, Header, prepare_folder
from ..files.sets import Found, Share
from .counters import Counters
from .pserver_options import EXPORTS, Options

EVENT = struct.Struct("<IIQ232s")  # ps_event
Event = tuple[int, int, int, str]  # kind, trainer, number, text
MAIL = struct.Struct("=iIQ")  # ps_mail
STOP, SAVE, CUT_NOW = -1, 2**32 - 1, 2**32 - 2  # mails that stop the shard, stop after a save, and only cut
CONNECTED, GONE, FINISHED, STALLED, RESUMED, ERROR, STATS, DROPPED = range(1, 9)
RECORD, BEGIN = struct.Struct("=I"), struct.Struct("=IQ")  # on the pipe for cuts: ps_mail.h
WHOLE, LOST, BEGINS, LAST = 0, 2**32 - 1, 2**32 - 2, 2**64 - 1
REQUESTS = 2**63  # cuts with a number from here on are saves on request, others snapshots of this step
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
    def __init__(
        self,
        number: int,
        options: Options,
        stall_after_s: float,
        share: Share | None,
        make_header: Callable[[int, str], Header],
        wake: Callable[[], None],
    ) -> None:
        """`share`: values for its objects. make_header(number, save): of its part in a save on request.

        wake() is called when there is a new part.
        """
        mail_out, self._mail = os.pipe()
        self.events, event_in = os.pipe()
        cut_out, cut_in = os.pipe()
        for fd in (self.events, event_in, cut_in):
            os.set_blocking(fd, False)
        with contextlib.suppress(OSError):  # the user's pipes may have taken all that is allowed
            fcntl.fcntl(cut_in, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.failure: BaseException | None = None
        self.parts: dict[int, list[Entry] | str] = {}  # by number; or why there is none
        self.counters = Counters(options.num_gradient_servers)
        self.file: File | None = None  # of the save at the end, sealed; its owner closes it
        self._save_dir: Path | None = None
        self._saves: dict[int, tuple[Path, str]] = {}  # folder and name of saves on request, by number
        self._first = ""  # the first object
        self._options, self._share, self._number, self._make_header = options, share, number, make_header
        self._wake = wake
        self._pipes = (mail_out, self._mail, self.events)
        writer = threading.Thread(
            target=self._write_cuts, args=(cut_out,), name=f"cuts-{number}", daemon=True
        )

        def run() -> None:
            try:
                trainers, epoch, words = options.num_gradient_servers, options.job.epoch, self.counters.memory
                _core.run_shard(trainers, epoch, mail_out, event_in, stall_after_s, self._find, cut_in, words)
            except BaseException as e:
                self.failure = e
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
        try:
            data = os.read(self.events, 64 * EVENT.size)
        except BlockingIOError:
            return []
        return self._parse_events(data)

    @staticmethod
    def _parse_events(data: bytes) -> list[Event]:
        records = EVENT.iter_unpack(data[: len(data) // EVENT.size * EVENT.size])
        return [(kind, t, a, text.split(b"\0")[0].decode("utf-8", "replace")) for kind, t, a, text in records]

    def stop(self, save_dir: Path | None = None) -> None:
        """End the thread once it has sent its answers; with a folder it first saves to `file` there."""
        self._save_dir = save_dir
        os.write(self._mail, MAIL.pack(STOP, SAVE if save_dir else 0, 0))

    def save(self, number: int, folder: Path, save: str) -> None:
        """Cut the shard now, and write its part of a save on request."""
        self._saves[number] = folder, save
        os.write(self._mail, MAIL.pack(STOP, CUT_NOW, number))

    def load(self, share: Share) -> None:
        """Take the values of new objects from a set. Raises SetError if there are objects."""
        before, self._share = self._share, share  # first: an object may be created right now
        if self._first:
            self._share = before
            raise SetError(f"'{self._first}' was created before the load: let all trainers load before")

    def _write_cuts(self, cut_out: int) -> None:
        with open(cut_out, "rb", buffering=PIPE_BYTES) as pipe:
            while len(head := pipe.read(BEGIN.size)) == BEGIN.size:
                begins, number = BEGIN.unpack(head)
                assert begins == BEGINS
                pieces = read_cut(pipe)
                try:
                    if number == LAST:
                        self._write_last(pieces)
                    else:
                        self.parts[number] = self._write_part(pieces, number)
                except (OSError, EOFError) as e:
                    with contextlib.suppress(EOFError):
                        for _ in pieces:  # the next cut follows
                            pass
                    if number == LAST:
                        self.failure = e
                    else:
                        self.parts[number] = str(e)
                self._wake()

    def _write_last(self, pieces: Iterator[bytes]) -> None:
        assert self._save_dir is not None  # as stop() has it
        header = self._make_header(self._number, "")
        self.file = File(self._save_dir, header.name, header.encode())
        for piece in pieces:
            self.file.append(piece)
        self.file.seal()

    def _write_part(self, pieces: Iterator[bytes], number: int) -> list[Entry]:
        """Write a cut to its own file, and the index of an export."""
        folder, save = self._saves.pop(number, (None, ""))
        if folder is None:
            self._share = None  # all objects have their values: files that are removed free their disk
        header = self._make_header(self._number, save)
        if folder is None:
            folder = self._options.get_cut_folder(header, number)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / MANIFEST).unlink(missing_ok=True)  # of another training
        else:
            prepare_folder(folder, "saving to ")
        with contextlib.closing(File(folder, header.name, header.encode())) as file:
            for piece in pieces:
                file.append(piece)
            entries = [file.finish()]
        return [*entries, *(write_index(file.path) if EXPORTS <= number < REQUESTS else ())]

    def _find(self, *asked: Any) -> Found | None:  # the core calls it for new objects, in the shard's thread
        self.counters.note_object(asked[0])
        if asked[0] == MESSAGES:
            return None
        self._first = self._first or asked[0]
        return self._share.find(*asked) if self._share else None

    def join(self) -> Iterator[Event]:
        """Wait until the thread has ended, and yield its last events; `failure` then has its exception."""
        os.set_blocking(self.events, True)
        while data := os.read(self.events, EVENT.size):
            yield from self._parse_events(data)
        self._thread.join()
        for fd in self._pipes:
            os.close(fd)
