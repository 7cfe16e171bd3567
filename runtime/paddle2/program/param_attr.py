"""`ParamAttr` of static mode, and the configuration of a parameter from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...engine.entry import ANY, EntryAttr
from ...engine.param_config import ANY_ID, USUAL_ROWS, ParamConfig
from ...engine.regularizer import L1Decay, L2Decay
from .initializer import Initializer, get_usual


@dataclass(frozen=True, slots=True)
class ParamAttr:
    """Attributes of a parameter. `learning_rate` multiplies the optimizer's."""

    name: str | None = None
    initializer: Initializer | None = None
    learning_rate: float = 1.0
    regularizer: L1Decay | L2Decay | None = None
    trainable: bool = True
    do_model_average: bool = True
    need_clip: bool = True

    def __post_init__(self) -> None:
        for field, value, kind in (
            ("initializer", self.initializer, Initializer),
            ("regularizer", self.regularizer, L1Decay | L2Decay),
        ):
            if not isinstance(value, kind | None):
                raise TypeError(
                    f"ParamAttr: {field}={value!r}, expected one of nn.initializer or regularizer"
                )
        if not 0.0 <= self.learning_rate < float("inf"):
            raise ValueError(f"ParamAttr: learning_rate={self.learning_rate} must be finite and not negative")


def _get_coeff(regularizer: L1Decay | L2Decay | None, kind: type[L1Decay | L2Decay]) -> float | None:
    """Return the rate of a kind: None without a regularizer, 0 if it is of the other kind."""
    if regularizer is None:
        return None
    return regularizer.coeff if isinstance(regularizer, kind) else 0.0


Attr = ParamAttr | Initializer | str | Literal[False] | None


def make_param(
    attr: Attr,
    default_name: str,
    shape: Sequence[int | None],
    *,
    is_bias: bool,
    sparse: bool = False,
    entry: EntryAttr = ANY,
    usual: Initializer | None = None,
) -> ParamConfig:
    """Return the configuration of a parameter; with more than two axes, all but the last are its rows.

    Of a table the first size may be None, for ids of any value: initial values are then those of 2**20 rows.

    Without an initializer `usual` is taken, or a bias is 0 and a weight XavierUniform, as in PaddlePaddle, or
    as set_global_initializer() says.
    """
    if isinstance(attr, Initializer):
        attr = ParamAttr(initializer=attr)
    elif isinstance(attr, str):
        attr = ParamAttr(name=attr)
    own = attr or ParamAttr()
    if not isinstance(own, ParamAttr):
        raise TypeError(f"{default_name}: attribute {attr!r}, expected ParamAttr, an initializer or a name")
    sizes = [USUAL_ROWS if size is None else size for size in shape]
    rows, cols = ANY_ID if None in shape else math.prod(sizes[:-1]), math.prod(sizes[-1:])
    config = ParamConfig(
        name=own.name or default_name,
        rows=rows,
        cols=cols,
        learning_rate=float(own.learning_rate),
        decay=_get_coeff(own.regularizer, L2Decay),
        l1=_get_coeff(own.regularizer, L1Decay),
        clip=None if own.need_clip else 0.0,
        is_static=not own.trainable,
        sparse=sparse,
        entry=entry,
    )
    return (own.initializer or usual or get_usual(is_bias=is_bias)).begin(config, sizes)
