"""The v2 trainer: `SGD.train` runs passes over batches, `SGD.test` measures."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from ..client.job_metrics import JobMetrics
from ..client.run import Run
from ..engine.average import ModelAverage
from ..engine.columns import Batch, Feeder, Feeding
from ..engine.learner import Learner, look_ahead
from ..engine.ops.metric import ONE
from ..engine.optimizer import Optimizer
from ..engine.parameters import Parameters
from ..engine.plan import BatchInput, StepResult
from ..engine.updater import ParamRules, Updater
from ..process.infolog import format_metrics
from ..process.settings import get_settings
from . import event
from .building import Layer, Measure, list_data, list_measures, make_program
from .reader import State, get_random_state, set_random_state

__all__ = ["SGD"]

BatchReader = Callable[[], Iterable[Batch]]
Handler = Callable[[object], None]


@dataclass(slots=True)
class Totals:
    """Sums over samples, and their means."""

    measures: Sequence[Measure]
    samples: int = 0
    cost_sum: float = 0.0
    sums: list[Any] = field(default_factory=list)  # of each measure; none without a batch

    def add(self, other: Totals) -> None:
        self.samples += other.samples
        self.cost_sum += other.cost_sum
        self.sums = [a + b for a, b in itertools.zip_longest(self.sums, other.sums, fillvalue=0)]

    @property
    def cost(self) -> float:
        """Mean over the samples; NaN without any."""
        return self.cost_sum / self.samples if self.samples else math.nan

    @property
    def metrics(self) -> dict[str, float]:
        if not self.sums:
            return {one.name: math.nan for one in self.measures}
        pairs = zip(self.measures, self.sums, strict=True)
        return {f"{one.name}{end}": x for one, sums in pairs for end, x in one.measure(sums).items()}


def sum_costs(step: StepResult, measures: Sequence[Measure]) -> Totals:
    """Return the sums over a batch; none of a step that was left out."""
    if not step.samples:
        return Totals(measures)
    # In the order of the samples: other sums of numpy depend on the processor.
    cost = np.cumsum(step.values[0], dtype=np.float64)
    values = iter(step.values[1:])
    sums = [np.array(one.collect(step, *itertools.islice(values, len(one.values)))) for one in measures]
    return Totals(measures, step.samples, float(cost[-1]), sums)


class SGD:
    """Trains `parameters` to reduce `cost`, by `update_equation`.

    With `is_local` it trains alone, in this process; otherwise together with the other trainers, through
    the pservers of `init()` or its environment. `extra_layers`: data layers that `cost` does not use, as the
    shows and clicks of an entry rule; a sample has items for them.
    """

    def __init__(
        self,
        cost: Layer,
        parameters: Parameters,
        update_equation: Optimizer,
        extra_layers: Layer | Sequence[Layer] | None = None,
        is_local: bool = True,
        pserver_spec: object = None,
    ) -> None:
        if not isinstance(parameters, Parameters):
            raise TypeError(f"trainer.SGD: parameters={parameters!r} does not come from parameters.create()")
        if not isinstance(update_equation, Optimizer):
            raise TypeError(f"trainer.SGD: update_equation={update_equation!r} is not an optimizer")
        if pserver_spec is not None:
            raise ValueError("trainer.SGD: the bundled runtime does not support pserver_spec")
        extra = [extra_layers] if isinstance(extra_layers, Layer) else list(extra_layers or ())
        if not all(getattr(one, "type", None) for one in extra):
            raise ValueError(f"trainer.SGD: extra_layers={extra_layers!r}, expected data layers")
        if not cost.is_cost:
            raise ValueError(f"trainer.SGD: layer {cost.name} is not a cost")
        self._cost, program = cost, make_program([cost, *extra])
        self.measures = list_measures(cost, program)
        self._targets = [cost.value, *(value for one in self.measures for value in one.values)]
        program = make_program([cost, *extra], self._targets)
        parameters.check("trainer.SGD", program.params)
        self._parameters = parameters
        self._data = list_data(program)
        self._learner = Learner(program, parameters)
        plan = self._learner.get_plan(self._targets, cost.value)
        self._run = Run(get_settings(), is_local=is_local)
        self._average = update_equation.average or ModelAverage(1.0)
        if update_equation.average is not None:
            self._average.attach(parameters, ParamRules(plan.trained, plan.tables, update_equation).dense)
        self._updater = self._run.make_updater(plan.trained, plan.tables, parameters, update_equation)

    def train(
        self,
        reader: BatchReader,
        num_passes: int = 1,
        event_handler: Handler | None = None,
        feeding: Feeding = None,
        test_reader: BatchReader | None = None,
    ) -> None:
        """Train on the batches of `reader()` for `num_passes` passes; 0 trains nothing, and logs a warning.

        The event handler may call `test` and read `parameters`. `test_reader`: for `test_period`.
        If a pserver is gone for good, the process exits with 75.
        """
        if not callable(reader):
            raise TypeError("train: reader must be a function that returns batches; use paddle.batch")
        if num_passes < 0:
            raise ValueError(f"train: num_passes={num_passes} is negative")
        if self._run.settings.test_period and test_reader is None:
            raise ValueError("test_period has no effect: train() needs test_reader")
        feeder = Feeder(self._data, feeding)
        with self._run.guard_training():
            passes = self._run.choose_passes(num_passes)
            handler = event_handler or (lambda _: None)
            loop = _Training(
                self, self._run, self._learner, self._updater, feeder, handler, test_reader, feeding, passes
            )
            self._updater.start()
            state = self._run.begin_with()
            if state is not None:
                self._learner.steps = state["steps"]
            for pass_id in range(state["pass"] if state else 0, passes):
                loop.run_pass(pass_id, reader, state)
                state = None
                with self._average.apply():
                    self._run.save_pass(self._parameters, pass_id, last=pass_id == passes - 1)

    def test(self, reader: BatchReader, feeding: Feeding = None) -> event.TestResult:
        """Return cost and metrics over all batches of `reader()`, with the current parameters."""
        feeder = Feeder(self._data, feeding)
        totals = Totals(self.measures)
        with self._average.apply():
            for batch in reader():
                step = self._learner.compute(self._prepare(feeder, batch))
                totals.add(sum_costs(step, self.measures))
        return event.TestResult(totals.cost, totals.metrics)

    def save_parameter_to_tar(self, f: IO[bytes]) -> None:
        """Write the current parameters in v2's form."""
        with self._average.apply():
            self._parameters.to_tar(f)

    def read_batches(
        self, feeder: Feeder, reader: BatchReader
    ) -> Iterator[tuple[BatchInput, BatchInput | None]]:
        """Yield the input of each batch, with that of the next one if the updater can use it."""
        batches = (self._prepare(feeder, batch) for batch in reader())
        return look_ahead(batches) if self._updater.reads_ahead else ((batch, None) for batch in batches)

    def _prepare(self, feeder: Feeder, batch: Batch) -> BatchInput:
        return self._learner.prepare(feeder(batch), self._targets, self._cost.value)

    def step(self, batch: BatchInput, following: BatchInput | None, place: str) -> Totals:
        step = self._learner.train(batch, self._updater, following, place)
        self._average.add()
        return sum_costs(step, self.measures)


@dataclass(slots=True)
class _Training:
    """Passes of one training: takes batches, sends events, log lines and progress."""

    _trainer: SGD
    _run: Run
    _learner: Learner
    _updater: Updater
    _feeder: Feeder
    _handler: Handler
    _test_reader: BatchReader | None
    _feeding: Feeding
    _passes: int = 0
    _batches: int = 0  # of the last pass
    _warned: set[str] = field(default_factory=set)
    _metrics: JobMetrics = field(default_factory=JobMetrics)

    def run_pass(self, pass_id: int, reader: BatchReader, state: State | None = None) -> None:
        """Run one pass, up to EndPass; with `state`, of a snapshot, the batches that it holds are skipped."""
        if state:
            set_random_state(state["begin"])
        begin = get_random_state() if self._run.snapshots else {}
        total, recent = Totals(self._trainer.measures), Totals(self._trainer.measures)
        began_s = recent_s = time.monotonic()
        settings = self._run.settings

        def describe() -> State:
            place = {"pass": pass_id, "batches": last[0] + 1 if last else 0, "begin": begin}
            sums = [total.samples, total.cost_sum, *(one.tolist() for one in total.sums)]
            return place | {"steps": self._learner.steps, "sums": sums, "now": get_random_state()}

        self._handler(event.BeginPass(pass_id))
        batches = enumerate(self._trainer.read_batches(self._feeder, reader))
        last = self._skip(batches, state, total) if state else None
        for batch_id, (batch, following) in batches:
            self._handler(event.BeginIteration(pass_id, batch_id))
            step = self._trainer.step(batch, following, f", pass {pass_id}, batch {batch_id}")
            total.add(step)
            recent.add(step)
            last = batch_id, step
            self._check_cost(pass_id, batch_id, step)
            if self._run.progress.is_due():
                self._report(pass_id, batch_id, step, total, began_s)
            if settings.dot_period and (batch_id + 1) % settings.dot_period == 0:
                print(".", end="", file=sys.stderr, flush=True)
            if (batch_id + 1) % settings.log_period == 0:
                now_s = time.monotonic()
                self._log(f"Pass={pass_id} Batch={batch_id + 1}", total, recent, now_s - recent_s)
                recent, recent_s = Totals(self._trainer.measures), now_s
            if settings.test_period and (batch_id + 1) % settings.test_period == 0:
                self._test(f"Pass={pass_id} Batch={batch_id + 1}")
            self._handler(event.EndIteration(pass_id, batch_id, step.cost, step.metrics))
            if self._run.snapshots:
                self._run.snapshots.after_step(describe)
        if last is None:
            self._warn_empty(pass_id)
        else:
            self._batches = last[0] + 1
            self._report(pass_id, *last, total, began_s, last=True)
        if self._run.snapshots:
            self._run.snapshots.end_pass(describe)
        self._updater.end_pass()
        if dropped := self._updater.count_dropped():
            shown = ", ".join(f"{name} {count}" for name, count in dropped.items())
            self._run.log.say(f"Pass={pass_id} gradients dropped so far, counted by port, as late: {shown}")
        self._log(f"Pass={pass_id} end:", total, total, time.monotonic() - began_s)
        self._handler(event.EndPass(pass_id, total.cost, total.metrics))

    def _warn_empty(self, pass_id: int) -> None:
        again = "each call of reader() must start from the beginning"
        why = again if pass_id > 0 else "are there files for this trainer?"
        none = f"trainer {self._run.settings.trainer_id} has no samples in pass {pass_id}"
        self._warn_once("samples", f"{none}: its reader gave no batch; {why}")

    def _skip(
        self, batches: Iterator[tuple[int, object]], state: State, total: Totals
    ) -> tuple[int, Totals] | None:
        """Read the batches that a snapshot holds, and take over their sums; return the last one."""
        total.samples, total.cost_sum, *sums = state["sums"]
        total.sums = list(map(np.array, sums))
        read = 0
        for read, _ in itertools.islice(batches, state["batches"]):
            read += 1
        if read < state["batches"]:
            raise ValueError(
                f"train: the snapshot has {state['batches']} batches of pass {state['pass']}, but the reader "
                f"gives {read}: with resume it must give the same data again"
            )
        set_random_state(state["now"])
        return (read - 1, Totals(self._trainer.measures)) if read else None

    def _report(
        self, pass_id: int, batch_id: int, step: Totals, total: Totals, began_s: float, *, last: bool = False
    ) -> None:
        rate = total.samples / max(time.monotonic() - began_s, 1e-9)
        pairs = zip(total.measures, total.sums, strict=False)  # no sums if all steps were left out
        rows = ((one.name, np.rint(sums * ONE).astype(np.int64), one.measure) for one, sums in pairs)
        dropped = sum(self._updater.count_dropped().values())
        fields = {"pass": pass_id, "passes": self._passes, "batch": batch_id, "cost": step.cost}
        known = {"batches": self._batches, "dropped": dropped}
        fields |= {"samples_per_s": rate, **{name: count for name, count in known.items() if count}}
        self._run.progress.report(**fields, **self._metrics.measure(rows, self._run.client, last=last))

    def _check_cost(self, pass_id: int, batch_id: int, step: Totals) -> None:
        if step.samples and not math.isfinite(step.cost):
            text = (
                f"the cost is {step.cost} from pass {pass_id}, batch {batch_id} on: the training diverges "
                "(try a smaller learning_rate), or a sample is not finite; it continues"
            )
            self._warn_once("cost", text)

    def _warn_once(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            self._run.log.warn(text)

    def _log(self, where: str, total: Totals, recent: Totals, elapsed_s: float) -> None:
        rate = recent.samples / max(elapsed_s, 1e-9)
        self._run.log.info(
            f"{where} samples={total.samples} AvgCost={total.cost:.6g} CurrentCost={recent.cost:.6g} "
            f"Eval: {format_metrics(total.metrics)} CurrentEval: {format_metrics(recent.metrics)} "
            f"samples/s={rate:.1f}"
        )

    def _test(self, where: str) -> None:
        if self._test_reader is not None:
            result = self._trainer.test(self._test_reader, self._feeding)
            self._run.log.say(f"{where} Test: cost={result.cost:.6g} {format_metrics(result.metrics)}")
