"""The client of pservers for any program: handles of tensors and tables, calls that give futures.

docs/client.md has its use. Caller does the work; arrays are checked here and borrowed by the compiled core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.arrays import F32, U64
from ..engine.entry import ANY, EntryAttr, ShowClickEntry
from ..engine.keeping import make_create
from ..engine.kernel_numbers import Mode, Optim
from ..engine.optimizer import Optimizer
from ..engine.param_config import ANY_ID, ParamConfig
from ..engine.strategy import Strategy
from ..files.objects import describe_object
from ..process.settings import Settings, get_settings, resolve
from ..shared.env import EnvError
from .caller import Caller, Init, print_line
from .control import Message
from .remote import save_set
from .remote_geo import ADDS
from .run import Run

_F32, _I64 = np.dtype(np.float32), np.dtype(np.int64)
_NONE: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True, eq=False, slots=True)
class TensorHandle:
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class TableHandle:
    """A table on pservers: rows [dim] by 64-bit key, made when they are used."""

    name: str
    dim: int
    push_dim: int  # of a row in a push: with a ShowClickEntry shows and clicks come before the gradient


_Rule = Optimizer | Optim | None
_Entry = EntryAttr | None
_Dense = Mapping[TensorHandle, Any]
_Rows = Mapping[TableHandle, tuple[Any, Any]]


class Future:
    """A call on its way. Its arrays are borrowed until it is done. Calls of the client move it, no thread."""

    __slots__ = ("_call", "_caller")

    def __init__(self, caller: Caller, call: int) -> None:
        self._caller, self._call = caller, call

    def done(self) -> bool:
        """Send and receive without waiting; return True if all answers are here."""
        self._caller.progress()
        return self._caller.is_done(self._call)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all answers are here, at most `timeout` seconds; then TimeoutError: the call goes on."""
        if not self._caller.wait(self._call, math.inf if timeout is None else timeout):
            raise TimeoutError(f"pservers have not answered within {timeout:g} s; the call is on its way")


def view(name: str, array: Any, *, out: bool = False) -> npt.NDArray[Any]:
    """Return the memory of an array, a CPU tensor or a buffer as an array of numpy. Raises TypeError."""
    if isinstance(array, np.ndarray):
        return array
    try:
        if not hasattr(array, "__dlpack__"):
            return np.asarray(memoryview(array))
        found: npt.NDArray[Any] = np.from_dlpack(array)
        # Before numpy 2.1 that is never writable; a CPU tensor of torch is the same memory this way.
        return np.asarray(array) if out and not found.flags.writeable else found
    except (BufferError, RuntimeError, TypeError) as e:
        expected = "expected an array of numpy, a CPU tensor or a buffer"
        raise TypeError(f"{name}: {type(array).__name__}: {e}; {expected}") from None


def _see(name: str, shape: tuple[int, ...], array: Any, *, out: bool = False) -> F32:
    """Return the values of an array, checked."""
    found = array if type(array) is np.ndarray else view(name, array, out=out)
    if found.shape == shape and found.dtype == _F32 and found.flags.c_contiguous:
        return found
    form = "" if found.flags.c_contiguous else ", not C-contiguous"
    raise (ValueError if found.dtype == _F32 else TypeError)(
        f"{name}: an array of {found.dtype} {found.shape}{form}; expected C-contiguous float32 {shape}: "
        "reshape it, or give a copy by numpy.ascontiguousarray(array, 'float32')"
    )


def _see_rows(name: str, dim: int, pair: tuple[Any, Any], *, out: bool = False) -> tuple[U64, F32]:
    """Return keys and rows [n, dim], checked. Keys of int64 are taken as uint64."""
    keys = view(name, pair[0])
    if keys.dtype == _I64:
        if keys.size and keys.min() < 0:
            raise ValueError(f"{name}: keys below 0; with array.view('uint64') they are keys above 2**63")
        keys = keys.view(np.uint64)
    if keys.ndim != 1 or keys.dtype != np.uint64:
        raise TypeError(f"{name}: keys of {keys.dtype} {keys.shape}, expected uint64 or int64 [n]: convert")
    return keys, _see(name, (len(keys), dim), pair[1], out=out)


def _see_all(kind: type, given: Mapping[Any, Any], *, out: bool = False) -> dict[str, Any]:
    """Return the values of tensors, or keys and rows of tables, checked, by name."""
    for handle in given:
        if type(handle) is not kind:
            raise TypeError(f"{handle!r} is no {kind.__name__}: give the handle that the client has made")
    if kind is TensorHandle:
        return {w.name: _see(w.name, w.shape, own, out=out) for w, own in given.items()}
    return {t.name: _see_rows(t.name, t.dim if out else t.push_dim, own, out=out) for t, own in given.items()}


class Client(AbstractContextManager["Client"]):
    """A trainer's connection to pservers. Use it in one thread; leave arrays alone until their call is done.

    All trainers make the same tensors and tables in the same order, also later; a step needs all of them.
    After a TypeError or ValueError nothing was sent. Raises ClientError if a pserver refuses, PeerVanished if
    one is gone for good. A program that ends without an exception says finished at its end.
    """

    def __init__(
        self,
        servers: Sequence[str] | Settings,
        secret_file: str | Path = "",
        trainer: int = 0,
        trainers: int = 1,
        mode: Mode = "sync",
        *,
        discard_ratio: float | None = None,
        log: Callable[[str], None] | None = print_line,
        **others: object,
    ) -> None:
        """Connect to pservers, "host:port" each, as trainer number `trainer` of `trainers`.

        others: arguments of init(), as ports_num and seed. docs/training.md has modes and discard_ratio.
        """
        own = {"trainer_id": trainer, "num_gradient_servers": trainers, "secret_file": str(secret_file)}
        if isinstance(servers, Settings):
            settings = servers
        else:
            settings = resolve({**others, **own, "pservers": ",".join(servers)}, {})
        if not settings.pservers:
            raise EnvError(
                "no pservers: start the program by pslaunch with --server_num N, or name them: "
                'Client(["host:port"])'
            )
        self._run = run = Run(replace(settings, local=None), is_local=False)
        if settings.nan != "warn":
            run.log.warn(f"--nan={settings.nan} has no effect on a Client: look at gradients before a push")
        strategy = Strategy(mode=mode, discard_ratio=discard_ratio, k_steps=int(mode == "geo"))
        self._caller = caller = Caller(settings, strategy, log or (lambda text: run.log.say(text)))
        self.trainer, self.trainers = settings.trainer_id, settings.num_gradient_servers
        self._mode, self._progress, self._pushes = mode, run.progress, 0
        self._objects: list[dict[str, Any]] = []  # descriptions, for saves
        self._describe: Callable[[], Message] = dict  # what a snapshot has of this trainer
        self._step: Future | None = None  # the last push
        self.barrier, self.close = caller.barrier, caller.close
        run.watch_end(caller, self)
        try:
            caller.connect()
        except BaseException:
            caller.close()
            raise
        run.note_connected(caller, self)

    @classmethod
    def from_env(cls, mode: Mode = "sync", *, discard_ratio: float | None = None) -> Client:
        """Connect as the launcher's variables and init() say. Raises EnvError."""
        return cls(get_settings(), mode=mode, discard_ratio=discard_ratio, log=None)

    def tensor(
        self, name: str, shape: Sequence[int], optimizer: _Rule = None, *, init: Any = 0.0
    ) -> TensorHandle:
        """Make a dense tensor. init: a number or an array; trainer 0's counts.

        optimizer: how pservers apply the sum of all trainers' gradients; in mode geo none.
        """
        values = np.full(shape, init if isinstance(init, int | float) else view(name, init), np.float32)
        cols = shape[-1] if len(shape) else 1
        config = ParamConfig(name=name, rows=values.size // max(cols, 1), cols=cols)
        rule = self._choose_rule(config, optimizer, rows=False)
        self._caller.create_dense(name, values.size, rule)
        self._note(config, rule, rows=False)
        self._caller.init_dense({name: values})
        return TensorHandle(name, tuple(shape))

    def table(
        self, name: str, dim: int, optimizer: _Rule = None, *, init: float | Init = 0.0, entry: _Entry = None
    ) -> TableHandle:
        """Make a table of rows [dim] for any 64-bit keys. init: of rows; entry: keys that get one."""
        start = init if isinstance(init, Init) else Init(kind="normal", mean=float(init), std=0.0)
        config = ParamConfig(name=name, rows=ANY_ID, cols=dim, entry=entry or ANY, **asdict(start))
        if self._mode == "geo" and entry:
            raise ValueError(f"{name}: geo has no entry rules, but it has {entry}")
        rule = self._choose_rule(config, optimizer, rows=True)
        self._caller.create_sparse(name, ANY_ID, dim, rule, replace(start, kind=config.start), config.entry)
        self._note(config, rule, rows=True)
        return TableHandle(name, dim, dim + 2 * isinstance(entry, ShowClickEntry))

    def _choose_rule(self, config: ParamConfig, optimizer: object, *, rows: bool) -> Optim:
        name, rule = config.name, optimizer
        if self._mode == "geo":
            if optimizer is not None:
                raise ValueError(f"{name}: in mode geo pservers add changes: leave the optimizer out")
            rule = ADDS
        elif isinstance(optimizer, Optimizer):
            rule = optimizer.make_rule(config, rows=rows)
            if optimizer.scheduler or optimizer.norm or optimizer.average or optimizer.strategy != Strategy():
                raise ValueError(
                    f"{name}: an optimizer's scheduler, strategy, model_average and clipping by norm have no "
                    "effect here: push_pull has factor, Client has mode"
                )
        if not isinstance(rule, Optim):
            raise TypeError(f"{name}: optimizer={optimizer!r}, expected one of pslaunch.runtime.optimizer")
        return rule

    def _note(self, config: ParamConfig, rule: Optim, *, rows: bool) -> None:
        """Note the description of an object, for sets of files."""
        if self._run.settings.snapshots.are_asked and self._run.snapshots is None:
            raise ValueError(
                "snapshots and exports: call resume() before the first tensor, or leave them out"
            )
        create = make_create(config, rule, self._caller.seed, table=rows)
        self._objects.append(describe_object(create, config.shape))

    def push_pull(
        self,
        grads: _Dense = _NONE,
        out: _Dense = _NONE,
        rows: _Rows = _NONE,
        fetch: _Rows = _NONE,
        samples: int = 0,
        factor: float = 1.0,
    ) -> Future:
        """Begin a step: push gradients of all tensors and of rows, and take the values after it.

        sync: after the step of all trainers; else after this push. Keys of `rows` are unique; a table that it
        lacks gets no gradients, and keys of `fetch` may repeat. samples: of the batch, for schedules of the
        learning rate. factor: of that rate.
        """
        caller = self._caller
        if self._progress.is_due():
            self._progress.report(batch=self._pushes)
        if self._mode != "sync":
            caller.mark()
        dense, values = _see_all(TensorHandle, grads), _see_all(TensorHandle, out, out=True)
        sparse, reads = _see_all(TableHandle, rows), _see_all(TableHandle, fetch, out=True)
        if not 0 <= samples < 2**32 or samples % 1:
            raise ValueError(f"samples={samples!r}, expected a whole number from 0, of the batch")
        if snapshots := self._run.snapshots:
            if self._mode == "sync":
                self.settle()
            else:
                snapshots.after_step(self._describe)
            snapshots.note_step()
        call = caller.push_pull(dense, values, sparse, reads, samples, factor, wait=False)
        self._pushes += 1
        self._step = Future(caller, call)
        return self._step

    def push(
        self, grads: _Dense = _NONE, rows: _Rows = _NONE, samples: int = 0, factor: float = 1.0
    ) -> Future:
        """Begin a step as push_pull() does, without values."""
        return self.push_pull(grads, _NONE, rows, _NONE, samples, factor)

    def pull(self, out: _Dense = _NONE, fetch: _Rows = _NONE) -> Future:
        """Begin to read values and rows, after all pushes so far; rows that are not there: initial values."""
        dense, rows = _see_all(TensorHandle, out, out=True), _see_all(TableHandle, fetch, out=True)
        return Future(self._caller, self._caller.ask(dense, rows))

    def reduce(self, array: Any) -> npt.NDArray[Any]:
        """Return the sum of the arrays of all trainers, in their order; all call it between two steps."""
        own = np.ascontiguousarray(view("reduce", array))
        parts = [np.frombuffer(one, own.dtype) for one in self._caller.messages.gather(own.tobytes())]
        if any(one.size != own.size for one in parts):
            raise ValueError(f"reduce: arrays of trainers have {[one.size for one in parts]} items")
        return sum(parts, np.zeros(own.size, own.dtype)).reshape(own.shape)

    def save(self, folder: str | Path, files: Mapping[str, bytes] = _NONE) -> None:
        """Let pservers write all values and states, with these files; in trainer 0, between its steps."""
        if self.trainer != 0:
            raise ValueError(f"{folder}: only trainer 0 saves")
        save_set(self._caller, Path(folder).absolute(), self._objects, files, ())

    def load(self, folder: str | Path) -> None:
        """Let pservers take tensors and tables from a set when they are made; all trainers call it before."""
        if self.trainer == 0:
            self._caller.load(Path(folder).absolute())
        self._caller.barrier()

    def resume(self, describe: Callable[[], Message]) -> Message | None:
        """Let snapshots keep what `describe` returns, and return what the one to begin with has; else None.

        All trainers call it before their first tensor. describe: for JSON, of this trainer after its last
        step; called by settle(), or else by the next push, if that step was cut.
        """
        if not self._run.settings.uses_snapshots:
            return None
        self._describe = describe
        snapshots = self._run.take_snapshots(self._caller, sync=self._mode == "sync")
        snapshots.begin([])
        return snapshots.state

    def settle(self) -> None:
        """Wait for the last push; if its step was cut, the snapshot gets the state of this trainer."""
        step, self._step = self._step, None
        if step is not None:
            step.wait()
            if self._run.snapshots:
                self._run.snapshots.after_step(self._describe)

    def end_pass(self) -> None:
        """Say that this trainer has no further batches in this pass; returns when no trainer has."""
        self.settle()
        if self._run.snapshots:
            self._run.snapshots.end_pass(self._describe)
        self._caller.end_pass()

    def finish(self) -> None:
        """Say that this trainer has finished, and close the connections."""
        if self._run.snapshots and not self._caller.is_closed:
            self.settle()
            self._run.snapshots.finish()
        self._caller.finish()

    def stats(self) -> dict[str, Any]:
        """Return seconds of waiting, and by name the steps and the dropped pushes, as far as answers say."""
        caller, waited_s = self._caller, self._caller.waited_s
        return {"waited_s": waited_s, "steps": caller.count_steps(), "dropped": caller.count_dropped()}

    def __exit__(self, kind: object, *_: object) -> None:
        (self.close if kind else self.finish)()
