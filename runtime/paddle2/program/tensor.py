"""Functions of tensors in static mode: each adds an operation to the default main program."""

from __future__ import annotations

import builtins
import itertools
import math
from collections.abc import Callable, Sequence

from ...engine.graph import BATCH
from ...engine.param_config import ParamConfig
from .program import Variable, add_value, combine, make_unique_name, parse_dtype, take_items

Axis = int | Sequence[int] | None
_Sequence = Sequence[Variable]
_Function = Callable[..., Variable]


def make_unary(op: str, text: str) -> _Function:
    """Return the function of an operation on x; its help is `text`."""

    def function(x: Variable, name: str | None = None) -> Variable:
        return add_value(op, [x])

    return _name(function, op, text)


def _make_binary(op: str, text: str, takes_numbers: bool = True) -> _Function:
    def function(x: Variable, y: Variable, name: str | None = None) -> Variable:
        return combine(op, x, y) if takes_numbers else add_value(op, [x, y])

    return _name(function, op, text)


def _make_reduction(op: str, text: str) -> _Function:
    def function(x: Variable, axis: Axis = None, keepdim: bool = False, name: str | None = None) -> Variable:
        return add_value(op, [x], {"axis": _freeze(axis), "keepdim": keepdim})

    return _name(function, op, text)


def _name(function: _Function, op: str, text: str) -> _Function:
    function.__name__ = function.__qualname__ = op
    function.__doc__ = f"Return {text}."
    return function


abs = make_unary("abs", "x without its sign")
exp = make_unary("exp", "e to the power of x")
log = make_unary("log", "the natural logarithm of x")
sqrt = make_unary("sqrt", "the square root of x")
tanh = make_unary("tanh", "tanh(x)")
add = _make_binary("add", "x + y; sizes of 1 are repeated, but never over a batch")
subtract = _make_binary("subtract", "x - y")
multiply = _make_binary("multiply", "x * y")
divide = _make_binary("divide", "x / y")
maximum = _make_binary("maximum", "the larger of x and y; sizes of 1 are repeated, as by add()", False)
minimum = _make_binary("minimum", "the smaller of x and y; sizes of 1 are repeated, as by add()", False)
max = _make_reduction("max", "the largest value over axes; None: all")
min = _make_reduction("min", "the smallest value over axes; None: all")
mean = _make_reduction("mean", "the mean over axes; None: all")


def add_n(inputs: Variable | _Sequence, name: str | None = None) -> Variable:
    """Return the sum of variables of one shape."""
    first, *others = [inputs] if isinstance(inputs, Variable) else inputs
    for one in others:
        first = combine("add", first, one)
    return first


def scale(
    x: Variable,
    scale: float = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Return x * scale + bias, or (x + bias) * scale."""
    if act is not None:
        raise ValueError(f"scale: act={act!r} is not in this runtime; call nn.functional.{act} of the result")
    own_bias = bias if bias_after_scale else bias * scale
    return add_value("scale", [x], {"scale": float(scale), "bias": float(own_bias)})


def cast(x: Variable, dtype: object) -> Variable:
    """Return the values in another dtype, float32 or int64."""
    return add_value("cast", [x], {"to": parse_dtype(dtype, "cast")})


def reshape(x: Variable, shape: Sequence[int | None], name: str | None = None) -> Variable:
    """Return the values in another shape. -1: the rest; 0: as before. The batch stays first."""
    return add_value("reshape", [x], {"shape": tuple(-1 if size is None else size for size in shape)})


def flatten(x: Variable, start_axis: int = 0, stop_axis: int = -1, name: str | None = None) -> Variable:
    """Return the values with several axes as one."""
    rank = builtins.max(1, len(x.shape))
    first, last = start_axis % rank, stop_axis % rank
    return reshape(x, [*x.shape[:first], -1, *x.shape[last + 1 :]])


def squeeze(x: Variable, axis: Axis = None, name: str | None = None) -> Variable:
    """Return the values without axes of size 1."""
    given = range(len(x.shape)) if axis is None else [axis] if isinstance(axis, int) else axis
    axes = {one % len(x.shape) for one in given}
    return reshape(x, [size for i, size in enumerate(x.shape) if i not in axes or size != 1])


def unsqueeze(x: Variable, axis: int, name: str | None = None) -> Variable:
    """Return the values with another axis of size 1, at `axis`."""
    at = axis % (len(x.shape) + 1)
    return reshape(x, [*x.shape[:at], 1, *x.shape[at:]])


def full(shape: Sequence[int], fill_value: float, dtype: object = None, name: str | None = None) -> Variable:
    """Return a constant in an array of a given shape; float32 or int64."""
    kind = parse_dtype(dtype or "float32", "full")
    value = float(fill_value) if kind == "float" else int(fill_value)
    return add_value("full", [], {"shape": tuple(map(int, shape)), "to": kind, "value": value})


def ones(shape: Sequence[int], dtype: object = None, name: str | None = None) -> Variable:
    """Return ones in an array of a given shape."""
    return full(shape, 1, dtype)


def zeros(shape: Sequence[int], dtype: object = None, name: str | None = None) -> Variable:
    """Return zeros in an array of a given shape."""
    return full(shape, 0, dtype)


def concat(x: _Sequence, axis: int = 0, name: str | None = None) -> Variable:
    """Return variables one after the other, along `axis`; not along the batch."""
    return add_value("concat", list(x), {"axis": axis})


def stack(x: _Sequence, axis: int = 0, name: str | None = None) -> Variable:
    """Return variables of one shape one after the other, along a new axis; not before the batch."""
    return concat([unsqueeze(one, axis) for one in x], axis)


def split(
    x: Variable, num_or_sections: int | Sequence[int], axis: int = 0, name: str | None = None
) -> list[Variable]:
    """Return parts of equal size along `axis`, or of the given sizes, -1: the rest; not along the batch."""
    at, given = axis % len(x.shape), num_or_sections
    size = x.shape[at]
    sizes = [size // builtins.max(1, given)] * given if isinstance(given, int) else list(given)
    if -1 in sizes:
        sizes[sizes.index(-1)] = size - builtins.sum(sizes) - 1
    if size == BATCH or builtins.sum(sizes) != size or builtins.min(sizes) < 1:
        raise ValueError(f"split: {x.name} {list(x.shape)} can't be cut into {given!r} along axis {axis}")
    ends = itertools.accumulate(sizes, initial=0)
    return [take_items(x, (*[slice(None)] * at, slice(*pair))) for pair in itertools.pairwise(ends)]


def transpose(x: Variable, perm: Sequence[int], name: str | None = None) -> Variable:
    """Return the values with their axes in the order of `perm`; the batch stays first."""
    return add_value("transpose", [x], {"perm": tuple(perm)})


def matmul(
    x: Variable, y: Variable, transpose_x: bool = False, transpose_y: bool = False, name: str | None = None
) -> Variable:
    """Return the product of matrices; not over the batch."""
    return add_value("matmul", [x, y], {"transpose": (bool(transpose_x), bool(transpose_y))})


def sum(
    x: Variable, axis: Axis = None, dtype: object = None, keepdim: bool = False, name: str | None = None
) -> Variable:
    """Return the sum over axes; None: all."""
    total = add_value("sum", [x], {"axis": _freeze(axis), "keepdim": keepdim})
    return total if dtype is None else cast(total, dtype)


def _freeze(axis: Axis) -> int | tuple[int, ...] | None:
    return axis if axis is None or isinstance(axis, int) else tuple(axis)


def square(x: Variable, name: str | None = None) -> Variable:
    """Return x * x."""
    return add_value("multiply", [x, x])


def rsqrt(x: Variable, name: str | None = None) -> Variable:
    """Return 1 / sqrt(x)."""
    return combine("divide", ones([1]), sqrt(x))


def pow(x: Variable, y: object, name: str | None = None) -> Variable:
    """Return x to the power of y, which is a whole number from 1 to 64, 0.5 or -0.5."""
    if y in (0.5, -0.5):
        return sqrt(x) if y == 0.5 else rsqrt(x)
    if not isinstance(y, float | int) or y not in range(1, 65):
        raise ValueError(f"pow: y={y!r}, expected a whole number from 1 to 64, 0.5 or -0.5")
    result, power, left = None, x, int(y)
    while left:
        if left % 2:
            result = power if result is None else combine("multiply", result, power)
        left //= 2
        power = square(power) if left else power
    assert result is not None  # y is above 0
    return result


def clip(
    x: Variable, min: float | None = None, max: float | None = None, name: str | None = None
) -> Variable:
    """Return the nearest number from min to max; None: no limit. Others than those between learn nothing."""
    least, most = -math.inf if min is None else float(min), math.inf if max is None else float(max)
    if not least <= most:
        raise ValueError(f"clip: min={min} must be at most max={max}")
    return add_value("clip", [x], {"least": least, "most": most})


def look_up(input: Variable, table: ParamConfig, padding_idx: int | None, own: str) -> Variable:
    """Return the row of each id in a table; the row of the id `padding_idx` is 0."""
    attrs = {"dim": table.cols, "padding": padding_idx}
    return add_value("lookup", [input], attrs, [table], name=f"{make_unique_name(own)}.tmp_0")
