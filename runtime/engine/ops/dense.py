"""Parameters, constants, matrix products, and changes of form."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np

from ... import _core
from ...files.serving import hash_keys
from ..arrays import F32, Ids
from ..graph import BATCH, FREE, Value
from .base import FLOAT, ID, Array, Grads, Op, Shape, Step, as_rows, describe


class Parameter(Op, op="parameter", takes="", is_view=True):
    """All values of a parameter, in the value's shape."""

    def forward(self, step: Step) -> F32:
        (config,) = self.params
        return step.params[config.name].reshape(self.value.shape)

    def backward(self, step: Step, grad: F32, result: F32) -> Grads:
        (config,) = self.params
        step.add_param_grad(config, np.array(grad, order="C"))  # which may be that of another parameter too
        return ()


class Full(Op, op="full", takes="any", optional=1, gives=None, options="shape to value"):
    """The constant `value` in an array of the given shape; `to`: its kind.

    With an input, `shape` may have sizes of it, as that of Reshape.
    """

    def find_shape(self, *source: Value) -> Shape:
        shape = _resolve(self.attrs["shape"], *(one.shape for one in source))
        if (FREE in shape or 0 in shape) and not (source and shape[0] == BATCH):
            raise ValueError(f"shape {list(self.attrs['shape'])}, expected whole numbers from 1")
        return tuple(shape)

    def forward(self, step: Step, *source: Array) -> Array:
        shape = _resolve(self.attrs["shape"], *(one.shape for one in source))
        out = self.get_buffer("result", tuple(shape), FLOAT if self.value.kind == "float" else ID)
        out[...] = self.attrs["value"]
        return out

    def backward(self, step: Step, grad: F32, result: F32, *source: Array) -> Grads:
        return (None,)


class ShapeOp(Op, op="shape", takes="any", gives="id"):
    """The sizes of all axes."""

    def find_shape(self, x: Value) -> Shape:
        return (len(x.shape),)

    def forward(self, step: Step, x: Array) -> Ids:
        return np.array(x.shape, ID)


class Fc(Op, op="fc", many=True, has_bias=True, options="keeps size"):
    """Sum of x W over the inputs, plus b. `size`: columns; `keeps`: leading axes that stay, the others of x
    are rows of W. The parameters are one W for each input, then b if there is one.
    """

    def find_shape(self, *inputs: Value) -> Shape:
        keeps: int = self.attrs["keeps"]
        for one in inputs:
            if not 0 < keeps < len(one.shape) or one.shape[:keeps] != inputs[0].shape[:keeps]:
                raise ValueError(f"input {describe(one)} has no {keeps} leading axes like the first input")
            if FREE in one.shape[keeps:]:
                raise ValueError(f"input {describe(one)} has a free size, which the weight can't have")
        return (*inputs[0].shape[:keeps], self.attrs["size"])

    def find_params(self, *inputs: Value) -> Sequence[Shape]:
        size: int = self.attrs["size"]
        return [*((math.prod(one.shape[self.attrs["keeps"] :]), size) for one in inputs), (size,)]

    def forward(self, step: Step, *inputs: F32) -> F32:
        params, keeps = self.params, self.attrs["keeps"]
        out = self.get_buffer("result", (*inputs[0].shape[:keeps], self.value.shape[-1]))
        rows = as_rows(out)
        start = step.params[params[-1].name] if len(params) > len(inputs) else None
        for x, weight in zip(inputs, params, strict=False):
            _core.matmul(as_rows(x, keeps), step.params[weight.name], rows, start, step.threads)
            start = rows
        return out

    def backward(self, step: Step, grad: F32, result: F32, *inputs: F32) -> Grads:
        params, keeps = self.params, self.attrs["keeps"]
        grad = as_rows(np.ascontiguousarray(grad))
        back: list[F32 | None] = []
        for i, (x, weight, needs) in enumerate(zip(inputs, params, self.needs, strict=False)):
            known = step.param_grads.get(weight.name)
            out = self.get_buffer(f"weight {i}", weight.shape) if known is None else known
            _core.matmul(as_rows(x, keeps).T, grad, out, known, step.threads)
            step.param_grads[weight.name] = out
            own = self.get_buffer(f"back {i}", x.shape) if needs else None
            if own is not None:
                _core.matmul(grad, step.params[weight.name].T, as_rows(own, keeps), None, step.threads)
            back.append(own)
        if len(params) > len(inputs):
            total = self.get_buffer("bias", params[-1].shape)
            _core.sum_columns(grad, total, step.threads)
            step.add_param_grad(params[-1], total)
        return tuple(back)


class Matmul(Op, op="matmul", takes="float float", options="transpose"):
    """Product of matrices; leading axes of the first are those of the result, the second has none or equal
    ones. `transpose`: the last two axes of the first, and of the second, are exchanged before.
    """

    def find_shape(self, *inputs: Value) -> Shape:
        x, y = (
            (*one.shape[:-2], *one.shape[:-3:-1]) if swapped else one.shape
            for one, swapped in zip(inputs, self.attrs["transpose"], strict=True)
        )
        fits = min(len(x), len(y)) > 1 and x[-1] == y[-2] and y[:-2] in ((), x[:-2])
        moves = [len(one.shape) == 2 and one.has_batch for one in inputs]  # the batch, unless x is as it was
        if not fits or moves[1] or (moves[0] and self.attrs["transpose"][0]):
            raise ValueError(f"inputs {describe(inputs[0])} and {describe(inputs[1])} can't be multiplied")
        return (*x[:-1], y[-1])

    def forward(self, step: Step, x: F32, y: F32) -> F32:
        return multiply(*self._transpose(x, y), step.threads)

    def backward(self, step: Step, grad: F32, result: F32, x: F32, y: F32) -> Grads:
        x, y = self._transpose(x, y)
        back_x = multiply(grad, y.swapaxes(-1, -2), step.threads) if self.needs[0] else x
        if y.ndim == 2:  # of all leading axes of x
            x, grad = as_rows(x), as_rows(grad)
        back_y = multiply(x.swapaxes(-1, -2), grad, step.threads) if self.needs[1] else y
        return self._transpose(back_x, back_y)

    def _transpose(self, x: F32, y: F32) -> tuple[F32, F32]:
        swap_x, swap_y = self.attrs["transpose"]
        return x.swapaxes(-1, -2) if swap_x else x, y.swapaxes(-1, -2) if swap_y else y


def multiply(x: F32, y: F32, threads: int, start: F32 | None = None) -> F32:
    """Return products of the last two axes, added to `start`; a `y` without leading axes serves all of x."""
    out = np.empty((*x.shape[:-1], y.shape[-1]), dtype=np.float32)
    if y.ndim == 2:
        _core.matmul(as_rows(x), y, as_rows(out), start, threads)
    else:
        for place in np.ndindex(*x.shape[:-2]):
            _core.matmul(x[place], y[place], out[place], None, threads)
    return out


class Concat(Op, op="concat", takes="any", gives=None, many=True, options="axis"):
    """Inputs one after the other, along `axis`."""

    def find_shape(self, *inputs: Value) -> Shape:
        first, axis = inputs[0], self.axes[0]
        before, after = first.shape[:axis], first.shape[axis + 1 :]
        for one in inputs:
            form = (one.kind, len(one.shape), one.shape[:axis], one.shape[axis + 1 :])
            if form != (first.kind, len(first.shape), before, after) or first.shape[axis] == BATCH:
                raise ValueError(f"{describe(first)} and {describe(one)} can't be joined at axis {axis}")
        return (*before, sum(one.shape[axis] for one in inputs), *after)

    def __init__(self, value: Value, needs: Sequence[bool] = ()) -> None:
        super().__init__(value, needs)
        self.filled: set[int] = set()  # inputs that lookups write to their part, before
        self.learning: dict[int, str] = {}  # of these, lookups that take nothing but their gradient

    @functools.cached_property
    def parts(self) -> list[tuple[slice, ...]]:
        """The part of each input in the result."""
        (axis,) = self.axes
        ends = [0, *itertools.accumulate(one.shape[axis] for one in self.value.inputs)]
        return [(slice(None),) * axis + (slice(*pair),) for pair in itertools.pairwise(ends)]

    def forward(self, step: Step, *inputs: Array) -> Array:
        if self.filled:
            out = self._buffers["result"]
        else:
            shape, axis = inputs[0].shape, self.axes[0]
            whole = (*shape[:axis], self.value.shape[axis], *shape[axis + 1 :])
            out = self.get_buffer("result", whole, inputs[0].dtype)
        for i, x in enumerate(inputs):
            if i not in self.filled:
                out[self.parts[i]] = x
        return out

    def backward(self, step: Step, grad: F32, result: F32, *inputs: F32) -> Grads:
        parts = [grad[part] for part in self.parts]
        step.row_grads.update([(name, parts[i]) for i, name in self.learning.items()])
        return tuple(parts)


class Reshape(Op, op="reshape", takes="any", gives=None, options="shape", is_view=True):
    """The same items in another `shape`; in it -1 is a size that follows from the others, 0 the input's own,
    -2 the input's first, -3 its second and so on. The batch stays the first size.
    """

    def find_shape(self, x: Value) -> Shape:
        given: Sequence[int] = self.attrs["shape"]
        first, copied = int(x.has_batch), _find_copied(given)
        if any(axis is not None and axis >= len(x.shape) for axis in copied):
            raise ValueError(f"input {describe(x)} has fewer axes than the shape {list(given)} takes from it")
        sizes = _resolve(given, x.shape)
        taken = [x.shape[axis] for axis in copied[first:] if axis is not None]
        free = x.shape[first:].count(FREE) - taken.count(FREE)
        whole, known = (math.prod(size for size in one if size != FREE) for one in (x.shape, sizes))
        unknown = [i for i in range(first, len(sizes)) if given[i] == -1]
        if unknown and not free:
            sizes[unknown[0]] = whole // known
            known *= whole // known
        fits = len(unknown) == 1 if free else len(unknown) < 2 and known == whole
        if sizes[:first] != [BATCH] * first or not fits:
            raise ValueError(f"input {describe(x)} can't have the shape {list(given)}")
        return tuple(sizes)

    def forward(self, step: Step, x: Array) -> Array:
        pairs = zip(self.value.shape, _find_copied(self.attrs["shape"]), strict=True)
        shape = [x.shape[axis] if size == FREE and axis is not None else size for size, axis in pairs]
        return x.reshape([len(x), *shape[1:]] if self.value.has_batch else shape)

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        return (grad.reshape(x.shape),)


def _resolve(given: Sequence[int], *shape: Shape) -> list[int]:
    """Return sizes with those of an input in place of the numbers that stand for them."""
    pairs = zip(given, _find_copied(given), strict=True)
    return [size if axis is None else shape[0][axis] for size, axis in pairs]


def _find_copied(given: Sequence[int]) -> list[int | None]:
    return [i if size == 0 else -2 - size if size < -1 else None for i, size in enumerate(given)]


class Slice(Op, op="slice", takes="any", gives=None, options="parts", is_view=True):
    """Items of the leading axes: `parts` has the number of one, without its axis, or [begin, end, step] of
    several, as slices of Python, or "new" for another axis of size 1. The batch stays whole.
    """

    def __init__(self, value: Value, needs: Sequence[bool] = ()) -> None:
        super().__init__(value, needs)
        parts = self.attrs["parts"]
        self._parts = tuple([None if p == "new" else p if isinstance(p, int) else slice(*p) for p in parts])

    def find_shape(self, x: Value) -> Shape:
        parts, left = self._parts, list(x.shape)
        if len(parts) - parts.count(None) > len(x.shape):
            raise ValueError(f"input {describe(x)} has no {len(parts) - parts.count(None)} axes")
        if x.has_batch and parts[0] != slice(None):
            raise ValueError(f"input {describe(x)} can't be cut along the batch; begin with a colon: [:, 0]")
        sizes: list[int] = []
        for part in parts:
            size = 1 if part is None else left.pop(0)
            if part is None or size == FREE:  # of a free size the parts are too, or an item
                sizes += [] if isinstance(part, int) else [size]
                continue
            found = range(size)[part] if isinstance(part, slice) or -size <= part < size else range(0)
            if found == range(0):
                axis = len(x.shape) - len(left) - 1
                raise ValueError(f"input {describe(x)} has no items {part} at axis {axis}")
            sizes += [len(found)] if isinstance(found, range) else []
        return (*sizes, *left)

    def forward(self, step: Step, x: Array) -> Array:
        return np.asarray(x[self._parts], order="C")

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        back = np.zeros_like(x)
        back[self._parts] = grad.reshape(np.shape(x[self._parts]))
        return (back,)


class Transpose(Op, op="transpose", takes="any", gives=None, options="perm", is_view=True):
    """The same items with the axes in the order of `perm`; the batch stays first."""

    def find_shape(self, x: Value) -> Shape:
        perm: Sequence[int] = self.attrs["perm"]
        if sorted(perm) != list(range(len(x.shape))) or (x.has_batch and perm[0] != 0):
            raise ValueError(f"input {describe(x)} can't have its axes in the order {list(perm)}")
        return tuple(x.shape[i] for i in perm)

    def forward(self, step: Step, x: Array) -> Array:
        return np.asarray(x.transpose(self.attrs["perm"]), order="C")

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        return (grad.transpose(np.argsort(self.attrs["perm"])),)


class Single(Op, op="single", takes="any", gives=None, is_view=True, keeps_items=False):
    """The only item of each sequence."""

    def forward(self, step: Step, x: Array) -> Array:
        lengths = np.diff(step.offsets[self.sequence])
        for place in np.flatnonzero(lengths != 1)[:1]:
            raise ValueError(
                f"sample {place} of {self.sequence} has {lengths[place]} items, but is used beside data with "
                "one for each sample; pool it first, as static.nn.sequence_pool does"
            )
        return x

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        return (grad,)


class Cross(Op, op="cross", takes="id", many=True, gives="id", options="salt"):
    """One id for those of several slots, item by item, which depends on `salt` and their order.

    From k = hash_name(salt) on, each id gives the next k = hash_keys(k xor id).
    """

    def find_shape(self, *slots: Value) -> Shape:
        for one in slots:
            if one.shape != slots[0].shape or (one.is_sequence and len(slots) > 1):
                raise ValueError(
                    f"input {describe(one)}: only slots of one shape, no sequences, can be crossed"
                )
        return slots[0].shape

    def forward(self, step: Step, *slots: Ids) -> Ids:
        keys = np.full(slots[0].shape, _core.hash_name(self.attrs["salt"]), np.uint64)
        for one in slots:
            keys = hash_keys(keys ^ one.view(np.uint64))
        return keys.view(np.int64)


class Cast(Op, op="cast", takes="any", gives=None, options="to", is_view=True):
    """Values of the other kind: `to` is "float" or "id"; floats are cut to whole numbers."""

    def forward(self, step: Step, x: Array) -> Array:
        return np.asarray(x, FLOAT if self.value.kind == "float" else ID)

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        return (grad,)
