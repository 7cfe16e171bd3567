"""The common class of all operations, their registry, and the state of one step.

Products, sums over many values and functions are kernels of the core, with the same bits on every processor
and for any number of threads. Of numpy's operations only those are used that IEEE defines exactly.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import F32, U64, Ids, Part
from ..graph import BATCH, Graph, Kind, V, Value
from ..param_config import ParamConfig

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Grads = tuple[F32 | None, ...]
FLOAT = np.dtype(np.float32)
ID = np.dtype(np.int64)
ANY_ROWS = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """Inputs of a training step's random numbers, besides the operation; nothing else affects them."""

    seed: int
    trainer: int
    step: int

    def draw_words(self, name: str, count: int) -> U64:
        """Return random words, 64 bits each, for the operation of this name."""
        label = f"{self.seed}/{self.trainer}/{self.step}/{name}"
        key = int.from_bytes(hashlib.blake2b(label.encode(), digest_size=16).digest(), "little")
        return np.asarray(np.random.Philox(key=key).random_raw(count), dtype="<u8")


@dataclass(kw_only=True, slots=True)
class Step:
    """State of one batch on its way through a plan.

    params: dense values. offsets: starts of the samples of each data that is a sequence, and the end of the
    last. counts: sums over all steps so far, of metrics by their names. Written by backward: param_grads,
    and row_grads, of the items of each lookup. errors: samples classified wrongly.
    """

    params: Mapping[str, F32]
    offsets: Mapping[str, Ids]
    counts: dict[str, Ids]
    draw: Draw | None  # None: no training step, no dropout
    threads: int
    param_grads: dict[str, F32] = field(default_factory=dict)
    row_grads: dict[str, Part] = field(default_factory=dict)
    errors: int = 0

    def add_param_grad(self, config: ParamConfig, grad: F32) -> None:
        """Add to the gradient of a parameter; keeps `grad`, which may have another shape."""
        known, grad = self.param_grads.get(config.name), grad.reshape(config.shape)
        self.param_grads[config.name] = grad if known is None else known + grad


class Op:
    """One operation of a plan. Each kind is a subclass, registered in OPS by its names, which spaces divide.

    The words after a subclass's name are its traits. `takes`: the kind of each input; `optional`: the number
    of the last ones that may be missing; `many`: any number of inputs of the first kind. `gives`: the kind of
    the result; None: that of the attribute `to`, or of the first input. `options`: names of attributes.
    `overwrites`: the result may replace the first input; then backward must not read that. `reads_result`:
    backward reads the result. `is_view`: the result may share memory with an input. `keeps_items`: the result
    for sequences is a sequence, item by item. `has_bias`: the last parameter is a bias, which may be missing.

    An object belongs to one plan and computes one step at a time, or has a value whose form is to be found,
    in find_shape(), find_params() and check_params() alone. `needs`: the inputs whose gradients are needed.
    `place`: of the result among all results of the plan; `places`: of the inputs. `in_place`: the first input
    is to be overwritten. `sequence`: the data whose offsets the items of the first sequence among its inputs
    have. `is_loss`: its gradient is 1.
    """

    takes: ClassVar[str] = "float"  # "any": either kind
    optional: ClassVar[int] = 0
    many: ClassVar[bool] = False
    gives: ClassVar[Kind | None] = "float"
    options: ClassVar[str] = ""
    overwrites: ClassVar[bool] = False
    reads_result: ClassVar[bool] = False
    is_view: ClassVar[bool] = False
    keeps_items: ClassVar[bool] = True
    has_bias: ClassVar[bool] = False

    def __init_subclass__(cls, op: str = "", **traits: Any) -> None:
        for name, value in traits.items():
            assert name in Op.__annotations__, name
            setattr(cls, name, value)
        OPS.update(dict.fromkeys(op.split(), cls))

    def __init__(self, value: Value, needs: Sequence[bool] = ()) -> None:
        self.value, self.attrs, self.params = value, value.attrs, value.params
        self.needs = tuple(needs)
        self.place, self.places = -1, tuple[int, ...]()
        self.in_place = False
        self.is_loss = False
        self.sequence = ""
        self._buffers: dict[str, Array] = {}

    @functools.cached_property
    def axes(self) -> tuple[int, ...]:
        """Axes of the first input by the attribute `axis`, as numbers from 0; ValueError if it lacks one."""
        x, axis = self.value.inputs[0], self.attrs["axis"]
        rank = len(x.shape)
        given = [axis] if isinstance(axis, int) else axis or range(rank)
        for one in given:
            if not -rank <= one < rank:
                raise ValueError(f"axis={one}: {describe(x)} has the axes 0 to {rank - 1}")
        return tuple(sorted({one % rank for one in given}))

    # find_shape(*inputs) returns the shape of the result; raises ValueError if an input does not fit.
    find_shape: Callable[..., Shape] = staticmethod(lambda x: x.shape)

    # find_params(*inputs) returns the shapes of the parameters; ANY_ROWS: as many as the first has.
    find_params: Callable[..., Sequence[Shape]] = staticmethod(lambda *inputs: ())

    def check_params(self, *inputs: Value) -> None:
        """Raise ValueError if the parameters are not those that find_params() has, a bias of any shape."""
        params, shapes = self.params, self.find_params(*inputs)
        if len(params) not in (len(shapes), len(shapes) - self.has_bias):
            raise ValueError(f"{len(params)} parameters, expected {len(shapes)}")
        for i, (config, (*first, cols)) in enumerate(zip(params, shapes, strict=False)):
            is_bias = self.has_bias and i == len(shapes) - 1
            expected = params[0].rows if first == [ANY_ROWS] else math.prod(first), cols
            size = config.rows * config.cols
            if config.shape != expected and not (is_bias and size == math.prod(expected)):
                what = "bias" if is_bias else "weight"
                raise ValueError(f"{what} {config.name} is {list(config.shape)}, expected {list(expected)}")

    @classmethod
    def choose(cls, value: Value, program: Graph, *, trains: bool) -> tuple[type[Op], tuple[Value, ...]]:
        """Return the class that computes `value` for its plan, and its inputs.

        They may be those of another operation with the same result, or have data of the program in addition.
        """
        return cls, value.inputs

    def check_ids(self, ids: Ids, below: int, place: int = 1, what: str = "label") -> Ids:
        """Return the ids of an input; raises ValueError with its name for one out of range."""
        for bad in ids[(ids < 0) | (ids >= below)]:
            name = self.value.inputs[place].name
            raise ValueError(f"{name} has the {what} {bad}, expected 0 to {below - 1}") from None
        return ids

    # forward(step, *inputs) returns the result.
    forward: Callable[..., Any]

    # backward(step, grad, result, *inputs) returns the gradient of each input, and adds those of the
    # operation's own parameters to `step`. It must not change `grad`, and may return it. Gradients that are
    # not needed may be None.
    backward: Callable[..., Grads]

    def get_buffer(self, use: str, shape: Shape, dtype: npt.DTypeLike = FLOAT) -> Array:
        """Return an array with any content; steps of equal size get the same one again."""
        found = self._buffers.get(use)
        if found is None or found.shape != shape:
            found = self._buffers[use] = np.empty(shape, dtype)
        return found

    def take_copy(self, x: F32) -> F32:
        """Return the first input's values in an array that may be changed: itself, or a copy."""
        if self.in_place:
            return x
        out = self.get_buffer("result", x.shape)
        np.copyto(out, x)
        return out


OPS: dict[str, type[Op]] = {"data": Op}  # a plan reads data itself


class Form(NamedTuple):
    shape: Shape
    kind: Kind
    is_sequence: bool


def find_form(value: Value, *, has_params: bool = True) -> Form:
    """Return the form of an operation's result, which `value` need not have; raises ValueError with its name.

    Without `has_params` it does not check those.
    """
    cls, name, inputs, attrs = OPS[value.op], value.name, value.inputs, value.attrs
    options, takes = cls.options.split(), cls.takes.split()
    if set(attrs) != set(options):
        raise ValueError(f"{name}: attributes {sorted(attrs)}, expected {sorted(options)}")
    least = len(takes) - cls.optional
    takes = takes * max(1, len(inputs)) if cls.many else takes[: max(least, len(inputs))]
    if len(inputs) != len(takes):
        raise ValueError(f"{name}: {len(inputs)} inputs, expected {len(takes)}")
    for one, kind in zip(inputs, takes, strict=True):
        if kind not in ("any", one.kind):
            advice = "" if kind == "id" else "; `cast` makes floats of them, and an embedding vectors"
            raise ValueError(f"{name}: input {one.name} has {one.kind} values, expected {kind}{advice}")
    plain = [one.name for one in inputs if one.has_batch and not one.is_sequence]
    sequences = [one.name for one in inputs if one.is_sequence]
    if plain and sequences:
        raise ValueError(
            f"{name}: input {sequences[0]} is a sequence, {plain[0]} is not; give both the same kind of "
            "data, or pool the sequence first, as layer.pooling and static.nn.sequence_pool do"
        )
    if value.op != "lookup" and any(config.sparse for config in value.params):
        raise ValueError(f"{name}: sparse_update is only for embeddings and sparse vectors")
    try:
        op = cls(value)
        shape = op.find_shape(*inputs)
        if has_params:
            op.check_params(*inputs)
    except ValueError as e:
        raise ValueError(f"{name}: {e}") from None
    has_items = bool(sequences) and shape[:1] == (BATCH,) and cls.keeps_items
    return Form(shape, cls.gives or attrs.get("to") or inputs[0].kind, has_items)


def give_form(value: V) -> V:
    """Return a value with the form of its operation's result; raises ValueError, beginning with its name."""
    return replace(value, **find_form(value)._asdict())


def find_params(op: str, inputs: Sequence[Value], attrs: Mapping[str, Any], name: str) -> Sequence[Shape]:
    """Return the shapes of an operation's parameters; raises ValueError, beginning with `name`."""
    value = Value(name=name, op=op, shape=(), inputs=tuple(inputs), attrs=attrs)
    find_form(value, has_params=False)
    return OPS[op](value).find_params(*inputs)


def make_value(
    op: str,
    inputs: Sequence[Value] = (),
    *,
    name: str,
    attrs: Mapping[str, Any] | None = None,
    params: Sequence[ParamConfig] = (),
) -> Value:
    """Return the result of an operation as a value; raises ValueError, beginning with `name`."""
    return give_form(
        Value(name=name, op=op, shape=(), inputs=tuple(inputs), attrs=attrs or {}, params=tuple(params))
    )


def as_rows(x: Array, leading: int = -1) -> Array:
    """Return an array as a matrix; its first `leading` axes are rows, by default all but the last one."""
    if x.ndim == 2:
        return x
    return x.reshape(math.prod(x.shape[:leading]), math.prod(x.shape[leading:]))


def describe(value: Value) -> str:
    """Return name and shape of a value, for messages."""
    return f"{value.name} {list(value.shape)}"
