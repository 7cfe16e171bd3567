"""Updaters apply gradients: in this process here, on pservers in remote.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from . import _core
from .arrays import F32, U64
from .client import Client
from .kernel_numbers import Optim, PackedOptim
from .optimizer import Optimizer
from .param_config import ParamConfig
from .parameters import Parameters

Sparse = Mapping[str, tuple[U64, F32]]
Keys = Mapping[str, U64]


class Updater(Protocol):
    """Applies gradients to parameters.

    1. `start` before a training, `fetch` for the rows of a step, `update` after it. 2. Every trainer of the
    job makes the same calls of start, end_pass and finish. 3. `progress`, called often while a step is
    computed, sends and receives without waiting. 4. update gets the samples of the batch and, with
    `reads_ahead`, the keys of the next step. 5. After update and end_pass the arrays of the dense parameters
    are current. 6. `finish` ends a successful training, `close` any.
    """

    reads_ahead: bool

    @property
    def client(self) -> Client | None: ...  # None without pservers
    def start(self) -> None: ...
    def fetch(self, keys: Keys) -> Mapping[str, F32]: ...
    def progress(self) -> None: ...
    def update(self, dense: Mapping[str, F32], sparse: Sparse, ahead: Keys, samples: int) -> None: ...
    def count_dropped(self) -> Mapping[str, int]: ...
    def end_pass(self) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...


class ParamRules:
    """Parameters with their rules: trained in dense form, trained in sparse form, and static."""

    def __init__(
        self, configs: Mapping[str, ParamConfig], optimizer: Optimizer, tables: frozenset[str]
    ) -> None:
        self.rules: dict[str, Optim] = {
            name: optimizer.make_rule(config) for name, config in configs.items() if not config.is_static
        }
        self.tables = tables
        self._optimizer = optimizer
        self.sparse = [name for name in self.rules if configs[name].sparse and name in tables]
        self.dense = [name for name in self.rules if name not in self.sparse]

    @property
    def factor(self) -> float:
        """Factor of the learning rate of the next update."""
        return self._optimizer.factor

    def collect_dense_grads(
        self, dense: Mapping[str, F32], sparse: Sparse, scatter: Callable[[str, U64, F32], F32]
    ) -> dict[str, F32]:
        """Return a full gradient for each dense parameter, including tables without sparse_update."""
        return {
            name: scatter(name, *sparse[name]) if name in self.tables else dense[name] for name in self.dense
        }


class Scatter:
    """Expands row gradients to full ones, zero elsewhere. Keeps its arrays between steps."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._full: dict[str, F32] = {}
        self._touched: dict[str, U64] = {}

    def __call__(self, name: str, keys: U64, grads: F32) -> F32:
        full = self._full.get(name)
        if full is None:
            full = self._full[name] = np.zeros(self._parameters.get_shape(name), dtype=np.float32)
        else:
            full[self._touched[name]] = 0.0
        full[keys] = grads
        self._touched[name] = keys
        return full


class LocalUpdater:
    """Trains in this process, with the kernels that pservers use, in the same order: the same bits."""

    reads_ahead = False
    client = None

    def __init__(
        self,
        configs: Mapping[str, ParamConfig],
        tables: frozenset[str],
        parameters: Parameters,
        optimizer: Optimizer,
    ) -> None:
        self._params = ParamRules(configs, optimizer, tables)
        self._parameters = parameters
        self._scatter = Scatter(parameters)
        self._slots: dict[str, F32 | None] = {}
        self._step = self._samples = self._passes = 0

    def start(self) -> None:
        self._parameters.detach()
        for name, rule in self._params.rules.items():
            if name not in self._slots:
                shape = (rule.state_floats, *self._parameters.get_shape(name))
                self._slots[name] = np.zeros(shape, dtype=np.float32) if rule.state_floats else None

    def fetch(self, keys: Keys) -> Mapping[str, F32]:
        """Return rows [k, dim] of each table."""
        return self._parameters.get_rows(keys)

    def progress(self) -> None:
        pass

    def count_dropped(self) -> Mapping[str, int]:
        """Return the gradients that came too late, by parameter: none here."""
        return {}

    def update(self, dense: Mapping[str, F32], sparse: Sparse, ahead: Keys, samples: int) -> None:
        """Apply one step."""
        self._step += 1
        self._samples += samples
        for name, grad in self._params.collect_dense_grads(dense, sparse, self._scatter).items():
            _core.apply_optim(*self._get_target(name), grad)
        for name in self._params.sparse:
            keys, grad = sparse[name]
            cols = self._parameters.get_shape(name)[1]  # shows and clicks before them are for pservers
            _core.apply_sparse(*self._get_target(name), keys, np.ascontiguousarray(grad[:, -cols:]))

    def _get_target(self, name: str) -> tuple[PackedOptim, int, F32, F32 | None]:
        rule = self._params.rules[name].pack_at(self._samples, self._passes, self._params.factor)
        return rule, self._step, self._parameters.get_array(name), self._slots[name]

    def end_pass(self) -> None:
        self._passes += 1

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass
