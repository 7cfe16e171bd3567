"""Modes of a Fleet training by PaddlePaddle's names (docs/training.md), and optimizers that have one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...engine.entry import ANY
from ...engine.optimizer import Optimizer, refuse_choices
from ...engine.param_config import ParamConfig
from ...engine.strategy import Strategy
from ...shared import env
from ..base.life import FLEET
from ..program.program import set_training

GEO_STEPS = 100  # PaddlePaddle's update_frequency
_FIELDS = ("a_sync", "a_sync_configs", "sparse_table_configs")
# Fields of PaddlePaddle's ctr accessor: of the end of a day, with names of Caller.shrink() and defaults, and
# of an entry rule.
DAY: Mapping[str, tuple[str, float]] = {
    "show_click_decay_rate": ("decay", 0.98),
    "delete_threshold": ("score", 0.8),
    "delete_after_unseen_days": ("unseen", 30),
}
_OF_ENTRY = {"nonclk_coeff": "show_weight", "embedx_threshold": "threshold"}
# Queues, threads and waits of PaddlePaddle's communicator, which change no result.
_TUNING = frozenset((
    "independent_recv_thread", "launch_barrier", "max_merge_var_num", "min_send_grad_num_before_recv",
    "runtime_split_send_recv", "send_queue_size", "send_wait_times", "thread_pool_size",
))  # fmt: skip


class DistributedStrategy:
    """`a_sync` False: sync, the default; True: async; with `a_sync_configs = {"k_steps": n}` geo.

    Fields of `a_sync_configs` that only tune PaddlePaddle's communicator have no effect.
    `sparse_table_configs` has numbers of fleet.shrink(), `{"emb": {"show_click_decay_rate": 0.9}}`; names may
    be as long as PaddlePaddle's, `table_parameters.emb.accessor.ctr_accessor_param.show_click_decay_rate`.
    """

    def __init__(self) -> None:
        self.a_sync = False
        self.a_sync_configs: Mapping[str, int] = {}
        self.sparse_table_configs: Mapping[str, Mapping[str, float]] = {}

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _FIELDS:
            hint = env.suggest(name, _FIELDS, "; remove it")
            raise AttributeError(f"DistributedStrategy.{name}={value!r} has no effect in this runtime{hint}")
        if name == "a_sync" and not isinstance(value, bool):
            raise TypeError(f"DistributedStrategy.a_sync={value!r}, expected True or False")
        if name == "a_sync_configs":
            _check_configs(value)
        tables = value.values() if isinstance(value, Mapping) else [None]
        if name == "sparse_table_configs" and not all(isinstance(one, Mapping) for one in tables):
            raise TypeError(
                f"DistributedStrategy.sparse_table_configs={value!r}, expected a dict of dicts, as "
                '{"emb": {"delete_threshold": 0.8}}'
            )
        super().__setattr__(name, value)

    def make_strategy(self) -> Strategy:
        """Return the mode. Raises ValueError for a_sync_configs that have no effect."""
        _check_configs(self.a_sync_configs)  # the dict may have been changed since
        if not self.a_sync and self.a_sync_configs.keys() - _TUNING:
            raise ValueError(
                f"DistributedStrategy.a_sync_configs={dict(self.a_sync_configs)!r} has no effect without "
                "a_sync=True"
            )
        if not self.a_sync:
            return Strategy()
        k_steps = self.a_sync_configs.get("k_steps", 0)
        return Strategy(mode="geo", k_steps=k_steps) if k_steps > 0 else Strategy(mode="async")


def _check_configs(value: object) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(
            f'DistributedStrategy.a_sync_configs={value!r}, expected a dict, as {{"k_steps": 100}}'
        )
    for name, number in value.items():
        where = f"DistributedStrategy.a_sync_configs: {name}={number!r}"
        if name in _TUNING:
            continue
        if name != "k_steps":
            hint = env.suggest(name, ["k_steps"], ": remove it")
            raise ValueError(f"{where} has no effect in this runtime{hint}")
        if number != -1:  # PaddlePaddle's default: async
            env.parse_int(number, "DistributedStrategy.a_sync_configs: k_steps")


def make_days(value: object, params: Mapping[str, ParamConfig]) -> dict[str, dict[str, Any]]:
    """Return what Caller.shrink() takes at the end of a day, for each table with an entry rule.

    Raises ValueError for fields without an effect, or that differ from the table's entry rule.
    """
    days = {name: dict(DAY.values()) for name, config in params.items() if config.entry != ANY}
    given = value.sparse_table_configs if isinstance(value, DistributedStrategy) else {}
    for table, fields in given.items():
        if table not in days:
            hint = env.suggest(table, days, "; give its embedding an entry rule")
            raise ValueError(f"sparse_table_configs: {table!r} is no table with an entry rule{hint}")
        rule = params[table].entry
        known = {field: getattr(rule, own, None) for field, own in _OF_ENTRY.items()} | {"click_coeff": 1}
        for field, number in fields.items():
            name, where = field.rpartition(".")[2], f"sparse_table_configs: {table}: {field}={number!r}"
            if name in DAY:
                days[table][DAY[name][0]] = number
            elif name not in known:
                raise ValueError(f"{where} has no effect in this runtime; remove it")
            elif number != known[name]:
                raise ValueError(f"{where}, but the table has {rule} with {known[name]}; let both be equal")
    return days


class StrategyFactory:
    """The older names of the modes: in sync a step waits for all workers, in half_async a push for its own
    answer, and in async a worker goes on while its pushes are on their way.
    """

    create_sync_strategy = staticmethod(lambda: Strategy())
    create_half_async_strategy = staticmethod(lambda: Strategy(mode="half_async"))
    create_async_strategy = staticmethod(lambda: Strategy(mode="async"))

    @staticmethod
    def create_geo_strategy(update_frequency: int = GEO_STEPS) -> Strategy:
        """Return geo: a worker trains its own copy, and exchanges changes every `update_frequency` steps."""
        return Strategy(mode="geo", k_steps=update_frequency)


def resolve_strategy(value: object) -> Strategy:
    """Return the mode of a strategy of either kind; sync for None."""
    if value is None:
        return Strategy()
    if isinstance(value, DistributedStrategy):
        return value.make_strategy()
    if isinstance(value, Strategy):
        return value
    raise TypeError(
        f"strategy={value!r}, expected fleet.DistributedStrategy() or one of fleet.StrategyFactory"
    )


class DistributedOptimizer:
    """An optimizer with its mode; `minimize` lets a program train with the servers."""

    def __init__(self, optimizer: Optimizer, strategy: object) -> None:
        self._optimizer, self._strategy = optimizer, strategy

    def minimize(
        self, loss: object, startup_program: None = None, parameters: None = None, no_grad_set: None = None
    ) -> tuple[list[object], list[object]]:
        """Let the default main program learn to reduce `loss`, together with the other workers.

        In `sync` a step's gradient is the mean over workers; in other modes each worker's counts alone.
        """
        refuse_choices(parameters, no_grad_set)
        workers = FLEET.get_part().workers
        mode = self._optimizer.strategy.mode
        share = 1.0 / workers if mode == "sync" else 1.0
        self._optimizer.moves = 1.0 if mode == "geo" else 1.0 / workers  # geo takes the mean of models
        program = set_training(loss, self._optimizer, is_distributed=True, share=share)
        FLEET.set_program(program, make_days(self._strategy, program.graph.params))
        return [], []


def distributed_optimizer(optimizer: Optimizer, strategy: object = None) -> DistributedOptimizer:
    """Return the optimizer for training with servers; `strategy` is the mode, sync by default."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"fleet.distributed_optimizer: {optimizer!r} is not an optimizer")
    if optimizer.schedule.kind == "pass_manual":
        raise ValueError(
            "fleet.distributed_optimizer: the schedule pass_manual counts passes, and each barrier_worker, "
            "shrink, metric and function of util ends one; use manual, which counts samples"
        )
    optimizer.strategy = resolve_strategy(strategy)
    return DistributedOptimizer(optimizer, strategy)
