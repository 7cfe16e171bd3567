"""Activations by their v2 names; ops/elementwise.py computes them."""

from __future__ import annotations

__all__ = ["Activation", "Base", "Identity", "Linear", "Relu", "Sigmoid", "Softmax", "Tanh"]


class Activation:
    """Function that a layer applies to its output; `Sigmoid()` and the class `Sigmoid` are both accepted."""

    name = ""

    def __init_subclass__(cls, op: str) -> None:
        cls.name = op

    def __repr__(self) -> str:
        return f"activation.{type(self).__name__}()"


class Linear(Activation, op="linear"):
    """x, unchanged."""


class Sigmoid(Activation, op="sigmoid"):
    """1 / (1 + exp(-x))."""


class Tanh(Activation, op="tanh"):
    """tanh(x)."""


class Relu(Activation, op="relu"):
    """max(x, 0)."""


class Softmax(Activation, op="softmax"):
    """exp(x) divided by its sum, for each sample's row."""


Identity = Linear
Base = Activation


def get_activation_name(act: object, default: str) -> str:
    """Return the name of an activation given as an object, a class or None; raises TypeError for others."""
    if act is None:
        return default
    kind = act if isinstance(act, type) else type(act)
    if issubclass(kind, Activation) and kind.name:
        return kind.name
    raise TypeError(
        f"act={act!r} is not an activation; this runtime has Linear, Sigmoid, Tanh, Relu and Softmax"
    )
