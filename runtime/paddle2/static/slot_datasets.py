"""Datasets of files with text of slots, for Executor.train_from_dataset() (docs/fleet.md)."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ...engine.arrays import Ids
from ...process.settings import get_settings
from ...shared import env
from ...shared.env import suggest
from ...v2.reader import batch
from ..base.life import FLEET
from ..program.program import Variable
from .commands import Commands, split_command
from .slots import (
    Columns,
    Line,
    choose_samples,
    count_samples,
    join_columns,
    pack_columns,
    read_columns,
    unpack_columns,
)

LINES = 4096  # that are parsed at a time into memory
PIECE_BYTES = 1 << 20  # of a worker's samples, in one exchange of all workers; servers keep two


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetSettings:
    """Arguments of a dataset's init()."""

    batch_size: int = 1
    thread_num: int = 1
    use_var: Sequence[Variable] = ()
    pipe_command: str = "cat"
    input_type: int = 0
    queue_num: int = -1
    data_feed_type: str = ""
    fs_name: str = ""
    fs_ugi: str = ""
    download_cmd: str = "cat"

    def check(self, where: str) -> None:
        """Raise TypeError or ValueError, naming the argument."""
        expected = "expected variables of static.data, as [None, 1]"
        if not isinstance(self.use_var, Sequence):
            raise TypeError(f"{where}: use_var={self.use_var!r} is not a list;  {expected}")
        for one in self.use_var:
            if getattr(one, "op", None) != "data" or not one.has_batch or one.size < 1:
                raise TypeError(f"{where}: use_var has {one!r}, {expected}")
        for name in ("fs_name", "fs_ugi", "download_cmd"):
            if getattr(self, name) not in ("", "cat"):
                raise ValueError(
                    f"{where}: {name}={getattr(self, name)!r} is not in this runtime: files are read from "
                    "folders of the worker; mount or copy them first"
                )
        split_command(self.pipe_command, where)


class QueueDataset:
    """Samples of files in their order, read while they are used."""

    def __init__(self) -> None:
        self._settings: DatasetSettings | None = None
        self._files: tuple[str, ...] = ()

    def init(self, **settings: Any) -> None:
        """Set `batch_size`, `use_var` (the variables of the slots, in order) and `pipe_command`.

        pipe_command: a program, without a shell; it gets a file on its standard input, and prints text of
        slots. `thread_num` files are loaded into memory at once. `input_type`, `queue_num` and
        `data_feed_type` have no effect. Raises TypeError or ValueError, naming the argument.
        """
        self._set(DatasetSettings(), "init", settings)

    def _set(self, before: DatasetSettings, method: str, settings: dict[str, Any]) -> None:
        where = f"{type(self).__name__}.{method}"
        known = DatasetSettings.__slots__
        for name in settings:
            if name not in known:
                hint = suggest(name, known, f"; it has {', '.join(known)}")
                raise TypeError(f"{where}: no argument {name}{hint}")
        counts: dict[str, Any] = {
            name: env.parse_count(settings[name], f"{where}: {name}")
            for name in ("batch_size", "thread_num")
            if name in settings
        }
        found = replace(before, **settings | counts)
        found.check(where)
        self._settings = found

    def set_filelist(self, filelist: Sequence[str]) -> None:
        """Set the files of this worker, as fleet.util.get_file_shard() deals them."""
        if isinstance(filelist, str):
            raise TypeError(
                f"{type(self).__name__}.set_filelist: {filelist!r}, expected a list of names of files"
            )
        self._files = tuple(os.fspath(one) for one in filelist)

    def get_settings(self) -> DatasetSettings:
        if self._settings is None or not self._settings.use_var:
            raise RuntimeError(f"{type(self).__name__}: call init(batch_size=..., use_var=[...]) first")
        return self._settings

    def read_batches(self, commands: Commands | None = None) -> Iterator[Columns]:
        """Read all samples as batches; raises ValueError naming file and line, or RuntimeError of a command.

        `commands` runs the programs: its end() ends the reading, from any thread.
        """
        settings, running = self.get_settings(), commands or Commands()
        stretches = (self._read_lines(file, running) for file in self._get_files())
        lines: Iterator[Line] = itertools.chain.from_iterable(stretches)
        for several in batch(lambda: lines, settings.batch_size)():
            yield read_columns(several, settings.use_var)

    def _get_files(self) -> tuple[str, ...]:
        if not self._files:
            raise RuntimeError(f"{type(self).__name__}: it has no files; call set_filelist([...]) first")
        return self._files

    def _read_lines(self, file: str, commands: Commands) -> Iterator[Line]:
        command = split_command(self.get_settings().pipe_command, type(self).__name__)
        return commands.read(command, file) if command else read_lines(file)


def read_lines(file: str) -> Iterator[Line]:
    with Path(file).open("rb") as lines:
        for number, text in enumerate(lines, 1):
            yield file, number, text


class InMemoryDataset(QueueDataset):
    """Samples of files in memory: shuffled, and used in any number of passes."""

    def __init__(self) -> None:
        super().__init__()
        self._columns: Columns | None = None
        self._order: Ids = np.zeros(0, np.int64)  # places of the samples of a pass in `_columns`
        self._loading: tuple[list[Future[list[Columns]]], ThreadPoolExecutor, Commands] | None = None
        self._shuffles, self._global_shuffles = itertools.count(), itertools.count()

    def update_settings(self, **settings: Any) -> None:
        """Change arguments of init()."""
        self._set(self._settings or DatasetSettings(), "update_settings", settings)

    def set_date(self, date: str) -> None:
        """Do nothing, as in PaddlePaddle without GPUs; raises ValueError for a date that is not YYYYMMDD."""
        try:
            datetime.strptime(date, "%Y%m%d")
        except ValueError:
            raise ValueError(f"InMemoryDataset.set_date: {date!r}, expected YYYYMMDD, as 20211111") from None

    def slots_shuffle(self, slots: Sequence[str]) -> None:
        """Raise ValueError that names the substitute."""
        raise ValueError(
            f"InMemoryDataset.slots_shuffle({slots!r}) is not in this runtime: shuffle the values of these "
            "slots in pipe_command, or in the files"
        )

    def load_into_memory(self, is_shuffle: bool = False) -> None:
        """Read all files; raises ValueError naming file and line, or the command that failed."""
        if self._loading is None:
            self.preload_into_memory()
        self.wait_preload_done()
        if is_shuffle:
            self.local_shuffle()

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Begin to read all files; wait_preload_done() waits for them."""
        files, commands = self._get_files(), Commands()
        pool = ThreadPoolExecutor(thread_num or self.get_settings().thread_num, "preload")
        self._loading = [pool.submit(self._read_file, file, commands) for file in files], pool, commands

    def wait_preload_done(self) -> None:
        """Wait for preload_into_memory(); raises its error."""
        if self._loading is None:
            raise RuntimeError("InMemoryDataset.wait_preload_done: call preload_into_memory() first")
        (reads, pool, commands), self._loading = self._loading, None
        try:
            parts = [part for one in reads for part in one.result()]
            self._take(join_columns(parts, self.get_settings().use_var))
        finally:
            commands.end()  # the pool waits for its threads
            pool.shutdown(cancel_futures=True)

    def _read_file(self, file: str, commands: Commands) -> list[Columns]:
        slots = self.get_settings().use_var
        stretches = batch(lambda: self._read_lines(file, commands), LINES)()
        return [read_columns([], slots), *(read_columns(lines, slots) for lines in stretches)]

    def _take(self, columns: Columns) -> None:
        self._columns = columns
        self._order = np.arange(count_samples(columns))

    def _get_columns(self, method: str) -> Columns:
        if self._columns is None:
            raise RuntimeError(f"InMemoryDataset.{method}: call load_into_memory() first")
        return self._columns

    def local_shuffle(self) -> None:
        """Shuffle this worker's samples; the order depends on seed, worker, and number of shuffles."""
        self._get_columns("local_shuffle")
        places = self._order.tolist()
        now = get_settings()
        random.Random(f"{now.seed}/{now.trainer_id}/{next(self._shuffles)}").shuffle(places)
        self._order = np.array(places, np.int64)

    def global_shuffle(self, fleet: object = None, thread_num: int = 12) -> None:
        """Deal the samples of all workers among them at random, then shuffle; all workers call it.

        Without `fleet` a local_shuffle(). The result depends on seed, files, and number of shuffles: the
        samples are dealt by seed and number of worker 0. A worker holds the samples of all while it chooses
        its own. `thread_num` has no effect.
        """
        columns = choose_samples(self._get_columns("global_shuffle"), self._order)
        if fleet is not None and (part := FLEET.get_part()).workers > 1:
            slots = self.get_settings().use_var
            own_order = f"{get_settings().seed}/all/{next(self._global_shuffles)}"
            order, parts = random.Random(FLEET.gather(own_order.encode(), "global_shuffle")[0].decode()), []
            for data in _gather(pack_columns(columns)):
                other = unpack_columns(data, slots)
                dealt = [order.randrange(part.workers) for _ in range(count_samples(other))]
                parts.append(choose_samples(other, np.flatnonzero(np.array(dealt, np.int64) == part.index)))
            columns = join_columns(parts, slots)
        self._take(columns)
        self.local_shuffle()

    def release_memory(self) -> None:
        """Forget all samples."""
        self._columns, self._order = None, np.zeros(0, np.int64)

    def get_memory_data_size(self, fleet: object = None) -> int:
        """Return the number of samples of this worker, or with `fleet` of all workers, which all call it."""
        own = len(self._order)
        if fleet is None:
            return own
        found = FLEET.gather(own.to_bytes(8, "little"), "get_memory_data_size")
        return sum(int.from_bytes(one, "little") for one in found)

    get_shuffle_data_size = get_memory_data_size

    def read_batches(self, commands: Commands | None = None) -> Iterator[Columns]:
        """Return the samples in their order as batches. `commands` is not used: they have ended."""
        columns, size = self._get_columns("read_batches"), self.get_settings().batch_size
        for at in range(0, len(self._order), size):
            yield choose_samples(columns, self._order[at : at + size])


def _gather(data: bytes) -> list[bytes]:
    """Return the bytes of every worker, in order, exchanged in pieces."""
    where = "global_shuffle"
    most = max(int.from_bytes(one, "little") for one in FLEET.gather(len(data).to_bytes(8, "little"), where))
    pieces = [FLEET.gather(data[at : at + PIECE_BYTES], where) for at in range(0, most, PIECE_BYTES)]
    return [b"".join(own) for own in zip(*pieces, strict=True)]
