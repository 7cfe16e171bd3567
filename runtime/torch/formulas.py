"""Update rules by the names, numbers and defaults of torch.optim; the pservers' kernels compute them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pslaunch.runtime.engine.kernel_numbers import Optim
from pslaunch.runtime.shared.env import suggest


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchFormula:
    """An optimizer of torch: a kernel of csrc/kernels/ps_optim.h, and names and defaults of its numbers."""

    kernel: str
    lr: float
    numbers: Mapping[str, tuple[str, float]]  # torch's names: those of the kernel, and torch's defaults
    choose: Callable[[Mapping[str, float]], str] | None = None  # the kernel, where numbers decide it


_BETAS = {"beta1": ("beta1", 0.9), "beta2": ("beta2", 0.999), "eps": ("epsilon", 1e-8)}
_ADAGRAD = {"eps": ("epsilon", 1e-10), "initial_accumulator_value": ("initial", 0.0)}
# For rows of tables. SparseAdam is the one whose epsilon is beside the root as it is; torch's others
# correct the root first.
OF_TABLES = {
    "sgd": TorchFormula(kernel="sgd", lr=1e-3, numbers={}),
    "adagrad": TorchFormula(kernel="fleet_adagrad", lr=1e-2, numbers=_ADAGRAD),
    "sparse_adam": TorchFormula(kernel="adam", lr=1e-3, numbers=_BETAS),
    "row_adagrad": TorchFormula(kernel="row_adagrad", lr=1e-2, numbers=_ADAGRAD),
}
OF_DENSE = {
    "sgd": TorchFormula(
        kernel="sgd",
        lr=1e-3,
        numbers={"momentum": ("momentum", 0.0)},
        choose=lambda given: "fleet_momentum" if given["momentum"] else "sgd",
    ),
    "adagrad": OF_TABLES["adagrad"],
    "adam": TorchFormula(kernel="fleet_adam", lr=1e-3, numbers=_BETAS),
    "adamw": TorchFormula(kernel="adamw", lr=1e-3, numbers=_BETAS),
}


def make_torch_rule(
    known: Mapping[str, TorchFormula], optimizer: str, lr: float | None, options: Mapping[str, object]
) -> Optim:
    """Return the rule of an optimizer by its name, and torch's options: `eps=`, `betas=`, `weight_decay=`.

    Raises ValueError, TypeError for names and numbers that it does not have.
    """
    if optimizer not in known:
        hint = suggest(optimizer, known, f", expected one of {', '.join(known)}")
        raise ValueError(f"optimizer={optimizer!r}{hint}")
    formula, given = known[optimizer], dict(options)
    betas = given.pop("betas", None)
    if isinstance(betas, tuple | list) and len(betas) == 2:
        given["beta1"], given["beta2"] = betas
    decays = known is OF_DENSE
    decay = given.pop("weight_decay", 0.01 if optimizer == "adamw" else 0.0) if decays else 0.0
    asked: dict[str, object] = {"lr": formula.lr if lr is None else lr, "weight_decay": decay}
    for name, (_, usual) in formula.numbers.items():
        asked[name] = given.pop(name, usual)
    if given:
        name = next(iter(given))
        hint = suggest(name, [*formula.numbers, "lr", "betas", "weight_decay"])
        raise TypeError(f"{optimizer} has no option {name}{hint}")
    numbers = dict[str, float]()
    for name, value in asked.items():
        if not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"{optimizer}: {name}={value!r}, expected a number, 0 or more")
        numbers[name] = float(value)
    kernel = formula.choose(numbers) if formula.choose else formula.kernel
    own = {} if kernel == "sgd" else {to: numbers[name] for name, (to, _) in formula.numbers.items()}
    return Optim(method=kernel, learning_rate=numbers["lr"], decay=numbers["weight_decay"], numbers=own)
