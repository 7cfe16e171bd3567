"""Functions of tensors in static mode: each adds an operation to the default main program."""

from __future__ import annotations

import builtins
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...engine.graph import BATCH, FREE
from ...engine.ops.signature import make_function, read_row
from ...engine.param_config import ParamConfig
from .program import Variable, add_value, combine, make_constant, make_unique_name, parse_dtype, take_items

Axis = int | Sequence[int] | None
Sizes = Sequence[int | Variable | None] | Variable
Function = Callable[..., Variable]


def define(row: str, text: str, build: Function | str = "") -> Function:
    """Return a function that adds a result to the default main program.

    row: its name, inputs and options, as read_row() takes them. text: what it returns. build: makes the
    result of all arguments, or is an operation, by default that of the same name, with the options as its
    attributes. An option is of the kind of its default; None is any.
    """
    own, inputs, options = read_row(row)

    def call(name: str | None, **found: Any) -> Variable:
        for option, usual in options.items():
            found[option] = _read_option(found[option], usual)
        if callable(build):
            return build(**found)
        return add_value(build or own, [found.pop(one) for one in inputs], found)

    return make_function(f"{row} name" if options else f"{row} | name", text, call)


def _read_option(value: Any, usual: Any) -> Any:
    if isinstance(usual, bool | float):
        return type(usual)(value)
    if isinstance(usual, int):
        return operator.index(value)
    return tuple(value) if isinstance(value, list) else value


def _define_pair(op: str, text: str) -> Function:
    """Return the function of two variables, or of one and a number."""
    return define(f"{op} x y", text, lambda x, y: combine(op, x, y))


def _cast(x: Variable, dtype: object) -> Variable:
    return x if dtype is None else cast(x, dtype)


def _scale(x: Variable, scale: float, bias: float, bias_after_scale: bool, act: str | None) -> Variable:
    if act is not None:
        raise ValueError(f"scale: act={act!r} is not in this runtime; call nn.functional.{act} of the result")
    own_bias = bias if bias_after_scale else bias * scale
    return add_value("scale", [x], {"scale": scale, "bias": own_bias})


# fmt: off
scale = define("scale x | scale=1.0 bias=0.0 bias_after_scale=True act",
               "x * scale + bias, or (x + bias) * scale", _scale)
abs = define("abs x", "x without its sign")
exp = define("exp x", "e to the power of x")
log = define("log x", "the natural logarithm of x")
sqrt = define("sqrt x", "the square root of x")
tanh = define("tanh x", "tanh(x)")
square = define("square x", "x * x", lambda x: x * x)
rsqrt = define("rsqrt x", "1 / sqrt(x)", lambda x: 1.0 / sqrt(x))
pow = _define_pair("pow", "x to the power of y; x is above 0, or y is a whole number")
add = _define_pair("add", "x + y; sizes of 1 are repeated, but never over a batch")
subtract = _define_pair("subtract", "x - y")
multiply = _define_pair("multiply", "x * y")
divide = _define_pair("divide", "x / y")
equal = _define_pair("equal", "1 where x and y are equal, else 0, as int64")
not_equal = _define_pair("not_equal", "1 where x and y differ, else 0, as int64")
less_than = _define_pair("less_than", "1 where x < y, else 0, as int64")
less_equal = _define_pair("less_equal", "1 where x <= y, else 0, as int64")
greater_than = _define_pair("greater_than", "1 where x > y, else 0, as int64")
greater_equal = _define_pair("greater_equal", "1 where x >= y, else 0, as int64")
logical_and = _define_pair("logical_and", "1 where neither x nor y is 0, else 0, as int64")
logical_or = _define_pair("logical_or", "1 where x or y is not 0, else 0, as int64")
logical_not = define("logical_not x", "1 where x is 0, else 0, as int64", lambda x: equal(x, 0))
erf = define("erf x", "the error function of x")
floor = define("floor x", "the greatest whole number up to x; it has no gradient")
add_n = define("add_n inputs", "the sum of variables of one shape", lambda inputs: functools.reduce(
    add, [inputs] if isinstance(inputs, Variable) else inputs))
sign = define("sign x", "-1, 0 or 1; it has no gradient")
maximum = define("maximum x y", "the larger of x and y; sizes of 1 are repeated, as by add()")
minimum = define("minimum x y", "the smaller of x and y; sizes of 1 are repeated, as by add()")
max = define("max x | axis keepdim=False", "the largest value over axes; None: all")
min = define("min x | axis keepdim=False", "the smallest value over axes; None: all")
mean = define("mean x | axis keepdim=False", "the mean over axes; None: all")
sum = define("sum x | axis dtype keepdim=False", "the sum over axes; None: all",
             lambda x, dtype, **given: _cast(add_value("sum", [x], given), dtype))
transpose = define("transpose x perm", "the values with axes in the order of `perm`; the batch stays first",
                   lambda x, perm: add_value("transpose", [x], {"perm": tuple(perm)}))
shape = define("shape input", "the sizes of all axes, as int64; each may be a size for full() and reshape()")
matmul = define("matmul x y | transpose_x=False transpose_y=False",
                "the product of matrices; not over the batch",
                lambda x, y, **swaps: add_value("matmul", [x, y], {"transpose": tuple(swaps.values())}))
bmm = define("bmm x y", "the products of matrices [batch, n, k] and [batch, k, m]", lambda x, y: matmul(x, y))
mm = define("mm input mat2", "matmul(input, mat2)", lambda input, mat2: matmul(input, mat2))
dot = define("dot x y", "the sum of x * y over the last axis", lambda x, y: sum(x * y, axis=-1))
cast = define("cast x dtype", "the values in another dtype, float32 or int64",
              lambda x, dtype: add_value("cast", [x], {"to": parse_dtype(dtype, "cast")}))
concat = define("concat x | axis=0", "variables one after the other, along `axis`; not along the batch",
                lambda x, axis: add_value("concat", list(x), {"axis": axis}))
stack = define("stack x | axis=0", "variables of one shape along a new axis; not before the batch",
               lambda x, axis: concat([unsqueeze(one, axis) for one in x], axis))
where = define("where condition x y", "x where the condition is not 0, else y; each may be a number",
               lambda condition, x, y: add_value(
                   "where", [make_constant(x, y), make_constant(y, x), condition]))
gather = define("gather x index | axis=0", "the items at places of `index`; of the batch, as many")
index_select = define("index_select x index | axis=0", "gather(x, index, axis)", "gather")
take_along_axis = define("take_along_axis arr indices | axis=0", "the items of each row at places of its own")
cumsum = define("cumsum x | axis", "the sums of each item and those before it; axis None: of all",
                lambda x, axis: add_value("cumsum", [flatten(x) if axis is None else x], {"axis": axis or 0}))
argsort = define("argsort x | axis=-1 descending=False",
                 "the places of the items in ascending order; of equal ones the first is first",
                 lambda x, axis, descending: _order(x, axis, x.shape[axis], descending))
argmax = define("argmax x | axis keepdim=False",
                "the place of the largest item, the first of equal ones; axis None: of all",
                lambda x, axis, keepdim: _find_place(x, axis, keepdim, largest=True))
argmin = define("argmin x | axis keepdim=False",
                "the place of the smallest item, the first of equal ones; axis None: of all",
                lambda x, axis, keepdim: _find_place(x, axis, keepdim, largest=False))
tile = define("tile x repeat_times", "the values so many times along each axis; not along the batch",
              lambda x, repeat_times: add_value(
                  "tile", [x], {"repeats": _lengthen(repeat_times, x.shape)}))
expand_as = define("expand_as x y", "expand(x, shape(y))", lambda x, y: expand(x, shape(y)))
ones = define("ones shape | dtype", "full(shape, 1)", lambda shape, dtype: full(shape, 1, dtype))
zeros = define("zeros shape | dtype", "full(shape, 0)", lambda shape, dtype: full(shape, 0, dtype))
full_like = define("full_like x fill_value | dtype",
                   "a constant in an array of x's shape, by default of its dtype",
                   lambda x, fill_value, dtype: full(shape(x), fill_value, dtype or x.dtype))
ones_like = define("ones_like x | dtype", "full_like(x, 1)", lambda x, dtype: full_like(x, 1, dtype))
zeros_like = define("zeros_like x | dtype", "full_like(x, 0)", lambda x, dtype: full_like(x, 0, dtype))
# fmt: on


def _order(x: Variable, axis: int, k: int, largest: bool) -> Variable:
    return add_value("order", [x], {"axis": axis, "k": k, "largest": largest})


def _find_place(x: Variable, axis: int | None, keepdim: bool, *, largest: bool) -> Variable:
    found = _order(flatten(x) if axis is None else x, axis or 0, 1, largest)
    return found if keepdim else squeeze(found, axis or 0)


def _lengthen(sizes: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    return (*[1] * (len(other) - len(sizes)), *sizes)


def topk(
    x: Variable, k: int, axis: int = -1, largest: bool = True, sorted: bool = True, name: str | None = None
) -> tuple[Variable, Variable]:
    """Return the `k` largest or smallest items along `axis` in this order, and their places."""
    places = _order(x, axis, k, largest)
    return take_along_axis(x, places, axis), places


def expand(x: Variable, shape: Sizes, name: str | None = None) -> Variable:
    """Return the values with axes of size 1 repeated to a shape; -1: as before."""
    sizes, source = _read_sizes(shape)
    if source is not None:
        return x * full(shape, 1.0)
    pairs = list(zip(_lengthen(x.shape, sizes), sizes, strict=True))
    if any(wanted not in (-1, size) and size != 1 for size, wanted in pairs):
        raise ValueError(f"expand: {x.name} {list(x.shape)} can't have the shape {sizes}")
    return tile(x, [wanted if size == 1 and wanted > 0 else 1 for size, wanted in pairs])


def reshape(x: Variable, shape: Sizes, name: str | None = None) -> Variable:
    """Return the values in another shape. -1: the rest; 0: as before. The batch stays first."""
    sizes, source = _read_sizes(shape)
    if source not in (None, x):
        sizes[:1] = [0 if size == -2 else size for size in sizes[:1]]
    return add_value("reshape", [x], {"shape": tuple(sizes)})


def _read_sizes(shape: Sizes) -> tuple[list[int], Variable | None]:
    """Return sizes as attributes have them, and the variable from whose shape() they take the free ones."""
    sizes, source = [], None
    if isinstance(shape, Variable):
        shape = [shape[i] for i in range(shape.shape[0] if shape.op == "shape" else 1)]
    for one in shape:
        size: Any = -1 if one is None else one
        if isinstance(one, Variable) and one.op == "slice" and one.inputs[0].op == "shape":
            (found,), (axis, *_) = one.inputs[0].inputs, one.attrs["parts"]
            size = found.shape[axis]
            if size == BATCH:
                assert isinstance(found, Variable)
                size, source = -2 - axis % len(found.shape), found
        sizes.append(operator.index(size))
    return sizes, source


def _take_sizes(x: Variable, axes: Iterable[int]) -> list[int]:
    """Return sizes of x for reshape(), also free ones behind the batch."""
    return [-2 - i if x.shape[i] == FREE and i else x.shape[i] for i in axes]


def flatten(x: Variable, start_axis: int = 0, stop_axis: int = -1, name: str | None = None) -> Variable:
    """Return the values with several axes as one."""
    rank = builtins.max(1, len(x.shape))
    first, last = start_axis % rank, stop_axis % rank
    return reshape(x, [*_take_sizes(x, range(first)), -1, *_take_sizes(x, range(last + 1, len(x.shape)))])


def squeeze(x: Variable, axis: Axis = None, name: str | None = None) -> Variable:
    """Return the values without axes of size 1."""
    given = range(len(x.shape)) if axis is None else [axis] if isinstance(axis, int) else axis
    axes = {one % len(x.shape) for one in given}
    return reshape(x, _take_sizes(x, [i for i, size in enumerate(x.shape) if i not in axes or size != 1]))


def unsqueeze(x: Variable, axis: int | Sequence[int], name: str | None = None) -> Variable:
    """Return the values with other axes of size 1, at `axis`."""
    for one in [axis] if isinstance(axis, int) else axis:
        at = one % (len(x.shape) + 1)
        x = reshape(x, [*_take_sizes(x, range(at)), 1, *_take_sizes(x, range(at, len(x.shape)))])
    return x


def full(shape: Sizes, fill_value: float, dtype: object = None, name: str | None = None) -> Variable:
    """Return a constant in an array of a given shape; float32 or int64. Sizes may be those of shape(x)."""
    kind = parse_dtype(dtype or "float32", "full")
    value = float(fill_value) if kind == "float" else int(fill_value)
    sizes, source = _read_sizes(shape)
    attrs = {"shape": tuple(sizes), "to": kind, "value": value}
    return add_value("full", [] if source is None else [source], attrs)


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
    return [
        take_items(x, (*[builtins.slice(None)] * at, builtins.slice(*pair)))
        for pair in itertools.pairwise(ends)
    ]


def slice(input: Variable, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> Variable:
    """Return the items from `starts` to `ends`, without these, of each of `axes`; not along the batch."""
    parts = [builtins.slice(None)] * len(input.shape)
    for axis, start, end in zip(axes, starts, ends, strict=True):
        parts[axis] = builtins.slice(start, end)
    return take_items(input, tuple(parts))


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
