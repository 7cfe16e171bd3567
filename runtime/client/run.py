"""Environment of one trainer: alone or with pservers, log, progress, saving, and its end."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol

from .. import _core
from ..engine.optimizer import Optimizer
from ..engine.param_config import ANY_ID, ParamConfig
from ..engine.parameters import Parameters
from ..engine.strategy import Strategy
from ..engine.updater import LocalUpdater, NotFinite, ParamRules, Updater, Watch
from ..process.infolog import InfoLog, get_log_path
from ..process.progress import Progress
from ..process.settings import Settings
from ..shared import env
from .caller import Caller
from .dialer import ClientError, PeerVanished
from .remote import RemoteUpdater
from .remote_async import AsyncUpdater
from .remote_geo import GeoUpdater
from .snapshots import Snapshots

MODEL_NAME = "parameters.tar"
NOT_SAVED_CODE = 74  # os.EX_IOERR
SLOW = (
    "this processor lacks AVX2 or FMA, or pslaunch was built without them: layers are computed by plain C, "
    "10 to 100 times slower; the results are the same"
)
NOT_SAVED = (
    "training finished without saving the parameters: set PADDLE_INIT_SAVE_DIR=DIR "
    "(pslaunch: --save_dir=DIR), or call parameters.to_tar(file)"
)


def decide_alone(settings: Settings, *, is_local: bool) -> tuple[bool, str]:
    """Return True if this trainer trains without pservers, and a note for the log; pure.

    Raises EnvError if it needs pservers and none are given.
    """
    note = ""
    if settings.local is not None and settings.local != is_local:
        is_local = settings.local
        note = f"local={settings.local} replaces the program's is_local={not settings.local}"
    if is_local:
        if settings.pservers and not note:
            note = (
                "THIS TRAINER TRAINS ALONE: is_local=True (the default of trainer.SGD), although pservers "
                f"are given ({settings.pservers}); is_local=False trains with them"
            )
        return True, note
    if settings.pservers:
        return False, note
    if settings.job.launched and settings.num_gradient_servers == 1:
        return True, "no pservers in this job: its only trainer trains alone"
    raise env.EnvError(
        "is_local=False, but no pservers are given: init(pservers=...) or PADDLE_INIT_PSERVERS names them, "
        "is_local=True trains alone"
    )


def choose_updater(strategy: Strategy, trainers: int) -> Callable[..., RemoteUpdater]:
    """Return the maker of the updater with pservers for a strategy; it takes RemoteUpdater's arguments."""
    if strategy.mode == "async":
        return functools.partial(AsyncUpdater, pending=strategy.pending)
    if strategy.mode == "geo":
        return functools.partial(GeoUpdater, k_steps=strategy.k_steps, trainers=trainers)
    return RemoteUpdater


class _Ending(Protocol):
    def finish(self) -> None: ...
    def close(self) -> None: ...


class Run:
    """Resources of a trainer in its process. Nothing is opened before the first training."""

    _with_pservers: ClassVar[Run | None] = None  # the run of this process that uses pservers

    def __init__(self, settings: Settings, *, is_local: bool) -> None:
        self.settings = settings
        self.alone, note = decide_alone(settings, is_local=is_local)
        self._notes = [note, SLOW if _core.get_build() == "plain C" else ""]
        self.progress = Progress(settings.job.progress)
        self.progress.measure = self._measure
        self.watch = Watch(settings.nan, settings.trainer_id, lambda text: self.log.warn(text))
        self._log: InfoLog | None = None
        self.client: Caller | None = None  # of make_updater()
        self.snapshots: Snapshots | None = None  # of a training with pservers, where they are used
        self._aborted = False  # a training began and did not end successfully
        self._watching = False  # the program's end

    @property
    def log(self) -> InfoLog:
        """The trainer's log, opened on first use, closed after each training."""
        if self._log is None:
            self._log = InfoLog(get_log_path(self.settings))
        return self._log

    def make_updater(
        self,
        configs: Mapping[str, ParamConfig],
        tables: frozenset[str],
        parameters: Parameters,
        optimizer: Optimizer,
    ) -> Updater:
        """Return the updater of this run for these parameters, some of them tables of lookups."""
        updater = self._make_updater(ParamRules(configs, tables, optimizer), parameters, optimizer)
        updater.watch = self.watch
        return updater

    def _make_updater(self, params: ParamRules, parameters: Parameters, optimizer: Optimizer) -> Updater:
        if self.alone:
            if optimizer.strategy.mode != "sync":
                self._notes.append(f"mode {optimizer.strategy.mode} has no effect: this trainer trains alone")
            if self.settings.uses_snapshots:
                self._notes.append("snapshots have no effect: this trainer trains alone, without pservers")
            return LocalUpdater(params, parameters)
        self._notes.append(optimizer.warning)
        strategy, settings = optimizer.strategy, self.settings
        self.client = client = Caller(settings, strategy, lambda text: self.log.say(text))
        if settings.uses_snapshots:
            if optimizer.average:
                raise ValueError(
                    "model_average: its means are in no snapshot; leave it or --snapshot_*, --export_* out"
                )
            self.take_snapshots(client, sync=strategy.mode == "sync")
        remote: RemoteUpdater = choose_updater(strategy, settings.num_gradient_servers)(
            params,
            parameters,
            client,
            on_connected=lambda: self._note_connected(remote, strategy),
            guard=self.guard,
            snapshots=self.snapshots,
        )
        return remote

    def take_snapshots(self, client: Caller, *, sync: bool) -> Snapshots:
        self.snapshots = Snapshots(
            self.settings,
            client,
            sync=sync,
            log=lambda text: self.log.say(text),
            on_sealed=self.progress.report_again,
        )
        return self.snapshots

    def _note_connected(self, remote: RemoteUpdater, strategy: Strategy) -> None:
        if strategy.mode != "sync":
            self.log.say(f"{strategy} (docs/training.md)")
        self.note_connected(remote.client, remote)

    def _measure(self) -> dict[str, int | float | str]:
        found, told = self.settings.snapshots, dict[str, int | float | str]()
        if self.snapshots and (found.steps or found.minutes):
            told["cut"] = self.snapshots.sealed
        if self.watch.steps:
            told["metric.steps_not_finite"] = self.watch.steps
        return told

    def note_connected(self, client: Caller, remote: _Ending) -> None:
        """Report that this trainer is connected; at the interpreter's exit, that it is finished."""
        self.progress.measure = lambda: {"waited_s": client.waited_s, **self._measure()}
        self.progress.report_state("connected")
        self.watch_end(client, remote)

    def watch_end(self, client: Caller, remote: _Ending) -> None:
        """Let the interpreter's exit end `remote`, which has the client; repeated calls do nothing."""
        if not self._watching:
            self._watching = True
            _watch_crash()
            atexit.register(self._end, client, remote, os.getpid())

    def _end(self, client: Caller, remote: _Ending, pid: int) -> None:
        """At interpreter exit: report "finished" only after a successful training.

        A child made by fork says nothing: the connections are its parent's.
        """
        if os.getpid() != pid:
            return
        crash = _watch_crash()
        if self._aborted or crash or client.is_cut_off:
            remote.close()
            for fatal in crash:
                if isinstance(fatal, PeerVanished | ClientError):  # atexit can't change the code
                    self.progress.report_reason(str(fatal))
                    sys.stdout.flush()
                    os._exit(fatal.exit_code)
            return
        try:
            remote.finish()
        except (PeerVanished, ClientError) as e:
            self.log.warn(f"trainer {self.settings.trainer_id} could not report that it is finished: {e}")
            self.progress.report_reason(f"could not report that it is finished: {e}")
            sys.stdout.flush()
            os._exit(e.exit_code)
        self.progress.report_state("finished")

    @contextlib.contextmanager
    def guard_training(self) -> Iterator[None]:
        """Wrap a training: log the note, and record its outcome.

        Raises RuntimeError if another trainer of this program has trained with the pservers.
        """
        if not self.alone:
            self._claim_pservers()
        for note in filter(None, self._notes):
            self.log.warn(note)
        self._notes.clear()
        self._aborted = True
        try:
            with self.guard():
                yield
            self._aborted = False
        finally:
            if self._log is not None:
                self._log.close()
                self._log = None

    def begin_with(self) -> dict[str, Any] | None:
        """Return what the snapshot with which the training begins has of this trainer; once.

        None without a snapshot, and where a training of this process has begun before.
        """
        if self.snapshots is None:
            return None
        state, self.snapshots.state = self.snapshots.state, None
        return state

    def _claim_pservers(self) -> None:
        """Claim the pservers: they serve one trainer per process, with its optimizer and values."""
        if Run._with_pservers not in (None, self):
            raise RuntimeError(
                "trainer.SGD: another trainer.SGD of this program has trained with the pservers, which serve "
                "one per program: call train() of that one again, or start another job from "
                "saved parameters (parameters.Parameters.from_tar)"
            )
        Run._with_pservers = self

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Wrap steps and calls to pservers: on a permanent failure, log one line and exit."""
        try:
            yield
        except (PeerVanished, ClientError, NotFinite) as e:
            self._aborted = True
            self.progress.report_reason(str(e))
            self.log.warn(f"{e}; trainer {self.settings.trainer_id} ends with {e.exit_code}")
            raise SystemExit(e.exit_code) from e

    def choose_passes(self, literal: int) -> int:
        """Return the number of passes: the one given from outside, or the program's own."""
        given = self.settings.num_passes
        if given is None or given == literal:
            if literal == 0:
                self.log.warn("num_passes=0: nothing is trained, and nothing is saved")
            return literal
        self.log.say(f"num_passes={given} replaces the program's {literal}")
        return given

    def save_pass(self, parameters: Parameters, pass_id: int, *, last: bool) -> None:
        """On trainer 0, write the parameters: the last pass to the job's output, each pass to save_dir."""
        settings, job = self.settings, self.settings.job
        if settings.trainer_id != 0:
            return
        if last and job.output_dir and not settings.no_save:
            self._save(parameters, pass_id, Path(job.output_dir) / MODEL_NAME)
        if settings.save_dir and (last or (pass_id + 1) % settings.saving_period == 0):
            self._save(parameters, pass_id, Path(settings.save_dir) / f"pass-{pass_id:05d}" / MODEL_NAME)
        if last and not (job.output_dir or settings.save_dir or parameters.written):
            self.log.say(NOT_SAVED)

    def _save(self, parameters: Parameters, pass_id: int, path: Path) -> None:
        try:
            if any(parameters.get_shape(name)[0] == ANY_ID for name in parameters):
                path = path.with_suffix("")  # a set has the rows that there are
                parameters.save(path)
            else:
                parameters.save_tar(path)
        except OSError as e:
            why = f"{path.absolute()} could not be saved: {e.strerror or e}"
            self.progress.report_reason(why)
            self.log.warn(f"{why}; trainer {self.settings.trainer_id} ends with {NOT_SAVED_CODE}")
            raise SystemExit(NOT_SAVED_CODE) from e
        self.log.say(f"parameters of pass {pass_id} are in {path.absolute()}")


@functools.cache
def _watch_crash() -> list[BaseException]:
    """Return a list that gets the exception that ends this program: atexit functions can't tell of one."""
    seen, shown = list[BaseException](), sys.excepthook

    def look(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        seen[:] = [value]
        shown(kind, value, trace)

    sys.excepthook = look
    return seen
