"""Regularization by PaddlePaddle 2's name."""

from __future__ import annotations

__all__ = ["L2Decay"]


class L2Decay:
    """Adds `coeff` times the value to each gradient; for a table only to the rows of a step."""

    def __init__(self, coeff: float = 0.0) -> None:
        if not 0.0 <= coeff < float("inf"):
            raise ValueError(f"regularizer.L2Decay: coeff={coeff} must be finite and not negative")
        self.coeff = float(coeff)
