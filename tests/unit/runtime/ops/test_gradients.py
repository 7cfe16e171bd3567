"""Every operation against numpy in double precision: its result, and its gradients by finite differences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.runtime import _core
from pslaunch.runtime.engine.arrays import Ids
from pslaunch.runtime.engine.graph import BATCH, Value
from pslaunch.runtime.engine.ops import OPS, Draw, Step, make_value
from pslaunch.runtime.engine.ops.lookup import Lookup
from pslaunch.runtime.engine.param_config import ParamConfig
from support import reference

Array = npt.NDArray[Any]
CONSTANTS: Final = {
    ("batch_norm", 3),
    ("batch_norm", 4),
    ("binary_cross_entropy", 1),
    ("log_loss", 1),
    ("nce", 2),
    ("sigmoid_cross_entropy", 1),
}  # labels and weights of samples, which learn nothing, and running means
DRAW: Final = Draw(seed=1, trainer=0, step=3)


@dataclass
class Example:
    """Inputs of an operation, and `oracle`, which computes it in double precision.

    The oracle gets all inputs, then all parameters. fixed: inputs whose first size is not the batch.
    """

    inputs: Sequence[Array]
    oracle: Callable[..., Array]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    params: Sequence[Array] = ()
    fixed: Sequence[int] = ()
    offsets: Ids | None = None  # of the first input
    shape: tuple[int, ...] = ()  # of a result without inputs


@dataclass(kw_only=True)
class Sizes:
    """Sizes of an example, and its random numbers."""

    n: int
    k: int
    d: int
    rng: np.random.Generator

    def draw(self, *shape: int) -> Array:
        """Normal numbers, none so near to 0 that a difference crosses it."""
        found = self.rng.standard_normal(shape)
        return (found + np.sign(found) * 0.1).astype(np.float32)

    def draw_shares(self, *shape: int) -> Array:
        return self.rng.uniform(0.1, 0.9, shape).astype(np.float32)

    def draw_ids(self, below: int, *shape: int) -> Array:
        return self.rng.integers(0, below, shape)

    def draw_offsets(self) -> Ids:
        """Starts of sequences of 0 to 3 items."""
        return np.concatenate([[0], np.cumsum(self.rng.integers(0, 4, self.n))])


def find_softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def pick(x: Array, labels: Array) -> Array:
    found: Array = np.take_along_axis(x, labels.reshape(*x.shape[:-1], 1), axis=-1)
    return found


def find_log_loss(p: Array, y: Array) -> Array:
    return np.asarray(-y * np.log(p + 1e-4) - (1 - y) * np.log(1 - p + 1e-4))


def find_entropy(p: Array, y: Array) -> Array:
    return np.asarray(-y * np.log(p) - (1 - y) * np.log(1 - p))


def drop(s: Sizes, *, upscales: bool) -> Example:
    x, attrs = s.draw(s.n, s.k, s.d), {"rate": 0.5, "upscales": upscales}
    _, op = compile_op("dropout", Example([x], np.add, attrs))
    mask = op.forward(make_step(), np.ones_like(x))
    return Example([x], lambda x: x * mask, attrs)


def pool(s: Sizes, by: str, find: Callable[[Array], Array]) -> Example:
    offsets = s.draw_offsets()

    def oracle(x: Array) -> Array:
        parts = [x[a:b] for a, b in itertools.pairwise(offsets)]
        return np.stack([find(part) if len(part) else np.zeros(x.shape[1:]) for part in parts])

    x = s.draw(int(offsets[-1]), s.k, s.d)
    return Example([x], oracle, {"by": by}, offsets=offsets)


def look_around(s: Sizes, length: int, start: int) -> Example:
    offsets = s.draw_offsets()

    def oracle(x: Array) -> Array:
        rows = []
        for a, b in itertools.pairwise(offsets):
            for item in range(a, b):
                beside = [
                    x[i] if a <= i < b else 0 * x[0] for i in range(item + start, item + start + length)
                ]
                rows.append(np.concatenate(beside))
        return np.array(rows).reshape(len(x), length * x.shape[1])

    x = s.draw(int(offsets[-1]), s.d)
    return Example([x], oracle, {"length": length, "start": start}, offsets=offsets)


def look_up(s: Sizes, padding: int | None) -> Example:
    def oracle(ids: Array, table: Array) -> Array:
        return np.asarray(table[ids] * (ids != padding)[..., None])

    attrs = {"dim": s.d, "padding": padding}
    return Example([s.draw_ids(5, s.n, s.k)], oracle, attrs, [s.draw(5, s.d)])


def find_auc(counts: Array) -> Array:
    low, high = (np.repeat(np.arange(len(row)), row) for row in counts)
    pairs = (high[:, None] > low) + 0.5 * (high[:, None] == low)
    return np.array(pairs.mean() if pairs.size else 0.0)


def find_right(s: Sizes, k: int) -> Example:
    def oracle(x: Array, y: Array) -> Array:
        best = np.argsort(-x, axis=1, kind="stable")[:, :k]
        return np.array((best == y).any(axis=1).mean())

    few = np.round(s.draw_shares(s.n, 5), 1)  # many are equal
    return Example([few, s.draw_ids(5, s.n, 1)], oracle, {"k": k})


def count_buckets(p: Array, y: Array) -> Array:
    buckets = (p[:, 1] * 100).astype(np.int64)
    return np.stack([np.bincount(buckets[y[:, 0] == label], minlength=101) for label in (0, 1)])


def sum_clicks(p: Array, y: Array) -> Array:
    wrong, p, y = (p - y)[:, 0], p[:, 0], y[:, 0]
    return np.array([wrong @ wrong, abs(wrong).sum(), p.sum(), (1 / (1 + np.exp(-p))).sum(), y.sum(), len(y)])


def multiply_swapped(x: Array, y: Array) -> Array:
    return np.asarray(x.swapaxes(-1, -2) @ y.swapaxes(-1, -2))


def reduce(s: Sizes, find: Callable[..., Array], axis: Any, *, keepdim: bool) -> Example:
    def oracle(x: Array) -> Array:
        return np.asarray(find(x, axis=axis, keepdims=keepdim))

    return Example([s.draw(s.n, s.k, s.d)], oracle, {"axis": axis, "keepdim": keepdim})


def find_turns(labels: Array, classes: int) -> list[list[tuple[int, int]]]:
    """Inner nodes and turns on the way to each label: halves of its place in a heap of all nodes."""
    found: list[list[tuple[int, int]]] = []
    for label in labels.reshape(-1).tolist():
        at, way = label + classes, []
        while at > 1:
            way.append((at // 2 - 1, at % 2))
            at //= 2
        found.append(way)
    return found


def find_path_cost(ways: list[list[tuple[int, int]]], places: int, x: Array, w: Array, b: Array) -> Array:
    costs = []
    for row, way in zip(x, ways, strict=True):
        turns = [np.logaddexp(0, (-1) ** turn * (row @ w[node] + b[node])) for node, turn in way]
        costs.append([sum(turns) + (places - len(way)) * np.log(2)])
    return np.array(costs)


def walk_complete_tree(s: Sizes) -> Example:
    classes, labels = s.k + 1, s.draw_ids(s.k + 1, s.n, 1)

    def oracle(x: Array, labels: Array, w: Array, b: Array) -> Array:
        return find_path_cost(find_turns(labels, classes), s.k.bit_length(), x, w, b.reshape(-1))

    params = [s.draw(s.k, s.d), s.draw(1, s.k)]
    return Example([s.draw(s.n, s.d), labels], oracle, {"classes": classes}, params)


def walk_given_paths(s: Sizes) -> Example:
    def oracle(x: Array, labels: Array, nodes: Array, turns: Array, w: Array) -> Array:
        pairs = [list(zip(*row, strict=True)) for row in zip(nodes.tolist(), turns.tolist(), strict=True)]
        ways = [list(itertools.takewhile(lambda pair: pair[0] >= 0, way)) for way in pairs]
        return find_path_cost(ways, s.k, x, w, np.zeros(len(w)))

    nodes, turns = s.draw_ids(6, s.n, s.k) - 1, s.draw_ids(2, s.n, s.k)
    inputs = [s.draw(s.n, s.d), s.draw_ids(9, s.n), nodes, turns]
    return Example(inputs, oracle, {"classes": 2}, [s.draw(5, s.d)])


def tell_from_noise(s: Sizes, noise: Any, shares: Array, *, has_weight: bool) -> Example:
    classes, attrs = len(shares), {"classes": len(shares), "noise": noise, "samples": s.k}
    inputs = [s.draw(s.n, s.d), s.draw_ids(classes, s.n, 2), s.draw_shares(s.n, 1)][: 2 + has_weight]
    params = [s.draw(classes, s.d), s.draw(classes, 1)]
    _, op = compile_op("nce", Example(inputs, np.add, attrs, params))
    rows = op.choose_rows(make_step(), inputs[1])

    def oracle(x: Array, labels: Array, *others: Array) -> Array:
        *weight, w, b = others
        o = 1 / (1 + np.exp(-((w[rows] * x[:, None]).sum(axis=2) + b[rows, 0])))
        noise_rate = s.k * shares[rows]
        right = np.where(np.arange(rows.shape[1]) < 2, o, noise_rate) / (o + noise_rate)
        return np.asarray(-np.log(right).sum(axis=1, keepdims=True) * (weight[0] if weight else 1))

    return Example(inputs, oracle, attrs, params)


def compare(s: Sizes, find: Callable[..., Array]) -> Example:
    inputs = [s.draw_ids(3, s.n, s.k), s.draw_ids(3, s.n, 1).astype(np.float32)]
    return Example(inputs, lambda x, y: find(x, y).astype(np.int64))


def choose(s: Sizes) -> Example:
    inputs = [s.draw(s.n, s.k, s.d), s.draw(s.n, s.k, 1), s.draw_ids(2, s.n, 1, s.d)]
    return Example(inputs, lambda x, y, c: np.asarray(np.where(c, x, y)))


def gather(s: Sizes, axis: int) -> Example:
    x, index = s.draw(s.n, s.k, s.d), s.draw_ids(s.k if axis else s.n, *([2, 3] if axis else [s.n]))
    return Example([x, index], lambda x, i: np.take(x, i, axis), {"axis": axis}, fixed=[axis])


def take_along(s: Sizes) -> Example:
    inputs = [s.draw(s.n, s.k, s.d), s.draw_ids(s.k, s.n, 5, s.d)]
    return Example(inputs, lambda x, i: np.take_along_axis(x, i, 1), {"axis": -2})


def order(s: Sizes, *, largest: bool) -> Example:
    x, k = np.round(s.draw(s.n, 6), 1), min(6, s.k)  # some are equal
    found = np.argsort(-x if largest else x, axis=1, kind="stable")[:, :k]
    return Example([x], lambda x: found, {"axis": 1, "k": k, "largest": largest})


def convolve(s: Sizes) -> Example:
    """Three columns by two: stride 2 along the second, a hole in the kernel along the first."""

    def oracle(x: Array, weight: Array, bias: Array) -> Array:
        padded = np.pad(x, [(0, 0), (0, 0), (2, 2), (1, 1)])
        kernel = weight.reshape(3, s.k, 2, 2)
        out = np.zeros((s.n, 3, padded.shape[2] - 2, (padded.shape[3] - 2) // 2 + 1))
        for i, j in np.ndindex(*out.shape[2:]):
            window = padded[:, :, i : i + 3 : 2, 2 * j : 2 * j + 2]
            out[:, :, i, j] = np.einsum("ncab,fcab->nf", window, kernel) + bias
        return out

    attrs = {"dilation": (2, 1), "filters": 3, "kernel": (2, 2), "padding": (2, 1), "stride": (1, 2)}
    params = [s.draw(3 * s.k * 2, 2), s.draw(1, 3)]
    return Example([s.draw(s.n, s.k, 2, min(s.d, 5))], oracle, attrs, params)


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def recur(s: Sizes, op: str, *, has_lengths: bool, reverse: bool = False, **attrs: Any) -> Example:
    """Step by step over each sample on its own."""
    parts, size, swaps = 4 if op == "lstm" else 3, min(s.k, 2), op == "gru"
    n = s.n if s.n > 4 else min(s.n, 2)  # finite differences of steps take long
    offsets = replace(s, n=n).draw_offsets() if has_lengths else np.arange(n + 1) * 2

    def advance(x: Array, h: Array, c: Array, w: Array, b: Array) -> tuple[Array, Array]:
        if op == "lstm":
            peeps = b[4 * size :].reshape(3, -1) if attrs["peeps"] else np.zeros((3, size))
            parts = np.split(x + h @ w + b[: 4 * size], 4)
            i, f, g, o = (parts[attrs["order"].index(one)] for one in "ifgo")
            after = sigmoid(f + c * peeps[1]) * c + sigmoid(i + c * peeps[0]) * np.tanh(g)
            return sigmoid(o + after * peeps[2]) * np.tanh(after), after
        (x0, x1, x2), (w0, w1, w2), (b0, b1, b2) = np.split(x, 3), np.split(w, 3, 1), np.split(b, 3)
        first, second = sigmoid(x0 + h @ w0 + b0), sigmoid(x1 + h @ w1 + b1)
        if op == "gru":
            return second * h + (1 - second) * np.tanh(x2 + first * (h @ w2 + b2)), c
        return (1 - first) * h + first * np.tanh(x2 + (second * h) @ w2 + b2), c

    def oracle(x: Array, w: Array, b: Array) -> Array:
        items = x.reshape(-1, parts * size)
        out = np.zeros((len(items), size))
        for begin, end in itertools.pairwise(offsets):
            h = c = np.zeros(size)
            for at in range(begin, end)[:: -1 if reverse else 1]:
                h, c = advance(items[at], h, c, w.T if swaps else w, b[0])
                out[at] = h
        return out.reshape(*x.shape[:-1], size)

    shape = (int(offsets[-1]),) if has_lengths else (n, 2)
    w = s.draw(parts * size, size) if swaps else s.draw(size, parts * size)
    params = [w, s.draw(1, (parts + 3 * bool(attrs.get("peeps"))) * size)]
    own = {**attrs, "reverse": reverse, "size": size, "swaps": swaps}
    x = s.draw(*shape, parts * size)
    return Example([x], oracle, own, params, offsets=offsets if has_lengths else None)


def normalize_batch(s: Sizes, *, trains: bool) -> Example:
    def oracle(x: Array, scale: Array, shift: Array, mean: Array, variance: Array) -> Array:
        if trains:
            mean, variance = x.mean(axis=(0, 2), keepdims=True), x.var(axis=(0, 2), keepdims=True)
        scale, shift, mean, variance = (one.reshape(1, -1, 1) for one in (scale, shift, mean, variance))
        return np.asarray((x - mean) / np.sqrt(variance + 0.1) * scale + shift)

    params = [s.draw(1, s.k), s.draw(1, s.k), s.draw(1, s.k), s.draw_shares(1, s.k)]
    return Example([s.draw(s.n, s.k, s.d)], oracle, {"axis": 1, "epsilon": 0.1, "trains": trains}, params)


def normalize_layer(x: Array, scale: Array, shift: Array) -> Array:
    rows = x.reshape(len(x), -1)
    normal = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 0.1)
    return np.asarray((normal * scale + shift).reshape(x.shape))


def take(s: Sizes, *key: int | slice | None) -> Example:
    parts: list[Any] = ["new" if one is None else one for one in key]
    parts = [[one.start, one.stop, one.step] if isinstance(one, slice) else one for one in parts]
    return Example([s.draw(s.n, s.k + 1, s.d + 1)], lambda x: x[key], {"parts": parts})


def fill(value: float, kind: str, *shape: int) -> dict[str, Any]:
    return {"shape": shape, "to": kind, "value": value}


LOG_UNIFORM: Final = np.log(np.arange(2, 9) / np.arange(1, 8)) / np.log(7)
GIVEN: Final = np.array([0.5, 0.25, 0.0, 0.25])

ARITHMETIC: Final[list[tuple[str, Callable[..., Array]]]] = [
    (name, getattr(np, name)) for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum")
]
COMPARISONS: Final[list[tuple[str, Callable[..., Array]]]] = [
    ("equal", np.equal),
    ("not_equal", np.not_equal),
    ("less_than", np.less),
    ("less_equal", np.less_equal),
    ("greater_than", np.greater),
    ("greater_equal", np.greater_equal),
    ("logical_and", np.logical_and),
    ("logical_or", np.logical_or),
]
POWERS: Final = [("pow", y) for y in (-1.5, -1.0, 0.3, 0.5, 1.0)]
REDUCTIONS: Final[list[tuple[str, Callable[..., Array]]]] = [
    (name, getattr(np, name)) for name in ("sum", "mean", "max", "min")
]
AXES: Final = (None, 0, 1, -1, (1, 2), (0, 2))
PLAIN: Final = {"transpose": (False, False)}
SWAPPED: Final = {"transpose": (True, True)}


def use_two_inputs(s: Sizes) -> Example:
    def oracle(x: Array, y: Array, v: Array, w: Array, b: Array) -> Array:
        return np.asarray(x.reshape(len(x), -1) @ v + y @ w + b)

    params = [s.draw(2 * s.k, 3), s.draw(s.d, 3), s.draw(1, 3)]
    return Example([s.draw(s.n, s.k, 2), s.draw(s.n, s.d)], oracle, {"keeps": 1, "size": 3}, params)


def cross(*slots: Array) -> Array:
    keys = np.full(slots[0].shape, reference.hash_name("s"), np.uint64)
    for one in slots:
        keys = reference.mix64((keys ^ one.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15))
    return keys.astype(np.int64)


def join(x: Array, y: Array) -> Array:
    return np.concatenate([x, y], axis=1)


MAKERS: Final[list[tuple[str, Callable[[Sizes], Example]]]] = [
    ("parameter", lambda s: Example([], lambda w: w.reshape(2, -1), {}, [s.draw(s.d, 2)], shape=(2, s.d))),
    ("fc", lambda s: Example([s.draw(s.n, s.k)], np.matmul, {"keeps": 1, "size": s.d}, [s.draw(s.k, s.d)])),
    ("fc", use_two_inputs),
    ("fc", lambda s: Example([s.draw(s.n, s.k, s.d)], np.matmul, {"keeps": 2, "size": 2}, [s.draw(s.d, 2)])),
    ("matmul", lambda s: Example([s.draw(s.n, s.k), s.draw(s.k, s.d)], np.matmul, PLAIN, fixed=[1])),
    ("matmul", lambda s: Example([s.draw(s.n, 2, s.k), s.draw(s.k, s.d)], np.matmul, PLAIN, fixed=[1])),
    ("matmul", lambda s: Example([s.draw(s.n, s.k, 2), s.draw(s.n, s.d, s.k)], multiply_swapped, SWAPPED)),
    ("concat", lambda s: Example([s.draw(s.n, s.k, 2), s.draw(s.n, s.d, 2)], join, {"axis": 1})),
    ("concat", lambda s: Example([s.draw(s.n, s.k)] * 2, join, {"axis": -1})),
    ("concat", lambda s: Example([s.draw_ids(9, s.n, s.k)] * 2, join, {"axis": 1})),
    (
        "reshape",
        lambda s: Example([s.draw(s.n, s.k, 2)], lambda x: x.reshape(s.n, -1), {"shape": [-1, 2 * s.k]}),
    ),
    (
        "reshape",
        lambda s: Example([s.draw(s.n, 2, s.k)], lambda x: x.reshape(s.n, -1, 2), {"shape": [0, -1, 2]}),
    ),
    ("slice", lambda s: take(s, slice(None), slice(1, None, 2), slice(-3, -1))),
    ("slice", lambda s: take(s, slice(None), -1)),
    ("slice", lambda s: take(s, slice(None), slice(None, None, -1), 0)),
    ("slice", lambda s: Example([s.draw_ids(9, 3, s.k)], lambda x: x[1], {"parts": [1]}, fixed=[0])),
    ("slice", lambda s: take(s, slice(None), None, 0)),
    (
        "reshape",
        lambda s: Example([s.draw(s.n, s.k, 2)], lambda x: x.reshape(s.n, 2, s.k), {"shape": [-1, 2, -3]}),
    ),
    ("single", lambda s: Example([s.draw(s.n, s.k)], lambda x: x, offsets=np.arange(s.n + 1))),
    ("shape", lambda s: Example([s.draw(s.n, s.k)], lambda x: np.array(x.shape))),
    (
        "full",
        lambda s: Example(
            [s.draw(s.n, s.k)], lambda x: np.full((s.n, 2, s.k), 1.5), fill(1.5, "float", 0, 2, -3)
        ),
    ),
    *((op, lambda s, f=f: compare(s, f)) for op, f in COMPARISONS),
    *((op, lambda s, y=y: Example([s.draw_shares(s.n, s.k)], lambda x: x**y, {"y": y})) for op, y in POWERS),
    ("pow", lambda s: Example([s.draw(s.n, s.k)], lambda x: x**7, {"y": 7.0})),
    (
        "transpose",
        lambda s: Example([s.draw(s.n, s.k, s.d)], lambda x: x.transpose(0, 2, 1), {"perm": [0, 2, 1]}),
    ),
    ("cast", lambda s: Example([s.draw_ids(9, s.n, s.k)], lambda x: x * 1.0, {"to": "float"})),
    ("cast", lambda s: Example([s.draw(s.n, s.k)], np.trunc, {"to": "id"})),
    ("cross", lambda s: Example([s.draw_ids(9, s.n, s.k) for _ in range(s.k)], cross, {"salt": "s"})),
    *(
        (op, lambda s, f=f: Example([s.draw(s.n, s.k, s.d), s.draw(s.n, s.k, s.d)], f))
        for op, f in ARITHMETIC
    ),
    *((op, lambda s, f=f: Example([s.draw(s.n, s.k, s.d), s.draw(s.n, s.k, 1)], f)) for op, f in ARITHMETIC),
    *(
        (op, lambda s, f=f: Example([s.draw(1, s.d), s.draw(s.n, s.k, s.d)], f, fixed=[0]))
        for op, f in ARITHMETIC
    ),
    ("scale", lambda s: Example([s.draw(s.n, s.k)], lambda x: x * 3.5 - 1.25, {"scale": 3.5, "bias": -1.25})),
    ("sigmoid", lambda s: Example([s.draw(s.n, s.k, s.d)], lambda x: 1 / (1 + np.exp(-x)))),
    ("tanh", lambda s: Example([s.draw(s.n, s.k)], np.tanh)),
    ("exp", lambda s: Example([s.draw(s.n, s.k)], np.exp)),
    ("relu", lambda s: Example([s.draw(s.n, s.k)], lambda x: np.maximum(x, 0))),
    ("abs", lambda s: Example([s.draw(s.n, s.k)], np.abs)),
    ("sqrt", lambda s: Example([s.draw_shares(s.n, s.k)], np.sqrt)),
    ("log", lambda s: Example([s.draw_shares(s.n, s.k, s.d)], np.log)),
    (
        "clip",
        lambda s: Example([s.draw(s.n, s.k)], lambda x: np.clip(x, -0.5, 1.0), {"least": -0.5, "most": 1.0}),
    ),
    ("full", lambda s: Example([], lambda: np.full((2, s.k), 2.5), fill(2.5, "float", 2, s.k))),
    ("full", lambda s: Example([], lambda: np.full(s.d, 2**40), fill(2**40, "id", s.d))),
    ("softmax", lambda s: Example([s.draw(s.n, s.k, s.d)], find_softmax)),
    ("dropout", lambda s: drop(s, upscales=False)),
    ("dropout", lambda s: drop(s, upscales=True)),
    *(
        (op, lambda s, f=f, axis=axis, keepdim=keepdim: reduce(s, f, axis, keepdim=keepdim))
        for op, f in REDUCTIONS
        for axis in AXES
        for keepdim in (False, True)
    ),
    ("lookup", lambda s: look_up(s, None)),
    ("lookup", lambda s: look_up(s, 2)),
    (
        "softmax_with_cross_entropy",
        lambda s: Example(
            [s.draw(s.n, s.k, s.d), s.draw_ids(s.d, s.n, s.k)], lambda x, y: -np.log(pick(find_softmax(x), y))
        ),
    ),
    (
        "cross_entropy",
        lambda s: Example(
            [s.draw_shares(s.n, s.k), s.draw_ids(s.k, s.n, 1)], lambda x, y: -np.log(pick(x, y))
        ),
    ),
    (
        "square_error",
        lambda s: Example(
            [s.draw(s.n, s.k), s.draw(s.n, s.k)], lambda x, y: ((x - y) ** 2).sum(axis=1, keepdims=True)
        ),
    ),
    (
        "log_loss",
        lambda s: Example(
            [s.draw_shares(s.n, 1), s.draw_ids(2, s.n, 1).astype(np.float32)],
            find_log_loss,
            {"epsilon": 1e-4},
        ),
    ),
    (
        "binary_cross_entropy",
        lambda s: Example(
            [0.1 + 0.8 * s.draw_shares(s.n, 2), s.draw_ids(2, s.n, 2).astype(np.float32)], find_entropy
        ),
    ),
    (
        "sigmoid_cross_entropy",
        lambda s: Example(
            [8 * s.draw(s.n, s.k, s.d), s.draw_shares(s.n, s.k, s.d)], lambda x, y: np.logaddexp(0, x) - x * y
        ),
    ),
    ("batch_norm", lambda s: normalize_batch(s, trains=True)),
    ("batch_norm", lambda s: normalize_batch(s, trains=False)),
    (
        "layer_norm",
        lambda s: Example(
            [s.draw(s.n, s.k, s.d)],
            normalize_layer,
            {"epsilon": 0.1, "keeps": 1},
            [s.draw(1, s.k * s.d), s.draw(1, s.k * s.d)],
        ),
    ),
    ("where", choose),
    ("gather", lambda s: gather(s, 0)),
    ("gather", lambda s: gather(s, 1)),
    ("take_along_axis", take_along),
    ("order", lambda s: order(s, largest=True)),
    ("order", lambda s: order(s, largest=False)),
    ("cumsum", lambda s: Example([s.draw(s.n, s.k, s.d)], lambda x: np.cumsum(x, 1), {"axis": 1})),
    (
        "tile",
        lambda s: Example([s.draw(s.n, s.k)], lambda x: np.tile(x, (1, 3)), {"repeats": (1, 3)}),
    ),
    (
        "tile",
        lambda s: Example(
            [s.draw(s.k, s.d)], lambda x: np.tile(x, (2, 3, 1)), {"repeats": (2, 3, 1)}, fixed=[0]
        ),
    ),
    (
        "one_hot",
        lambda s: Example([s.draw_ids(4, s.n, s.k)], lambda x: np.eye(4)[x], {"num_classes": 4}),
    ),
    ("erf", lambda s: Example([s.draw(s.n, s.k)], np.vectorize(math.erf, otypes=[float]))),
    ("floor", lambda s: Example([s.draw(s.n, s.k)], np.floor)),
    ("sign", lambda s: Example([s.draw(s.n, s.k)], np.sign)),
    ("conv", convolve),
    ("lstm", lambda s: recur(s, "lstm", has_lengths=False, order="ifgo", peeps=False)),
    ("lstm", lambda s: recur(s, "lstm", has_lengths=True, reverse=True, order="gifo", peeps=True)),
    ("gru", lambda s: recur(s, "gru", has_lengths=True)),
    ("gru", lambda s: recur(s, "gru", has_lengths=False, reverse=True)),
    ("v2_gru", lambda s: recur(s, "v2_gru", has_lengths=True)),
    ("hsigmoid", walk_complete_tree),
    ("hsigmoid", walk_given_paths),
    ("nce", lambda s: tell_from_noise(s, "uniform", np.full(5, 0.2), has_weight=False)),
    ("nce", lambda s: tell_from_noise(s, "log_uniform", LOG_UNIFORM, has_weight=True)),
    ("nce", lambda s: tell_from_noise(s, tuple(GIVEN), GIVEN, has_weight=True)),
    ("pool", lambda s: pool(s, "sum", lambda x: x.sum(axis=0))),
    ("pool", lambda s: pool(s, "average", lambda x: x.mean(axis=0))),
    ("pool", lambda s: pool(s, "sqrt", lambda x: x.sum(axis=0) / np.sqrt(len(x)))),
    ("pool", lambda s: pool(s, "max", lambda x: x.max(axis=0))),
    ("pool", lambda s: pool(s, "first", lambda x: x[0])),
    ("pool", lambda s: pool(s, "last", lambda x: x[-1])),
    ("context", lambda s: look_around(s, 3, -1)),
    ("context", lambda s: look_around(s, 2, 1)),
    (
        "auc_counts",
        lambda s: Example(
            [s.draw_shares(s.n, 2), s.draw_ids(2, s.n, 1)], count_buckets, {"of_last": 1, "thresholds": 100}
        ),
    ),
    ("auc", lambda s: Example([s.draw_ids(4, 2, s.k)], find_auc, fixed=[0])),
    ("click_sums", lambda s: Example([s.draw_shares(s.n, 1), s.draw_ids(2, s.n, 1)], sum_clicks)),
    (
        "user_samples",
        lambda s: Example(
            [s.draw_shares(s.n, 2), s.draw_ids(2, s.n, 1), s.draw_ids(9, s.n, 1)],
            lambda *of: np.array(len(of[0])),
            {"most": 3},
        ),
    ),
    ("user_auc", lambda s: Example([np.array(s.n)], lambda n: np.zeros(()))),  # its state: test_measures.py
    ("accuracy", lambda s: find_right(s, 1)),
    ("accuracy", lambda s: find_right(s, 3)),
]


def compile_op(name: str, example: Example) -> tuple[Value, Any]:
    """Return an operation's value and its object, with a value for each input."""
    inputs = []
    for i, array in enumerate(example.inputs):
        shape = array.shape if i in example.fixed else (BATCH, *array.shape[1:])
        is_sequence = example.offsets is not None and i == 0
        kind: Any = "id" if array.dtype == np.int64 else "float"
        attrs = {"below": None}
        inputs.append(
            Value(name=f"x{i}", op="data", shape=shape, kind=kind, attrs=attrs, is_sequence=is_sequence)
        )
    shapes = enumerate(w.shape for w in example.params)
    params = [ParamConfig(name=f"w{i}", rows=rows, cols=cols) for i, (rows, cols) in shapes]
    if example.shape:
        value = Value(name="it", op=name, shape=example.shape, params=tuple(params))
    else:
        value = make_value(name, inputs, name="it", attrs=example.attrs, params=params)
    op = OPS[name](value, [one.kind == "float" for one in inputs])
    op.sequence = "x0" if example.offsets is not None else ""
    return value, op


def make_step(example: Example | None = None, threads: int = 1) -> Step:
    params = {} if example is None else {f"w{i}": w for i, w in enumerate(example.params)}
    offsets = {} if example is None or example.offsets is None else {"x0": example.offsets}
    return Step(params=params, offsets=offsets, counts={}, draw=DRAW, threads=threads)


def differentiate(find: Callable[..., Array], arrays: Sequence[Array], weights: Array) -> list[Array]:
    """Return the gradient of sum(weights * find(*arrays)) for each array of floats."""
    found = []
    exact = [array.astype(np.float64) if array.dtype == np.float32 else array for array in arrays]
    for array in exact:
        grad = np.zeros(array.shape)
        for place in np.ndindex(*array.shape if array.dtype == np.float64 else (0,)):
            kept = array[place]
            array[place] = kept + 1e-7
            high = np.sum(weights * find(*exact))
            array[place] = kept - 1e-7
            grad[place] = (high - np.sum(weights * find(*exact))) / 2e-7
            array[place] = kept
        found.append(grad)
    return found


def compute(
    name: str, example: Example, threads: int, *, in_place: bool = False
) -> tuple[Value, Array, list[Array | None]]:
    """Return an operation's value, its result, and the gradients of all inputs and parameters, if it has any.

    The gradient of the result has random numbers.
    """
    value, op = compile_op(name, example)
    op.in_place = in_place
    step = make_step(example, threads)
    inputs = [array.copy() for array in example.inputs]
    if isinstance(op, Lookup):
        op.get_rows(inputs[0].size)[:] = example.params[0][inputs[0].reshape(-1)]
    result = op.forward(step, *inputs)
    if value.kind == "id" or name in ("accuracy", "auc", "click_sums", "full", "one_hot", "user_auc"):
        return value, result, []
    grad = draw_grad(result.shape)
    found = op.backward(step, grad, result, *inputs)
    assert grad.tobytes() == draw_grad(result.shape).tobytes()
    if not in_place:
        assert [x.tobytes() for x in inputs] == [x.tobytes() for x in example.inputs]
    if isinstance(op, Lookup):
        rows = step.row_grads["it"]
        assert isinstance(rows, np.ndarray)
        step.param_grads["w0"] = np.zeros(example.params[0].shape, np.float32)
        np.add.at(step.param_grads["w0"], inputs[0].reshape(-1), rows)
    return value, result, [*found, *(step.param_grads[f"w{i}"] for i in range(len(example.params)))]


def draw_grad(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


CASES: Final = pytest.mark.parametrize(
    ("name", "make"), MAKERS, ids=[f"{name}{i}" for i, (name, _) in enumerate(MAKERS)]
)


@CASES
@given(n=st.integers(1, 4), k=st.integers(1, 4), d=st.integers(1, 20), seed=st.integers(0, 99))
def test_results_and_gradients_are_those_of_the_oracle(
    name: str, make: Callable[[Sizes], Example], n: int, k: int, d: int, seed: int
) -> None:
    example = make(Sizes(n=n, k=k, d=d, rng=np.random.default_rng(seed)))
    arrays = [*example.inputs, *example.params]
    expected = example.oracle(*(a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays))
    slopes: list[Array] = []
    for in_place in {False, OPS[name].overwrites}:
        value, result, grads = compute(name, example, 1, in_place=in_place)
        assert [b for a, b in zip(value.shape, expected.shape, strict=True) if a not in (b, BATCH)] == []
        assert (value.kind, result.shape) == ("id" if result.dtype == np.int64 else "float", expected.shape)
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-6)
        slopes = slopes or differentiate(example.oracle, arrays, draw_grad(expected.shape))
        for i, (grad, slope) in enumerate(zip(grads, slopes, strict=False)):
            is_constant = (name, i) in CONSTANTS
            if arrays[i].dtype == np.float32 and not is_constant:
                assert grad is not None
                np.testing.assert_allclose(grad, slope, rtol=1e-4, atol=1e-4)


@CASES
def test_results_have_the_same_bits_with_any_build_and_threads(
    name: str, make: Callable[[Sizes], Example], builds: range
) -> None:
    found = set()
    for build, threads in itertools.product(builds, (1, 3)):
        _core.choose_build(build)
        _, result, grads = compute(name, make(Sizes(n=600, k=7, d=37, rng=np.random.default_rng(1))), threads)
        found.add((result.tobytes(), *(None if grad is None else grad.tobytes() for grad in grads)))
    assert len(found) == 1


def test_every_operation_has_an_oracle() -> None:
    assert set(OPS) == {name for name, _ in MAKERS} | {"data"}
