"""`distributed_optimizer`: an optimizer whose steps the servers make."""

from __future__ import annotations

from ..optimizer import Optimizer
from ..static.program import default_main_program, set_training
from .life import FLEET
from .strategy import resolve_strategy


class DistributedOptimizer:
    """An optimizer with its mode; `minimize` lets a program train with the servers."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def minimize(
        self, loss: object, startup_program: None = None, parameters: None = None, no_grad_set: None = None
    ) -> tuple[list[object], list[object]]:
        """Let the default main program learn to reduce `loss`, together with the other workers.

        In `sync` a step's gradient is the mean over workers; in other modes each worker's counts alone.
        """
        for name, value in (("parameters", parameters), ("no_grad_set", no_grad_set)):
            if value is not None:
                raise ValueError(f"minimize: {name} is not in this runtime; use ParamAttr(trainable=False)")
        workers = FLEET.worker_num()
        FLEET.set_program(default_main_program())
        shared = self._optimizer.strategy.mode == "sync" and workers > 1
        own = loss * (1.0 / workers) if shared else loss  # type: ignore[operator]  # set_training checks it
        set_training(own, self._optimizer, is_distributed=True)
        return [], []


def distributed_optimizer(optimizer: Optimizer, strategy: object = None) -> DistributedOptimizer:
    """Return the optimizer for training with servers; `strategy` is the mode, sync by default."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"fleet.distributed_optimizer: {optimizer!r} is not an optimizer")
    optimizer.strategy = resolve_strategy(strategy)
    return DistributedOptimizer(optimizer)
