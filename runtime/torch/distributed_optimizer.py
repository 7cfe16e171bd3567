"""Optimizer of dense parameters that are on the pservers too: one push with the tables, one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
import torch

from pslaunch.runtime.engine.arrays import F32

from .formulas import OF_DENSE, make_torch_rule
from .session import get_array, get_session


class DistributedOptimizer(torch.optim.Optimizer):
    """Pushes the gradients of parameters, with those of all tables, and takes the new values.

    It begins with the values of trainer 0. Make it after the modules of tables, once in a program.
    A scheduler of torch changes its rate, and those of tables in the same proportion.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        optimizer: str = "sgd",
        *,
        lr: float | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        **options: object,
    ) -> None:
        """optimizer: "sgd", "adagrad", "adam", "adamw", with torch.optim's formulas, defaults and options.

        reduction: of gradients over trainers.
        """
        rule = make_torch_rule(OF_DENSE, optimizer, lr, options)
        super().__init__(params, {"lr": rule.learning_rate})
        if len(self.param_groups) != 1 or reduction not in ("mean", "sum"):
            raise ValueError('expected parameters, without groups, and a reduction "mean" or "sum"')
        self._session = get_session()
        self._lr = rule.learning_rate
        self._share = 1 / self._session.client.trainers if reduction == "mean" else 1.0
        self._parameters: list[torch.Tensor] = self.param_groups[0]["params"]
        self._values: list[F32] = [get_array(p, torch.float32) for p in self._parameters]
        self._session.make_tensors(self._values, rule)
        self._take_values()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step of all trainers."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        grads = [self._get_grad(p) for p in self._parameters]
        self._session.push(grads, self._values, self.param_groups[0]["lr"] / self._lr)
        self._session.settle()
        self._take_values()
        return loss

    def _get_grad(self, parameter: torch.Tensor) -> F32:
        if parameter.grad is None:
            return np.zeros(tuple(parameter.shape), np.float32)
        grad: F32 = get_array(parameter.grad, torch.float32)
        return grad if self._share == 1 else grad * np.float32(self._share)

    @torch.no_grad()
    def _take_values(self) -> None:
        for parameter, values in zip(self._parameters, self._values, strict=True):
            parameter.copy_(torch.from_numpy(values))  # nothing to do for those that share memory
