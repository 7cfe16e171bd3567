"""Updater of a trainer that waits for the answer to each push; tables stay on pservers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from .. import _core
from ..engine.arrays import F32, U64
from ..engine.keeping import describe_left_out, make_about, make_create
from ..engine.kernel_numbers import Optim
from ..engine.parameters import Parameters
from ..engine.updater import Keys, ParamRules, Sparse, Updater
from ..files.objects import Whole, describe_object
from ..files.saving import encode_start
from ..files.sets import making_set
from .caller import PULL_BYTES, Caller, Init
from .snapshots import Snapshots

PROGRESS_S = 5e-4
EARLY_BYTES = 1 << 18  # of gradients that go out while others are computed; less is not worth a call


class RemoteUpdater(Updater):
    """Trains with pservers through the client. Tables with sparse_update are stored only there."""

    reads_ahead = True

    def __init__(
        self,
        params: ParamRules,
        parameters: Parameters,
        client: Caller,
        *,
        on_connected: Callable[[], None],
        guard: Callable[[], AbstractContextManager[None]],
        snapshots: Snapshots | None = None,
    ) -> None:
        """`guard` wraps reads of tables, which the program may make after a training too."""
        self._params, self._parameters, self.client = params, parameters, client
        self.stateful = params.stateful
        self._first, self._started = client.trainer_id == 0, False  # trainer 0's initial values are used
        self._on_connected, self._guard, self._snapshots = on_connected, guard, snapshots
        self._coming: Keys = {}  # the keys of the next step
        self._asked: dict[str, tuple[U64, F32]] = {}  # keys, and arrays for the rows that `_call` brings
        self._call = self.row_waits = 0  # row_waits: times that a step or a test had to wait for rows
        self._progress_s = 0.0  # time of the next progress
        self._early: frozenset[str] = frozenset()  # parameters whose gradients need not wait for others
        self._complete: dict[str, F32] = {}  # gradients of this step that wait until there are EARLY_BYTES

    def start(self) -> None:
        if not self._started:
            self.client.connect()
            self._on_connected()
            if self._snapshots:
                names = [*self._params.dense, *self._params.sparse]
                self._snapshots.begin([json.loads(json.dumps(self._describe(name))) for name in names])
            if not (self._snapshots and self._snapshots.step):
                self._load()
            self._create()
            self._started = True
        self.client.pull(self._get_dense())
        self._coming, self._asked = {}, {}
        self._parameters.attach(self._params.sparse, self._pull_rows)
        self._parameters.keeper = self
        if self.client.is_sync and (self.watch is None or self.watch.only_warns):
            self._early = self._params.choose_early()

    def _load(self) -> None:
        """Let pservers take what the parameters have loaded, before they have objects."""
        loaded, changed = self._parameters.loaded, self._parameters.changed
        if loaded is None:
            return
        if changed:
            names = ", ".join(sorted(changed))
            raise ValueError(f"parameters {names} were set after load(), but pservers take the loaded values")
        if self._first:
            if line := describe_left_out(loaded, self._params.rules):
                print(line, file=sys.stderr)
            self.client.load(loaded.folder)
        self.client.barrier()

    def save(self, folder: Path, files: Mapping[str, bytes]) -> None:
        """Let pservers write their parts, and make them a set; on trainer 0, between its steps."""
        if not self._first:
            raise ValueError(f"{folder}: only trainer 0 saves")
        parameters, params = self._parameters, self._params
        objects = [self._describe(name) for name in [*params.dense, *params.sparse]]
        fixed = [parameters.make_whole(name) for name in parameters if name not in params.rules]
        with self._guard():
            save_set(self.client, folder, objects, files, fixed)

    def _describe(self, name: str) -> dict[str, Any]:
        config, rule = self._params.configs[name], self._get_server_rule(name)
        create = make_create(config, rule, self.client.seed, table=name in self._params.sparse)
        return describe_object(create, config.shape)

    def _pull_rows(self, keys: Mapping[str, U64]) -> Mapping[str, F32]:
        self.row_waits += 1
        with self._guard():
            return self.client.pull_tables(keys)

    def _create(self) -> None:
        for name in self._params.dense:
            self.client.create_dense(name, self._parameters.get_array(name).size, self._get_server_rule(name))
        for name in self._params.sparse:
            config = self._params.configs[name]
            init = Init(kind=config.start, mean=config.mean, std=config.std)
            self.client.create_sparse(
                name, config.rows, config.cols, self._get_server_rule(name), init, config.entry
            )
        self.client.init_dense(self._get_dense())
        if self._first and self._parameters.loaded is None:
            for name in self._params.sparse:
                if name in self._parameters.changed or self._params.configs[name].initializer is not None:
                    self._set_table(name)
        self._parameters.changed.clear()
        self.client.barrier()

    def _get_server_rule(self, name: str) -> Optim:
        return self._params.rules[name]

    def _set_table(self, name: str) -> None:
        for keys, rows, _ in self._parameters.take_table(name).split():
            self.client.set_rows(name, keys, rows)

    def _get_dense(self) -> dict[str, F32]:
        return {name: self._parameters.get_array(name) for name in self._params.dense}

    def fetch(self, keys: Keys, ahead: Keys) -> Mapping[str, F32]:
        self._coming = ahead
        asked = self._take_asked().items()
        found = {name: rows for name, (own, rows) in asked if np.array_equal(own, keys.get(name, ()))}
        if not found:
            self._mark()  # rows read for tests and files do not count
        rest = self._parameters.get_rows({name: own for name, own in keys.items() if name not in found})
        self._mark()
        return {**found, **rest}

    def progress(self, samples: int, grads: Mapping[str, F32]) -> None:
        """Send and receive what goes at once; from EARLY_BYTES on also gradients that are complete."""
        if grads:
            self._complete.update((name, own) for name, own in grads.items() if name in self._early)
        if grads and sum(own.nbytes for own in self._complete.values()) >= EARLY_BYTES:
            early, self._complete = self._complete, {}
            if all(map(_core.is_finite, early.values())):  # else the watch wants the values as they were
                if not self.client.pushed:
                    self._note_step()
                values = {name: self._parameters.get_array(name) for name in early}
                self.client.push_early(early, values, samples, self._params.factor)
        now_s = time.monotonic()
        if now_s >= self._progress_s:  # operations may be shorter than the system call for it
            self._progress_s = now_s + PROGRESS_S
            self.client.progress()

    def abandon(self) -> None:
        """Complete a step of which pservers have a part, by gradients of 0: all trainers wait for it."""
        self._complete = {}
        if self.client.pushed:
            values = self._get_dense()
            self.client.push_pull({name: np.zeros_like(own) for name, own in values.items()}, values)

    def _mark(self) -> None:
        """Note which values the next gradients are computed from, at the begin of a step."""
        self.client.mark()

    def _ask_rows(self, keys: Keys) -> None:
        """Let the rows of the next step travel while this one is computed."""
        asked = self._make_room(keys)
        if asked:
            self._call = self.client.ask({}, asked)
            self._asked = asked  # an interrupted call gives no rows

    def _make_room(self, keys: Keys) -> dict[str, tuple[U64, F32]]:
        """Return keys, and arrays for their rows, of the tables on pservers; nothing if that is too much."""
        room = {
            name: (own, np.empty((len(own), self._parameters.get_shape(name)[1]), np.float32))
            for name, own in keys.items()
            if name in self._params.sparse
        }
        return room if sum(rows.nbytes for _, rows in room.values()) <= PULL_BYTES else {}

    def _take_asked(self) -> dict[str, tuple[U64, F32]]:
        """Return the keys and rows that were asked for, once they are here."""
        asked, self._asked = self._asked, {}
        if asked and not self.client.is_done(self._call):
            self.client.wait(self._call)
            self.row_waits += 1
        return asked

    def update(self, dense: Mapping[str, F32], sparse: Sparse, samples: int) -> None:
        """Push one step; take the new dense values and the rows of the next step, in one round trip.

        Synchronous: those after the step of all trainers.
        """
        grads, sparse = self._params.collect_grads(dense, sparse)
        pushed = {name: sparse[name] for name in self._params.sparse}
        asked = self._make_room(self._coming)
        self._complete = {}
        if not self.client.pushed:
            self._note_step()
        values, factor = self._get_dense(), self._params.factor
        self._call = self.client.push_pull(grads, values, pushed, asked, samples, factor)
        self._asked = asked  # an interrupted call gives no rows

    def _note_step(self) -> None:
        if self._snapshots is not None:
            self._snapshots.note_step()

    def end_pass(self) -> None:
        """Wait until all trainers have ended the pass; others may have made further steps."""
        self._asked = {}
        self.client.end_pass()
        self.client.pull(self._get_dense())

    def count_dropped(self) -> Mapping[str, int]:
        return self.client.count_dropped()

    def finish(self) -> None:
        if self._snapshots is not None and not self.client.is_closed:
            self._snapshots.finish()
        self.client.finish()

    def close(self) -> None:
        self.client.close()


def save_set(
    client: Caller, folder: Path, objects: Sequence[Any], files: Mapping[str, bytes], fixed: Sequence[Whole]
) -> None:
    """Let pservers write their parts, and make them a set; for trainer 0, between its steps.

    objects: descriptions of those on pservers. fixed: others.
    """
    about = make_about(client.incarnation, client.steps, client.passes)
    with making_set(folder, about, files, client.layout) as new:
        new.objects += objects
        new.files += client.save(folder, new.save)
        if fixed:
            start = encode_start({"trainer": 0, "save": new.save})
            new.write_part(f"trainer-00000-{new.save}.bin", start, fixed, fixed=True)
