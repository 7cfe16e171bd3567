"""Parameters of layers by their v2 names."""

from __future__ import annotations

from collections.abc import Iterable

from ..engine.parameters import Parameters
from .building import Layer, make_program

__all__ = ["Parameters", "create"]


def create(layers: Layer | Iterable[Layer]) -> Parameters:
    """Return the parameters of all layers below `layers`, with their initial values."""
    outputs = [layers] if isinstance(layers, Layer) else list(layers)
    return Parameters(make_program(outputs).params)
