"""A shard of a pserver: the thread that runs the compiled core (csrc/shard/ps_shard.h), and its two pipes."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _core
from ..files.saving import File
from .pserver_options import Options

EVENT = struct.Struct("<IIQ232s")  # ps_event
Event = tuple[int, int, int, str]  # kind, trainer, number, text
First = tuple[str, Any, int, int, int]  # values that an object has in place of trainer 0's: _core.run_shard
MAIL = struct.Struct("=iIQ")  # ps_mail
STOP, SAVE = -1, 2**32 - 1  # a mail that stops the shard, which saves before if it has PS_MAIL_SAVE
CONNECTED, GONE, FINISHED, STALLED, RESUMED, ERROR, STATS, DROPPED = range(1, 9)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Values of a file with which a pserver begins, in place of trainer 0's."""

    values: Sequence[list[First]]  # for the objects of each port; shards empty these lists
    place: tuple[int, int]  # that has dealt them: index in the list of pservers, and its length
    sha256: str  # of the file


class Shard:
    """A shard's thread and its two pipes."""

    def __init__(self, number: int, options: Options, stall_after_s: float, first: list[First]) -> None:
        """`first`: values for its objects; the list is emptied when the shard has copies."""
        mail_out, self._mail = os.pipe()
        self.events, event_in = os.pipe()
        os.set_blocking(self.events, False)
        os.set_blocking(event_in, False)
        self.failure: BaseException | None = None
        self._file: File | None = None
        self._pipes = (mail_out, self._mail, self.events)

        def run() -> None:
            try:
                trainers, epoch = options.num_gradient_servers, options.epoch
                _core.run_shard(trainers, epoch, mail_out, event_in, stall_after_s, first, self._save)
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

    def _save(self, piece: memoryview) -> None:
        assert self._file is not None  # as stop() asked for it
        self._file.append(piece)

    def join(self) -> Iterator[Event]:
        """Wait until the thread has ended, and yield its last events; `failure` then has its exception."""
        os.set_blocking(self.events, True)
        while data := os.read(self.events, EVENT.size):
            yield from self._parse_events(data)
        self._thread.join()
        for fd in self._pipes:
            os.close(fd)
