"""Updater of a trainer with pservers: each step returns the dense parameters, tables stay on pservers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from .arrays import F32, U64
from .client import Client, Init, Optim
from .optimizer import Optimizer, Rule
from .param_config import ParamConfig
from .parameters import Parameters
from .settings import Settings
from .updater import ParamRules, Scatter, Sparse

CHUNK_BYTES = 8 << 20  # rows fetched or set at a time


class RemoteUpdater:
    """Trains with pservers through the client. Tables with sparse_update are stored only there."""

    def __init__(
        self,
        configs: Mapping[str, ParamConfig],
        tables: frozenset[str],
        parameters: Parameters,
        optimizer: Optimizer,
        client: Client,
        *,
        first: bool,
        on_connected: Callable[[], None],
    ) -> None:
        self._configs = configs
        self._params = ParamRules(configs, optimizer, tables)
        self._parameters = parameters
        self._scatter = Scatter(parameters)
        self._client = client
        self._first = first  # trainer 0: its initial values are used
        self._on_connected = on_connected
        self._started = False

    def start(self) -> None:
        if not self._started:
            self._client.connect()
            self._on_connected()
            self._create()
            self._started = True
        elif self._parameters.changed:
            names = ", ".join(sorted(self._parameters.changed))
            raise RuntimeError(
                f"parameters {names} were set after training began; set them before: pservers hold the values"
            )
        self._client.pull(self._get_dense())
        self._parameters.live = self._pull_table

    def _create(self) -> None:
        for name in self._params.dense:
            self._client.create_dense(
                name, self._parameters.get_array(name).size, _make_optim(self._params.rules[name])
            )
        for name in self._params.sparse:
            config = self._configs[name]
            init = Init(kind=config.kind, mean=config.mean, std=config.std)
            self._client.create_sparse(
                name, config.rows, config.cols, _make_optim(self._params.rules[name]), init
            )
        self._client.init_dense(self._get_dense())
        if self._first:
            for name in self._params.sparse:
                if name in self._parameters.changed or self._configs[name].initializer is not None:
                    self._set_table(name)
        self._parameters.changed.clear()
        self._client.barrier()

    def _set_table(self, name: str) -> None:
        values = self._parameters.get_array(name)
        for keys in self._split_keys(name):
            self._client.set_rows(name, keys, np.ascontiguousarray(values[keys]))

    def _split_keys(self, name: str) -> list[U64]:
        rows, cols = self._parameters.get_shape(name)
        step = max(1, CHUNK_BYTES // (4 * cols))
        return [np.arange(at, min(at + step, rows), dtype=np.uint64) for at in range(0, rows, step)]

    def _get_dense(self) -> dict[str, F32]:
        return {name: self._parameters.get_array(name) for name in self._params.dense}

    def _pull_table(self, name: str) -> F32 | None:
        """Return the current values of a table on the pservers; None for other parameters."""
        if name not in self._params.sparse:
            return None
        out = np.empty(self._parameters.get_shape(name), dtype=np.float32)
        for keys in self._split_keys(name):
            at = int(keys[0])
            self._client.pull_rows(name, keys, out[at : at + len(keys)])
        return out

    def fetch(self, name: str, keys: U64) -> F32:
        """Return current rows of a table, [k, dim]; before training, their initial values."""
        if name in self._params.sparse and self._started:
            return self._client.pull_rows(name, keys)
        return np.take(self._parameters.get_array(name), keys.astype(np.intp), axis=0)

    def update(self, dense: Mapping[str, F32], sparse: Sparse) -> None:
        """Push one step, wait for all trainers, take the new dense values."""
        grads = self._params.collect_dense_grads(dense, sparse, self._scatter)
        self._client.push_pull(grads, self._get_dense(), {name: sparse[name] for name in self._params.sparse})

    def end_pass(self) -> None:
        """Wait until all trainers have ended the pass; others may have made further steps."""
        self._client.end_pass()
        self._client.pull(self._get_dense())

    def settle(self) -> None:
        """Fetch the tables too: the parameters are complete without pservers, each in memory once."""
        for name in self._params.sparse:
            values = self._pull_table(name)
            assert values is not None
            self._parameters.adopt(name, values)
        self._parameters.live = None

    def finish(self) -> None:
        self._client.finish()

    def close(self) -> None:
        self._client.close()


def _make_optim(rule: Rule) -> Optim:
    return Optim(
        method=rule.method,
        learning_rate=rule.learning_rate,
        momentum=rule.momentum,
        decay=rule.decay,
        epsilon=rule.epsilon,
    )


def make_client(settings: Settings, log: Callable[[str], None]) -> Client:
    """Return this trainer's client, not yet connected."""
    secret = Path(settings.secret_file).read_bytes().strip() if settings.secret_file else b""
    return Client(
        settings.endpoints,
        ports_num=settings.ports_num,
        ports_num_for_sparse=settings.ports_num_for_sparse,
        trainer_id=settings.trainer_id,
        num_gradient_servers=settings.num_gradient_servers,
        epoch=settings.job.epoch,
        seed=settings.seed,
        secret=secret,
        connect_timeout_s=settings.connect_timeout,
        stall_after_s=settings.stall_after,
        stall_timeout_s=settings.stall_timeout,
        log=log,
    )
