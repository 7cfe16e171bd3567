"""Clipping of gradients by PaddlePaddle 2's names. Norms are those of a trainer's own gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .. import _core
from .arrays import F32

__all__ = ["ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue"]


class ClipGradByValue:
    """Limits each value of the gradient, summed over all trainers, to -max and max."""

    def __init__(self, max: float, min: float | None = None) -> None:
        self.max = float(max)
        if not 0.0 < self.max < math.inf or min not in (None, -max):
            raise ValueError(f"nn.ClipGradByValue: {max=}, {min=}: expected max above 0, min -max or None")


class ClipGradByNorm:
    """Scales each gradient whose norm is above `clip_norm` down to it."""

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = float(clip_norm)
        if not 0.0 < self.clip_norm < math.inf:
            raise ValueError(f"nn.{type(self).__name__}: clip_norm={clip_norm} must be finite and above 0")

    def clip(self, grads: Sequence[F32], share: float) -> None:
        """Scale the gradients, in place, of this share of the loss."""
        for grad in grads:
            self._scale([grad], share)

    def _scale(self, grads: Sequence[F32], share: float) -> None:
        norm = math.sqrt(sum(_core.sum_squares(np.ascontiguousarray(grad)) for grad in grads))
        if norm > self.clip_norm * share:
            for grad in grads:
                grad *= np.float32(self.clip_norm * share / norm)


class ClipGradByGlobalNorm(ClipGradByNorm):
    """Scales all gradients if the norm of all together, in the order of parameters, is above `clip_norm`."""

    def __init__(
        self, clip_norm: float, group_name: str = "default_group", auto_skip_clip: bool = False
    ) -> None:
        super().__init__(clip_norm)

    def clip(self, grads: Sequence[F32], share: float) -> None:
        self._scale(grads, share)
