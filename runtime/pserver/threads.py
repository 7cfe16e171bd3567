"""A shard of a pserver: the thread that runs the compiled core (csrc/shard/ps_shard.h), and its pipes.

A second thread writes what the shard sends of its cuts to files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .. import _core
from ..files.saving import Entry, File, sync_folder
from .pserver_options import Options

EVENT = struct.Struct("<IIQ232s")  # ps_event
Event = tuple[int, int, int, str]  # kind, trainer, number, text
First = tuple[str, Any, int, int, int]  # values that an object has in place of trainer 0's: _core.run_shard
MAIL = struct.Struct("=iIQ")  # ps_mail
STOP, SAVE = -1, 2**32 - 1  # a mail that stops the shard, which saves before if it has PS_MAIL_SAVE
RESTORE = 2**32 - 2
CONNECTED, GONE, FINISHED, STALLED, RESUMED, ERROR, STATS, DROPPED, RESTORED, CUT = range(1, 11)
RECORD, STEP = struct.Struct("=I"), struct.Struct("=Q")  # on the pipe for cuts: ps_mail.h
WHOLE, LOST, BEGINS, LAST = 0, 2**32 - 1, 2**32 - 2, 2**64 - 1
PIPE_BYTES = 1 << 20


class LostCutError(RuntimeError):
    """A shard could not send all of a cut."""


def _read_cut(pipe: IO[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a cut's body. Raises LostCutError."""
    while head := pipe.read(RECORD.size):
        (n,) = RECORD.unpack(head)
        if n == WHOLE:
            return
        if n == LOST:
            raise LostCutError("memory did not suffice, or a newer cut has begun")
        yield pipe.read(n)
    raise LostCutError("the shard has ended")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Values of a file with which a pserver begins, in place of trainer 0's."""

    values: Sequence[list[First]]  # for the objects of each port; shards empty these lists
    place: tuple[int, int]  # that has dealt them: index in the list of pservers, and its length
    sha256: str  # of the file


class Shard:
    """A shard's threads and pipes."""

    def __init__(
        self,
        number: int,
        options: Options,
        stall_after_s: float,
        first: list[First],
        open_part: Callable[[int], tuple[Path, File]],
    ) -> None:
        """`first`: values for its objects; the list is emptied when the shard has copies.

        open_part(step): folder and file for a cut, called in another thread. Raises OSError.
        """
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
        self._open_part = open_part
        self._pipes = (mail_out, self._mail, self.events)
        writer = threading.Thread(
            target=self._write_cuts, args=(cut_out, event_in), name=f"cuts-{number}", daemon=True
        )

        def run() -> None:
            try:
                trainers, epoch = options.num_gradient_servers, options.epoch
                _core.run_shard(trainers, epoch, mail_out, event_in, stall_after_s, first, cut_in)
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

    def restore(self, body: int) -> None:
        """Let the shard begin with the body of a cut from this descriptor, which it then owns.

        It answers with the event RESTORED.
        """
        os.write(self._mail, MAIL.pack(body, RESTORE, 0))

    def _write_cuts(self, cut_out: int, event_in: int) -> None:
        """Write each cut to its file; the last one to that of stop(), whose failure ends the shard."""
        with open(cut_out, "rb", buffering=PIPE_BYTES) as pipe:
            while head := pipe.read(RECORD.size):
                assert RECORD.unpack(head) == (BEGINS,)
                (step,) = STEP.unpack(pipe.read(STEP.size))
                if step == LAST:
                    self._write_last(pipe)
                    return
                self._report(event_in, step, self._write_part(pipe, step))

    def _write_last(self, pipe: IO[bytes]) -> None:
        assert self._file is not None  # as stop() asked for it
        try:
            for piece in _read_cut(pipe):
                self._file.append(piece)
            self._file.seal()
        except (OSError, LostCutError) as e:
            self.failure = self.failure or e

    def _write_part(self, pipe: IO[bytes], step: int) -> str:
        """Write a cut to its own file; return why there is none, or ""."""
        pieces = _read_cut(pipe)
        try:
            folder, file = self._open_part(step)
            with contextlib.closing(file):
                for piece in pieces:
                    file.append(piece)
                entry = file.seal()
                file.place()
            sync_folder(folder)
            self.parts[step] = entry
            return ""
        except (OSError, LostCutError) as e:
            with contextlib.suppress(LostCutError):
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

    def join(self) -> Iterator[Event]:
        """Wait until the thread has ended, and yield its last events; `failure` then has its exception."""
        os.set_blocking(self.events, True)
        while data := os.read(self.events, EVENT.size):
            yield from self._parse_events(data)
        self._thread.join()
        for fd in self._pipes:
            os.close(fd)
