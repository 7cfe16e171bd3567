"""Activations by their v2 names; ops/elementwise.py computes them."""

from __future__ import annotations

from . import publish

__all__ = ["Activation", "Base", "Identity", "Linear", "Relu", "Sigmoid", "Softmax", "Tanh"]
publish(__name__, __all__)


class Activation:
    """Function that a layer applies to its output; `Sigmoid()` and the class `Sigmoid` are both accepted."""

    name = ""

    def __repr__(self) -> str:
        return f"activation.{type(self).__name__}()"


class Linear(Activation):
    """x, unchanged."""

    name = "linear"


class Sigmoid(Activation):
    """1 / (1 + exp(-x))."""

    name = "sigmoid"


class Tanh(Activation):
    """tanh(x)."""

    name = "tanh"


class Relu(Activation):
    """max(x, 0)."""

    name = "relu"


class Softmax(Activation):
    """exp(x) divided by its sum, for each sample's row."""

    name = "softmax"


Identity = Linear
Base = Activation


def get_activation_name(act: object, default: str) -> str:
    """Return the name of an activation given as an object, a class or None; raises TypeError for others."""
    if act is None:
        return default
    if isinstance(act, Activation) or (isinstance(act, type) and issubclass(act, Activation)):
        return act.name
    raise TypeError(
        f"act={act!r} is not an activation; this runtime has Linear, Sigmoid, Tanh, Relu and Softmax"
    )
