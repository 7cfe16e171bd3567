"""Regularization by PaddlePaddle 2's name."""

from __future__ import annotations

__all__ = ["L1Decay", "L2Decay"]


class _Decay:
    def __init__(self, coeff: float = 0.0) -> None:
        if not 0.0 <= coeff < float("inf"):
            raise ValueError(
                f"regularizer.{type(self).__name__}: coeff={coeff} must be finite and not negative"
            )
        self.coeff = float(coeff)


class L1Decay(_Decay):
    """Adds `coeff` times the sign of the value to each gradient; for a table only to the rows of a step."""


class L2Decay(_Decay):
    """Adds `coeff` times the value to each gradient; for a table only to the rows of a step."""
