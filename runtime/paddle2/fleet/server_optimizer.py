"""`distributed_optimizer`: an optimizer whose steps the servers make."""

from __future__ import annotations

from ...engine.optimizer import Optimizer, refuse_choices
from ..base.life import FLEET
from ..program.program import set_training
from .distributed_strategy import make_days, resolve_strategy


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
        workers = FLEET.worker_num()
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
