"""Life of a process in a Fleet job: its part, its server or its connection to the servers, and its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...client.caller import Caller
from ...client.job_metrics import JobMetrics, list_states
from ...client.run import Run
from ...engine.arrays import F32
from ...engine.keeping import check_parameters, describe_left_out
from ...engine.learner import Learner
from ...engine.plan import Plan
from ...engine.updater import ParamRules, Updater
from ...files.joined import check_finite
from ...files.sets import Layout, Set, Share
from ...process.settings import Settings, build_pserver_options, get_settings, prepare, set_part
from ...pserver import pserver
from ...pserver.threads import Loaded
from ...shared import env
from .replay import Array, Key, Replay, State
from .role_maker import PaddleCloudRoleMaker, Part, RoleMaker

if TYPE_CHECKING:
    from ..program.program import Program  # at run time it would import this module


class Fleet:
    """State behind the functions of `pslaunch.runtime.fleet`: one for each process."""

    def __init__(self) -> None:
        self._part: Part | None = None
        self._run: Run | None = None
        self._client: Caller | None = None
        self._program: Program | None = None  # that trains
        self._days: dict[str, dict[str, Any]] = {}  # of its tables with an entry rule: how they shrink
        self._updater: Updater | None = None  # of that program, once it is connected
        self._loaded: Loaded | None = None  # by this server
        self.replay = Replay()
        self._describe: Callable[[], State] = lambda: {"runs": 0}  # what a snapshot has of this worker
        self._steps = self._samples = 0
        self._reported_s = 0.0
        self._metrics = JobMetrics()
        self._latest: tuple[Learner, F32] | None = None  # with the loss, at the last report

    # -- part

    def init(
        self, role_maker: RoleMaker | None = None, is_collective: bool = False, strategy: object = None
    ) -> None:
        """Read this process's part in the job; the first function of a Fleet program.

        Without `role_maker` the environment gives it. `strategy` is an argument of distributed_optimizer().
        Raises EnvError, naming the variables that are missing or wrong.
        """
        if strategy is not None:
            raise ValueError(
                "fleet.init: give strategy to fleet.distributed_optimizer; it has no effect here"
            )
        if isinstance(role_maker, type):
            name = role_maker.__name__  # type: ignore[unreachable]  # for users without a type checker
            raise TypeError(f"fleet.init: {name} is a class; call it, {name}()")
        part = (role_maker or PaddleCloudRoleMaker(is_collective)).make_part()
        if part.note:
            print(part.note, file=sys.stderr)
        servers, own = ",".join(part.servers), 0 if part.is_server else part.index
        set_part({"pservers": servers, "num_gradient_servers": part.workers, "trainer_id": own})
        prepare({})
        self._part = part

    def get_part(self) -> Part:
        """Return this process's part in the job."""
        if self._part is None:
            raise RuntimeError("call fleet.init() first: this process does not know its part in the job")
        return self._part

    # -- server

    def init_server(self, dirname: str | None = None) -> None:
        """Load what fleet.save_persistables() wrote to `dirname`, on every server: each takes its own.

        Without `dirname` the training begins with the values of worker 0. Raises ValueError if a file is
        missing or damaged, or has other shapes than the program, or values that are not finite.
        """
        part, settings = self._check_role("init_server", server=True)
        if dirname is None:
            return
        program, where = self._program, f"fleet.init_server({dirname!r})"
        if program is None or program.training is None:
            raise RuntimeError(
                f"{where}: call minimize() of fleet.distributed_optimizer(optimizer) first: servers take the "
                "values of the program that trains"
            )
        plan = Plan(program.graph, [], program.training.goal)
        rules = ParamRules(plan.trained, plan.tables, program.training.optimizer)
        if fixed := [name for name in program.graph.params if name not in rules.rules]:
            raise ValueError(
                f"{where}: {', '.join(fixed)} does not learn, so servers do not have it: let workers call "
                f"fleet.load_persistables(exe, {dirname!r}) before fleet.init_worker()"
            )
        layout = Layout(len(part.servers), settings.ports_num, settings.ports_num_for_sparse)
        try:
            ports = range(settings.ports_num + settings.ports_num_for_sparse)
            shares = [Share(Set(Path(dirname).absolute()), layout, part.index, port) for port in ports]
            for share in shares:
                check_parameters(share.set, plan.trained)
                check_finite(share.set, rules.rules)
        except OSError as e:
            raise ValueError(
                f"{where}: {e.filename}: {e.strerror}; fleet.save_persistables(exe, {dirname!r}) writes it, "
                "and every server needs a copy"
            ) from None
        except ValueError as e:
            raise ValueError(f"{where}: {e}") from None
        found = shares[0].set
        if line := describe_left_out(found, rules.rules):
            print(line, file=sys.stderr)
        print(f"loaded {len(plan.trained)} parameters from {found.folder}, digest {found.digest:.12}")
        self._loaded = Loaded(shares, (part.index, len(part.servers)), found.digest)

    def run_server(self) -> None:
        """Serve at POD_IP:PADDLE_PORT until all workers have stopped.

        An error ends the program with its exit code.
        """
        part, settings = self._check_role("run_server", server=True)
        host, port = env.split_addr(part.servers[part.index], "server_endpoints")
        sys.stdout.flush()
        if code := pserver.main(build_pserver_options(settings, host, str(port)), self._loaded):
            raise SystemExit(code)

    # -- worker

    def set_program(self, program: Program, days: dict[str, dict[str, Any]]) -> None:
        """Take the program that trains with the servers: there is one for each process."""
        if self._program is not None:
            raise ValueError("fleet.distributed_optimizer: another program trains with the servers already")
        self._program, self._days = program, days

    def init_worker(self) -> None:
        """Connect to all servers, and agree with the other workers on the initial values, those of worker 0.

        If the startup program has not been run, the second part comes with it. A worker that trains alone
        has no servers.
        """
        part, settings = self._check_role("init_worker", server=False)
        if self._run is not None:
            raise RuntimeError("fleet.init_worker: called twice")
        self._run = run = Run(settings, is_local=not part.servers)
        if self._program is not None:
            self.note_initialized()
        elif part.servers:
            self._client = Caller(settings, log=lambda text: run.log.say(text))
            with run.guard():
                self._client.connect()
            run.note_connected(self._client, self._client)

    def note_initialized(self) -> None:
        """Connect the program that trains, once its parameters and the worker are there."""
        program, run = self._program, self._run
        if program is None or program.startup is None or run is None or self._updater is not None:
            return
        parameters, training = program.startup.parameters, program.training
        if parameters is None or training is None:
            return
        plan = Plan(program.graph, [], training.goal)
        updater = run.make_updater(plan.trained, plan.tables, parameters, training.optimizer)
        with run.guard():
            updater.start()
        self.replay.begin(run.begin_with(), run.log.say)
        self._client, self._updater = run.client, updater

    def refuse_alone(self) -> None:
        """Raise RuntimeError if this job has servers: a program that trains alone would not use them."""
        if self._part is not None and self._part.servers:
            raise RuntimeError(
                "Executor.run: this job has servers, but the program trains in this process alone; "
                "call minimize() of fleet.distributed_optimizer(optimizer)"
            )

    def get_updater(self, program: Program) -> Updater:
        if self._updater is None or program is not self._program:
            raise RuntimeError("Executor.run: call fleet.init_worker() before the first step of training")
        return self._updater

    def guard(self) -> AbstractContextManager[None]:
        """Wrap calls to servers: if one is gone for good, the process ends with a line that says so."""
        return self._get_run("init_worker").guard()

    def report_step(self, samples: int, loss: F32, learner: Learner) -> None:
        """Report the progress of this worker, at most once in a while."""
        self._steps += 1
        self._samples += samples
        if self._get_run("init_worker").progress.is_due():
            self._latest = learner, loss
            self._report()

    def _report(self, *, last: bool = False) -> None:
        """Report; with `last` if there was a report before."""
        if self._latest is None or self._program is None or (self._client and self._client.is_closed):
            return
        now_s, run, (learner, loss) = time.monotonic(), self._get_run("stop_worker"), self._latest
        speed = self._samples / (now_s - self._reported_s) if self._reported_s else 0.0
        self._samples, self._reported_s = 0, now_s
        with run.guard():
            rows = list_states(self._program.always, learner.counts)
            found = self._metrics.measure(rows, self._client, last=last)
        run.progress.report(
            **{"pass": 0, **found}, batch=self._steps, cost=float(loss.mean()), samples_per_s=speed
        )

    def note_run(self, learner: Learner, key: Key, values: Sequence[Array]) -> None:
        self.replay.note()
        self._describe = lambda: self.replay.describe(learner, key, values)
        if (snapshots := self._get_run("init_worker").snapshots) is not None:
            snapshots.after_step(self._describe)

    def _end_pass(self, updater: Updater) -> None:
        """Wait for all workers, unless the snapshot with which this one begins has that behind it."""
        if self.replay.is_on:
            return
        if (snapshots := self._get_run("init_worker").snapshots) is not None:
            snapshots.end_pass(self._describe)
        updater.end_pass()

    def barrier_worker(self) -> None:
        """Wait until all workers have called this, or have stopped. Others may go on without this one."""
        run = self._get_run("barrier_worker")
        with run.guard():
            if self._updater is not None:
                self._end_pass(self._updater)
            elif self._client is not None:
                self._client.barrier()

    def gather(self, data: bytes, where: str) -> list[bytes]:
        """Return the bytes of every worker, in order; all workers call it."""
        run = self._get_run(where)
        if self._client is None:
            return [data]
        with run.guard():
            if self._updater is not None:
                self._end_pass(self._updater)
            return self._client.messages.gather(data)

    def shrink(self, threshold: float | None = None) -> None:
        """End a day of tables with an entry rule, on all workers: counts decay, and old or poor rows go.

        DistributedStrategy.sparse_table_configs has the numbers. With `threshold` nothing decays, and rows go
        with a score below it. docs/training.md has the scores.
        """
        run = self._get_run("shrink")
        if not self._days or self._updater is None or self._client is None:
            raise ValueError("fleet.shrink has no effect: no table with an entry rule is on servers")
        with run.guard():
            self._end_pass(self._updater)
            for name, day in () if self.replay.is_on else self._days.items():
                self._client.shrink(name, **(day if threshold is None else {"score": threshold}))

    def stop_worker(self) -> None:
        """Report to the servers that this worker has finished; they end when all have."""
        run = self._get_run("stop_worker")
        self._report(last=True)
        with run.guard():
            if self._updater is not None:
                self._updater.finish()
            elif self._client is not None:
                self._client.finish()

    def _check_role(self, where: str, *, server: bool) -> tuple[Part, Settings]:
        part = self.get_part()
        if part.is_server != server:
            own, asked = ("server", "is_worker") if part.is_server else ("worker", "is_server")
            raise RuntimeError(
                f"fleet.{where}: this process is {own} {part.index}; call it only if fleet.{asked}() is True"
            )
        return part, get_settings()

    def _get_run(self, where: str) -> Run:
        self._check_role(where, server=False)
        if self._run is None:
            raise RuntimeError(f"fleet.{where}: call fleet.init_worker() first")
        return self._run


FLEET = Fleet()
