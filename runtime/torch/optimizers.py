"""Optimizers by the names, options and defaults of torch.optim; the pservers' kernels compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from pslaunch.runtime.engine.arrays import F32
from pslaunch.runtime.engine.kernel_numbers import Optim
from pslaunch.runtime.shared.env import suggest

from .session import get_array, get_session

TorchFormula = tuple[str, float, Mapping[str, object]]  # kernel of ps_optim.h, rate, torch's options
_ADAGRAD = {"eps": 1e-10, "initial_accumulator_value": 0.0}
_ADAM = {"betas": (0.9, 0.999), "eps": 1e-8}
_KERNEL_NAMES = {"eps": "epsilon", "initial_accumulator_value": "initial"}
OF_TABLES: Mapping[str, TorchFormula] = {
    "sgd": ("sgd", 1e-3, {}),
    "adagrad": ("fleet_adagrad", 1e-2, _ADAGRAD),
    "sparse_adam": ("adam", 1e-3, _ADAM),  # torch's others correct the root before they add epsilon
    "row_adagrad": ("row_adagrad", 1e-2, _ADAGRAD),
}
OF_DENSE: Mapping[str, TorchFormula] = {
    "sgd": ("fleet_momentum", 1e-3, {"momentum": 0.0, "weight_decay": 0.0}),
    "adagrad": ("fleet_adagrad", 1e-2, _ADAGRAD | {"weight_decay": 0.0}),
    "adam": ("fleet_adam", 1e-3, _ADAM | {"weight_decay": 0.0}),
    "adamw": ("adamw", 1e-3, _ADAM | {"weight_decay": 0.01}),
}


def make_torch_rule(
    known: Mapping[str, TorchFormula], optimizer: str, lr: float | None, options: Mapping[str, object]
) -> Optim:
    """Return the rule of an optimizer. Raises ValueError for its name, TypeError for that of an option."""
    if optimizer not in known:
        hint = suggest(optimizer, known, f", expected one of {', '.join(known)}")
        raise ValueError(f"optimizer={optimizer!r}{hint}")
    kernel, rate, usual = known[optimizer]
    if others := sorted(options.keys() - usual.keys()):
        raise TypeError(f"unknown option {others[0]}: {optimizer} has {', '.join(['lr', *sorted(usual)])}")
    given = {**usual, **options}
    if "betas" in given:
        given["beta1"], given["beta2"] = given.pop("betas")  # type: ignore[misc]  # an error says what it is
    numbers = {_KERNEL_NAMES.get(name, name): float(str(value)) for name, value in given.items()}
    decay, learning_rate = numbers.pop("weight_decay", 0.0), rate if lr is None else float(lr)
    if wrong := [
        value for value in (learning_rate, decay, *numbers.values()) if not 0 <= value < float("inf")
    ]:
        raise ValueError(f"{optimizer}: the number {wrong[0]}, expected 0 or more")
    return Optim(method=kernel, learning_rate=learning_rate, decay=decay, numbers=numbers)


class DistributedOptimizer(torch.optim.Optimizer):
    """Pushes the means of parameters' gradients, with those of all tables, and takes the new values.

    It begins with the values of trainer 0. Make it after the modules of tables, once in a program.
    A scheduler of torch changes its rate, and those of tables in the same proportion.
    """

    def __init__(
        self, params: Iterable[Any], optimizer: str = "sgd", *, lr: float | None = None, **options: object
    ) -> None:
        """optimizer: "sgd", "adagrad", "adam", "adamw", with torch.optim's formulas, defaults and options."""
        rule = make_torch_rule(OF_DENSE, optimizer, lr, options)
        super().__init__(params, {"lr": rule.learning_rate})
        if len(self.param_groups) != 1:
            raise ValueError("expected parameters, not groups of them")
        if rule.learning_rate == 0.0:
            raise ValueError("lr=0: a scheduler's rates are factors of it; give a rate above 0")
        self._session, self._lr = get_session(), rule.learning_rate
        self._share = np.float32(1 / self._session.client.trainers)
        self._parameters: list[torch.Tensor] = self.param_groups[0]["params"]
        self._values: list[F32] = [get_array(p, torch.float32) for p in self._parameters]
        self._session.make_tensors(self._values, rule)
        self._take_values()

    def zero_grad(self, *own: Any, **named: Any) -> None:
        """Forget all gradients, those of tables too."""
        super().zero_grad(*own, **named)
        self._session.forget_grads()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step of all trainers."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        every = (torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters)
        grads = [get_array(grad, torch.float32) * self._share for grad in every]
        self._session.push(grads, self._values, self.param_groups[0]["lr"] / self._lr).wait()
        self._take_values()
        return loss

    @torch.no_grad()
    def _take_values(self) -> None:
        for parameter, values in zip(self._parameters, self._values, strict=True):
            parameter.copy_(torch.from_numpy(values))  # nothing to do for those that share memory
