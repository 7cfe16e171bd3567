"""Updaters apply gradients: in this process here, on pservers in remote.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from .. import _core
from .arrays import F32, U64
from .keeping import LocalTable, State, describe_left_out, make_about, read_state
from .kernel_numbers import Optim
from .optimizer import Optimizer
from .param_config import ParamConfig
from .parameters import Keeper, Parameters
from .plan import BatchInput, StepResult

Sparse = Mapping[str, tuple[U64, F32]]
Keys = Mapping[str, U64]


class NotFinite(ArithmeticError):
    """A step that its watch refuses; the trainer then exits with exit_code."""

    exit_code = 65  # os.EX_DATAERR


class Watch:
    """Looks for gradients that are not finite, before an updater has them.

    One of them would spoil values of all trainers. Its own trainer decides before it sends a byte: so all
    shards get the same, in every mode, and nobody waits. rule: warn; refuse, which raises NotFinite; or
    skip, which leaves the step out. steps: those with such gradients so far.
    """

    def __init__(self, rule: str, trainer: int, warn: Callable[[str], None]) -> None:
        self._rule, self._trainer, self._warn = rule, trainer, warn
        self._told: set[str] = set()
        self.steps = 0

    @property
    def only_warns(self) -> bool:
        return self._rule == "warn"

    def check(
        self, result: StepResult, batch: BatchInput, values: Mapping[str, F32], place: str
    ) -> StepResult:
        """Return what is applied of a step at a place in the training, made from these dense values."""
        broken = [name for name, grad in result.dense.items() if not _core.is_finite(grad)]
        broken += [name for name, (_, rows) in result.sparse.items() if not _core.is_finite(rows)]
        if not broken:
            return result
        self.steps += 1
        lost = [name for name, own in values.items() if not _core.is_finite(own)]
        text = f"trainer {self._trainer}, {place}: NaN or infinity in the gradient of {_list(broken)}"
        if data := batch.find_broken_data():
            text += f", from that in the data of {_list(data)}"
        elif lost:
            text += f", from that in the values of {_list(lost)} before this step"
        skips = self._rule == "skip"
        if self._rule == "refuse" or (skips and lost):
            raise NotFinite(f"{text} (--nan={self._rule})")
        if not self._told.issuperset(broken) or str(self.steps).strip("0") == "1":
            count = f"; {self.steps} such steps so far" if self.steps > 1 else ""
            remedy = "; --nan=skip leaves such steps out, --nan=refuse ends the job"
            self._warn(text + ("; the step is left out" if skips else remedy) + count)
        self._told.update(broken)
        return result.leave_out() if skips else result


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} others" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


class Updater(Keeper):
    """Applies gradients to parameters.

    1. `start` before a training, `fetch` for the rows of a step, `update` after it. 2. Every trainer of the
    job makes the same calls of start, end_pass and finish. 3. `progress`, called often while a step is
    computed, sends and receives without waiting: also gradients that are complete, and their new values.
    `update` gets all gradients, or `abandon` says that the step has failed. 4. With `reads_ahead`, fetch gets
    the keys of the next step too. Samples are those of the batch. 5. After update and end_pass the arrays of
    the dense parameters are current. 6. `finish` ends a successful training, `close` any.
    """

    reads_ahead = False
    watch: Watch | None = None

    def start(self) -> None: ...
    def progress(self, samples: int, grads: Mapping[str, F32]) -> None: ...
    def abandon(self) -> None: ...
    def update(self, dense: Mapping[str, F32], sparse: Sparse, samples: int) -> None: ...
    def end_pass(self) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...

    def fetch(self, keys: Keys, ahead: Keys) -> Mapping[str, F32]:
        """Return rows [k, dim] of each table. ahead: the keys of the next step, as far as they are known."""
        raise NotImplementedError

    def count_dropped(self) -> Mapping[str, int]:
        """Return the gradients that came too late, by parameter."""
        return {}


class ParamRules:
    """Parameters with their rules: trained in dense form, trained in sparse form, and static."""

    def __init__(
        self, configs: Mapping[str, ParamConfig], tables: frozenset[str], optimizer: Optimizer
    ) -> None:
        self.configs, self._optimizer = configs, optimizer
        trained = {name: config for name, config in configs.items() if not config.is_static}
        self.sparse = [name for name, config in trained.items() if config.sparse and name in tables]
        self.rules: dict[str, Optim] = {
            name: optimizer.make_rule(config, rows=name in self.sparse) for name, config in trained.items()
        }
        self.dense = [name for name in self.rules if name not in self.sparse]
        self._looked_up = tables
        self._full: dict[str, tuple[F32, U64]] = {}  # of those without sparse updates, with rows that are set

    @property
    def factor(self) -> float:
        """Factor of the learning rate of the next update."""
        return self._optimizer.factor

    @property
    def stateful(self) -> str:
        """The optimizer of a parameter with state; "" if none has any."""
        return next(
            (rule.method for rule in self.rules.values() if any(rule.kernel.get_state_shape(1, 1)[:1])), ""
        )

    def choose_early(self) -> frozenset[str]:
        """Return the dense parameters whose gradients collect_grads() never changes."""
        if self._optimizer.norm is not None:
            return frozenset()
        return frozenset(n for n in self.dense if n not in self._looked_up and not self.configs[n].is_running)

    def collect_grads(self, dense: Mapping[str, F32], sparse: Sparse) -> tuple[dict[str, F32], Sparse]:
        """Return a full gradient for each dense parameter, and those of rows, clipped by norm.

        Tables without sparse_update have a full one too.
        """
        if moves := [name for name in self.dense if self.configs[name].is_running]:
            share = np.float32(self._optimizer.moves / (self.factor or 1.0))  # it follows no schedule
            dense = {**dense, **{name: dense[name] * share for name in moves}}
        if self._optimizer.norm is not None:
            dense = {name: grad.copy() for name, grad in dense.items()}  # some may be one array
            sparse = {name: (keys, grad.copy()) for name, (keys, grad) in sparse.items()}
            grads = [
                sparse[name][1][:, -config.cols :] if name in sparse else dense[name]
                for name, config in self.configs.items()
                if name in self.rules and config.clip != 0.0
            ]
            self._optimizer.norm.clip(grads, self._optimizer.share or 1.0)
        full = {
            name: self._fill(name, *sparse[name]) if name in self._looked_up else dense[name]
            for name in self.dense
        }
        return full, sparse

    def _fill(self, name: str, keys: U64, grads: F32) -> F32:
        """Return a full gradient with the rows of a step, zero elsewhere, in the array of the step before."""
        full, before = self._full.get(name) or (np.zeros(self.configs[name].shape, np.float32), keys[:0])
        full[before] = 0.0
        full[keys] = grads
        self._full[name] = full, keys
        return full


class LocalUpdater(Updater):
    """Trains in this process, with the kernels that pservers use, in the same order: the same bits."""

    def __init__(self, params: ParamRules, parameters: Parameters) -> None:
        self._params, self._parameters, self.stateful = params, parameters, params.stateful
        self._states: dict[str, State] = {}  # of dense parameters
        self._tables: dict[str, LocalTable] = {}
        self._from: object = self  # the loaded set that the states follow, or None; at first neither

    def start(self) -> None:
        parameters, rules, loaded = self._parameters, self._params.rules, self._parameters.loaded
        parameters.detach()
        if self._from is not loaded:
            self._from = loaded
            if loaded and (line := describe_left_out(loaded, rules)):
                print(line, file=sys.stderr)
            self._tables = {}
            self._states = {name: self._make_state(name, rules[name]) for name in self._params.dense}
        self._tables = {
            name: parameters.take_table(name, rules[name], self._tables.get(name))
            for name in self._params.sparse
        }
        parameters.keeper = self

    def _make_state(self, name: str, rule: Optim) -> State:
        config, loaded = self._params.configs[name], self._parameters.loaded
        if loaded and (found := read_state(loaded, config, rule)):
            return found
        return State(slots=np.zeros(rule.kernel.get_state_shape(*config.shape), np.float32))

    def save(self, folder: Path, files: Mapping[str, bytes]) -> None:
        states = self._states | {name: table.state for name, table in self._tables.items()}
        rules = {name: (rule, states[name]) for name, rule in self._params.rules.items()}
        most = max(states.values(), key=lambda state: state.steps, default=State())
        about = make_about(step=most.steps, passes=most.passes)
        self._parameters.save_arrays(folder, files, rules=rules, about=about)

    def note_loaded(self) -> None:
        self.start()

    def fetch(self, keys: Keys, ahead: Keys) -> Mapping[str, F32]:
        if self._parameters.keeper is not self:  # another program has trained them meanwhile
            self.start()
        rest = {name: own for name, own in keys.items() if name not in self._tables}
        own = {name: table.read(keys[name]) for name, table in self._tables.items() if name in keys}
        return {**self._parameters.get_rows(rest), **own}

    def update(self, dense: Mapping[str, F32], sparse: Sparse, samples: int) -> None:
        grads, sparse = self._params.collect_grads(dense, sparse)
        for name, grad in grads.items():
            now = self._states[name]
            now.begin_step(samples)
            rule = self._params.rules[name].pack_at(now.samples, now.passes, self._params.factor)
            _core.apply_optim(rule, now.steps, self._parameters.get_array(name), now.slots, grad)
        for name, table in self._tables.items():
            table.learn(samples, self._params.factor, *sparse[name])

    def end_pass(self) -> None:
        for state in [*self._states.values(), *(table.state for table in self._tables.values())]:
            state.passes += 1
