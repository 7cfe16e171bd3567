"""Calls to the job's pservers for a trainer: dense tensors and sparse tables, numpy in and out.

calls.py carries out calls; the compiled core (csrc/client/ps_client.h) sends requests and reads answers.
"""

from __future__ import annotations

import functools
import itertools
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import _core
from ..engine.arrays import F32, U64
from ..engine.entry import ANY, EntryAttr
from ..engine.kernel_numbers import KINDS, MODES, InitialKind, Optim
from ..engine.strategy import Strategy
from ..files import blocks
from ..files.objects import SetError
from ..files.saving import Entry, SaveError
from ..files.sets import Layout
from ..process.settings import Settings
from . import handshake
from .calls import CallRunner
from .control import MESSAGES
from .dialer import Dialer, list_shards
from .messages import COLS, Messages

_NO_ROWS = np.empty(0, np.uint64), np.empty(0, np.float32)
SYNC = Strategy()
PULL_BYTES = 32 << 20  # rows pulled at a time; the core may need the same amount again to sort them


@dataclass(frozen=True, kw_only=True, slots=True)
class Init:
    """Initial distribution of a table's rows; with std 0 all values are `mean`."""

    kind: InitialKind
    mean: float
    std: float


def print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _add_named(name: str, act: Callable[..., object], *arguments: object) -> None:
    """Add a request for an object, whose name an error has."""
    try:
        act(*arguments)
    except (BufferError, TypeError, ValueError) as e:
        raise type(e)(f"{name}: {e}") from None


class Caller(CallRunner, AbstractContextManager["Caller"]):
    """Dense tensors and sparse tables on the job's pservers, in one of the modes of docs/training.md.

    One thread at a time: a second one gets RuntimeError. All trainers create the same objects in the same
    order and take part in every step until they end the pass. Calls block until the pservers have answered,
    and, where noted, all trainers too. After a ValueError or TypeError nothing was sent. If the handler of a
    signal raises in a call, the next one completes it first: leave its arrays unchanged until then. Raises
    ClientError if a pserver refuses, and in all calls after it (NotReached: if it is not reached),
    PeerVanished if one is gone for good.
    """

    def __init__(
        self,
        settings: Settings,
        strategy: Strategy = SYNC,
        log: Callable[[str], None] = print_line,
    ) -> None:
        """Make a client of the settings' pservers; connect() connects."""
        self._endpoints, ports = settings.endpoints, (settings.ports_num, settings.ports_num_for_sparse)
        shards = list_shards(self._endpoints, *ports)
        self.layout = Layout(len(self._endpoints), *ports)
        self.trainer_id, trainers = settings.trainer_id, settings.num_gradient_servers
        self.is_sync = strategy.mode == "sync"
        self._mode, self.seed = (MODES[strategy.mode], strategy.count_discard(trainers)), settings.seed
        core = _core.Client(len(shards), settings.job.epoch, self.trainer_id)
        hello = handshake.Hello(
            trainer_id=self.trainer_id,
            num_gradient_servers=trainers,
            ports_num=settings.ports_num,
            ports_num_for_sparse=settings.ports_num_for_sparse,
            incarnation=secrets.randbits(63) + 1,
            epoch=settings.job.epoch,
            pserver=0,
            pservers=len(self._endpoints),
            shard=0,
        )
        secret = Path(settings.secret_file).read_bytes().strip() if settings.secret_file else b""
        self.incarnation = hello.incarnation
        self.pushed: set[str] = set()  # dense objects whose part of the next step has begun
        self.cuts_next: int | None = None  # flags: trainer 0's next push asks for a cut after its step
        limit_s, stalls_s = settings.connect_timeout, (settings.stall_after, settings.stall_timeout)
        dialer = Dialer(shards, hello, secret, limit_s, core.attach, log)
        super().__init__(core, dialer, secret, *stalls_s, log)
        self._dense, self._sparse = dict[str, int](), dict[str, int]()  # name -> id, in the order of creation
        self._dims, self._blocks = dict[str, int](), 0
        self._told: Counter[str] = Counter()  # barriers and ends of passes so far
        self.messages = Messages(self, core, trainers)
        self._connected = self.is_closed = False  # the latter by finish() or close()
        self.is_cut_off = False  # closed before it said that this trainer is finished

    # -- connecting

    def connect(self) -> None:
        """Connect to every port of every pserver and wait until all are ready. Repeated calls do nothing."""
        with self._alone:
            if self._connected:
                return
            self.log(f"init rpc client with trainer_id {self.trainer_id}")
            self.dialer.attach(range(len(self._shards)), begun=self._begun)
            self._connected = True

    def create_dense(self, name: str, size: int, optim: Optim) -> None:
        """Create a dense object of `size` values, one or more; init_dense() sets them."""
        if size < 1:
            raise ValueError(f"dense object {name!r}: size={size}, expected 1 or more")
        self.connect()

        def add() -> None:
            self._check_new(name)
            whole = optim.kernel.whole
            pieces = blocks.place(size, self._blocks, self.layout.dense, whole=whole)
            array = np.array([(p.shard, p.start, p.length) for p in pieces], dtype=np.uint64).reshape(-1)
            self._dense[name] = self._core.add(
                name, size, optim.pack(), optim.schedule.pack(), *self._mode, array
            )
            self._blocks += blocks.count_blocks(size, whole=whole)

        self.call(add)

    def create_sparse(
        self, name: str, rows: int, dim: int, optim: Optim, init: Init, entry: EntryAttr = ANY
    ) -> None:
        """Create a table of rows [dim] by 64-bit key, made when `entry` admits it; `rows` keys are known."""
        self._check_new(name)
        self._dims[name] = dim
        self._add_table(self._sparse, name, (rows, dim), optim, init, entry, self._mode)

    def _add_table(
        self,
        into: dict[str, int],
        name: str,
        shape: tuple[int, int],
        optim: Optim,
        init: Init,
        entry: EntryAttr,
        mode: tuple[int, int],
    ) -> None:
        self.connect()
        first, n = 0, self.layout.dense
        if self.layout.ports_num_for_sparse:
            first, n = n, len(self._shards) - n
        rows, dim = shape
        pieces = np.array([(shard, 0, 0) for shard in range(first, first + n)], dtype=np.uint64)
        table = (dim, entry.pack(), self.seed, KINDS[init.kind], init.mean, init.std)

        def add() -> None:
            rule, schedule = optim.pack(), optim.schedule.pack()
            into[name] = self._core.add(name, rows, rule, schedule, *mode, pieces, table)

        self.call(add)

    def _check_new(self, name: str) -> None:
        if name in self._dense or name in self._sparse:
            raise ValueError(f"parameter {name!r} already exists")

    def init_dense(self, values: Mapping[str, F32]) -> None:
        """Set initial values: trainer 0's are used, the others wait for them. Only the first call counts."""
        first = self.trainer_id == 0

        def add() -> None:
            for name in values:
                self._core.init_dense(self._get_id("dense", name), values[name] if first else None)

        self.call(add)
        self._begun = True

    def set_rows(self, name: str, keys: U64, values: F32) -> None:
        """Set rows to these values [n, dim]; for trainer 0, before training."""
        self.call(lambda: self._core.set_rows(self._get_id("sparse", name), keys, values))

    def shrink(self, name: str, *, score: float = 0.0, unseen: int = 0, decay: float = 1.0) -> int:
        """Give back rows of a table with an entry rule; all trainers call it, between two steps.

        First shows and clicks of all keys are multiplied by `decay`. Then keys go with a score below `score`,
        and those without a push for more than `unseen` whole days, if that is above 0; each call ends a day.
        Their rows have initial values again, and the memory serves other keys. Waits for all trainers.
        Returns the rows given back, in trainer 0; 0 in others.
        """
        table = self._get_id("sparse", name)
        numbers: dict[str, object] = {"score": score, "unseen": unseen, "decay": decay}
        for what, most, kind in (
            ("score", 2**24, float | int),
            ("unseen", 2**32 - 1, int),
            ("decay", 1, float | int),
        ):
            number = numbers[what]
            if not isinstance(number, kind) or not 0 <= number <= most:
                raise ValueError(f"shrink of {name!r}: {what}={number!r}, expected 0 to {most}")
        before = self._core.count_shrunk(table)
        self.barrier()
        if self.trainer_id == 0:
            self.call(lambda: self._core.shrink(table, decay, score, unseen))
        self.barrier()
        return self._core.count_shrunk(table) - before

    def push_pull(
        self,
        grads: Mapping[str, F32],
        out: Mapping[str, F32],
        sparse: Mapping[str, tuple[U64, F32]] | None = None,
        rows: Mapping[str, tuple[U64, F32]] | None = None,
        samples: int = 0,
        factor: float = 1.0,
        *,
        wait: bool = True,
    ) -> int:
        """Do one step: push gradients, and store the new dense values in place.

        Synchronous: waits for the gradients of all trainers; in other modes for its own answers alone.
        grads: for every dense object. out: arrays of the objects' sizes, any shape. sparse: unique keys
        [n] and row gradients [n, dim]; a table without an entry gets an empty push. rows: keys [n] and arrays
        [n, dim] for these rows as they are after the push. Gradients of keys without a row that the table's
        entry rule does not admit are only counted. samples: of the batch that gave the gradients, for
        schedules of the learning rate. factor: of the learning rate of this step; synchronous: that of the
        first trainer, in order, that pushes in it. Leaves out what push_early() pushed. Returns the number
        of the call. Without `wait` it goes on in progress() and wait(): leave all arrays until it is done.
        """
        sparse, rows, dense, tables = sparse or {}, rows or {}, self._dense.keys(), self._sparse.keys()
        unknown = (sparse and not sparse.keys() <= tables) or (rows and not rows.keys() <= tables)
        if unknown or grads.keys() != dense or not out.keys() <= dense:
            for kind, names in (("dense", [*grads, *out]), ("sparse", [*sparse, *rows])):
                for name in names:
                    self._get_id(kind, name)
            raise ValueError(f"missing gradients: {sorted(dense - grads.keys())}; a step pushes all")

        def add() -> None:
            left = {name: grad for name, grad in grads.items() if name not in self.pushed}
            self._add_pushes(left, out, samples, factor)
            for name, i in self._sparse.items():
                own = sparse.get(name) or _NO_ROWS
                _add_named(name, self._core.push_rows, i, *own, samples, factor)
            for name, own in rows.items():
                _add_named(name, self._core.pull_rows, self._sparse[name], *own)

        with self._alone:
            call = self._begin_push(add)
            early, self.pushed = self.pushed, set()
            if wait:
                self._complete(0 if early else call)
            else:
                self._progress()
            return call

    def push_early(
        self, grads: Mapping[str, F32], out: Mapping[str, F32], samples: int = 0, factor: float = 1.0
    ) -> None:
        """Begin a synchronous step with the gradients of some dense objects; push_pull() does the rest.

        Arguments as there. It waits for these objects too: leave the arrays until then.
        """
        with self._alone:
            self._begin_push(lambda: self._add_pushes(grads, out, samples, factor))
            self.pushed |= grads.keys()
            self._progress()

    def _fail(self, why: Exception) -> Exception:
        self.pushed = set()
        return super()._fail(why)

    def _begin_push(self, add: Callable[[], object]) -> int:
        """Begin a call with pushes, and with the cut that has to come before them."""

        def add_all() -> None:
            if self.cuts_next is not None:
                self._core.cut(False, self.cuts_next)
            add()
            self.cuts_next = None

        self._begun = True
        return self._begin(add_all)

    def _add_pushes(
        self, grads: Mapping[str, F32], out: Mapping[str, F32], samples: int, factor: float
    ) -> None:
        for name, i in self._dense.items():
            if name in grads:
                _add_named(name, self._core.push, i, grads[name], out.get(name), samples, factor)

    def ask(self, out: Mapping[str, F32], rows: Mapping[str, tuple[U64, F32]]) -> int:
        """Begin to read dense values and rows, after all pushes so far; return the number of the call."""

        def add() -> None:
            for name, array in out.items():
                _add_named(name, self._core.pull, self._get_id("dense", name), array)
            for name, own in rows.items():
                _add_named(name, self._core.pull_rows, self._get_id("sparse", name), *own)

        return self.call(add, wait=False)

    def mark(self, *, more: bool = False) -> None:
        """Note that the next gradients are computed from the dense values read last and from the rows read
        since the mark before; an asynchronous push says their versions. `more`: they are added to those of
        the mark before, and the push is as old as that."""
        with self._alone:
            self._core.mark(more)

    @property
    def cut_step(self) -> int:
        """The last step after which pservers were cut, as far as this trainer knows; 0: none."""
        return self._core.get_cut_step()

    def cut(self, flags: int) -> None:
        """Cut all shards now; in trainer 0, between its steps."""
        self.call(lambda: self._core.cut(True, flags))

    def count_dropped(self) -> dict[str, int]:
        """Return the pushes of each object that pservers dropped because they came too late, by shard."""
        ids = {**self._dense, **self._sparse}
        return {name: count for name, i in ids.items() if (count := self._core.count_dropped(i))}

    def pull(self, out: Mapping[str, F32]) -> None:
        """Store the current dense values in place."""
        self.wait(self.ask(out, {}))

    def pull_tables(self, keys: Mapping[str, U64]) -> dict[str, F32]:
        """Return the rows [n, dim] of these keys of each table, in calls of up to PULL_BYTES or one row.

        Missing rows have initial values.
        """
        rows, parts = dict[str, F32](), list[tuple[int, U64, F32]]()
        for name, own in keys.items():
            i, dim = self._get_id("sparse", name), self._dims[name]
            rows[name] = np.empty((len(own), dim), np.float32)
            n = max(1, PULL_BYTES // (4 * dim))
            parts += [(i, own[at : at + n], rows[name][at : at + n]) for at in range(0, len(own), n)]
        while parts:
            sizes = itertools.accumulate(values.nbytes for _, _, values in parts)
            count = max(1, sum(size <= PULL_BYTES for size in sizes))
            self.call(functools.partial(self._add_pulls, parts[:count]))
            del parts[:count]
        return rows

    def _add_pulls(self, parts: Sequence[tuple[int, U64, F32]]) -> None:
        for part in parts:
            self._core.pull_rows(*part)

    def _get_id(self, kind: str, name: str) -> int:
        ids = self._dense if kind == "dense" else self._sparse
        if name not in ids:
            raise ValueError(f"unknown {kind} parameter {name!r}")
        return ids[name]

    def save(self, folder: Path, save: str) -> list[Entry]:
        """Let every shard write its part of a save to `folder`, and move the parts here unless it is shared.

        For trainer 0, between its steps. Raises SaveError, OSError; what was there stays as it was.
        """
        self.connect()
        every = range(self.layout.pservers)
        spare = {*every}  # whose parts go: all if it fails
        try:
            question = {"ask": "save", "folder": str(folder), "save": save}
            answers = self.ask_pservers(every, question, SaveError)
            entries = [Entry(**one) for answer in answers for one in answer["files"]]
            spare = set().union(*[self.take(folder, entry) for entry in entries])
            return entries
        finally:
            self.drop(spare, save)

    def load(self, folder: Path) -> None:
        """Let every shard take the values of new objects from a set; for trainer 0, before any is created.

        A pserver takes parts that it lacks from another that has them. Raises SetError.
        """
        self.connect()
        question = {"ask": "load", "folder": str(folder), "pservers": self._endpoints}
        self.ask_pservers(range(self.layout.pservers), question, SetError)

    @property
    def passes(self) -> int:
        return self._told["END_PASS"]

    @property
    def steps(self) -> int:
        """Steps of the object that has most, as far as answers have them."""
        return max(self.count_steps().values(), default=0)

    def count_steps(self) -> dict[str, int]:
        """Return the steps of each object at the shard that has most, as far as answers have them."""
        shards = range(len(self._shards))
        ids = {**self._dense, **self._sparse}
        return {name: max(self._core.get_version(i, shard) for shard in shards) for name, i in ids.items()}

    def end_pass(self) -> None:
        """End this trainer's pass: push nothing from now on. Returns when all trainers have ended it."""
        self._tell("END_PASS")

    def barrier(self) -> None:
        """Wait until every trainer has called this or has finished."""
        self._tell("BARRIER")

    def _tell(self, what: str) -> None:
        def add() -> None:
            self._core.tell(what, self._told[what])
            self._told[what] += 1

        self.connect()
        self.call(add)

    def make_message_table(self) -> int:
        """Make the table of `messages`, with the rule value -= push and no steps; return its number."""
        init = Init(kind="normal", mean=0.0, std=0.0)
        rule = Optim(method="sgd", learning_rate=1.0)
        mode = MODES["half_async"], 0  # no step to wait for, and no empty pushes in others' steps
        into = dict[str, int]()
        self._add_table(into, MESSAGES, (0, COLS), rule, init, ANY, mode)
        return into[MESSAGES]

    def finish(self) -> None:
        """Report to every pserver that this trainer is finished, and close."""

        def add() -> None:
            if not self._finishing:
                self._core.tell("FINISH", 0)
                self._finishing = True

        if self.is_closed:
            return
        self._begun = True  # a pserver that is gone now will not come back
        self.connect()
        self.call(add)
        self.close()

    def close(self) -> None:
        """Close all connections. May be called twice; raises only while another thread is in a call.

        In a child made by fork it does nothing: the connections are its parent's.
        """
        if self._alone.is_forked:
            return
        with self._alone:
            self.is_closed, self.is_cut_off = True, not self._finishing
            self._core.close()

    def __exit__(self, *_: object) -> None:
        self.close()
