"""LSTM and GRU over sequences, or over the second axis: a step is one of all samples that are long enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..arrays import F32, Ids
from ..graph import Value
from .base import FLOAT, Grads, Op, Shape, Step, describe
from .dense import multiply
from .elementwise import activate, sum_columns

_OPTIONS = "reverse size swaps"


class _Recurrent(Op):
    """States [.., size] from inputs [.., parts * size], which were multiplied by their weight.

    Parameters: a weight [size, parts * size] of the state before, with `swaps` the other way
    round, and a bias. `reverse`: from the last item to the first.
    """

    parts: ClassVar[int]

    def find_shape(self, x: Value) -> Shape:
        if x.shape[-1] != self.parts * self.attrs["size"] or len(x.shape) != 3 - x.is_sequence:
            raise ValueError(
                f"input {describe(x)}, expected {self.parts} * {self.attrs['size']} values of each item of "
                "sequences, or of [batch, time]"
            )
        return (*x.shape[:-1], self.attrs["size"])

    def find_params(self, x: Value) -> Sequence[Shape]:
        size, whole = self.attrs["size"], self.parts * self.attrs["size"]
        peeps = 3 * size if self.attrs.get("peeps") else 0  # of an LSTM
        return [(whole, size) if self.attrs["swaps"] else (size, whole), (whole + peeps,)]

    # _advance(step, x, h, c) returns state and cell after it, and what is saved. From that, with the
    # gradients of both, _retreat() returns those of x, of the state's products, and of state and cell before.
    _advance: Any
    _retreat: Any

    def _list_steps(self, step: Step, x: F32) -> list[Ids]:
        """Return the items of each step, those of longer sequences first."""
        offsets = step.offsets[self.sequence] if self.sequence else np.arange(len(x) + 1) * x.shape[1]
        lengths, way = np.diff(offsets), -1 if self.attrs["reverse"] else 1
        order = np.argsort(-lengths, kind="stable")
        begins = (offsets[:-1] if way == 1 else offsets[1:] - 1)[order]
        return [begins[lengths[order] > t] + way * t for t in range(lengths.max(initial=0))]

    def forward(self, step: Step, x: F32) -> F32:
        size, items = self.attrs["size"], x.reshape(-1, x.shape[-1])
        weight, bias = (step.params[config.name] for config in self.params)
        self._weight = np.asarray(weight.T if self.attrs["swaps"] else weight)
        self._bias = bias.reshape(1, -1)
        self._steps, self._saved = self._list_steps(step, x), {}
        out, self._before = np.zeros((2, len(items), size), FLOAT)
        h = c = np.zeros((len(self._steps[0]) if self._steps else 0, size), FLOAT)
        for t, rows in enumerate(self._steps):
            h, c = h[: len(rows)], c[: len(rows)]
            self._before[rows] = h
            h, c, self._saved[t] = self._advance(step, items[rows], h, c)
            out[rows] = h
        return np.asarray(out.reshape(*x.shape[:-1], size))

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        size, rows_of_grad = self.attrs["size"], grad.reshape(-1, grad.shape[-1])
        back, self._hidden = np.zeros((2, len(rows_of_grad), self.parts * size), FLOAT)
        dh = dc = np.zeros((0, size), FLOAT)
        for t in reversed(range(len(self._steps))):
            rows = self._steps[t]
            more = np.zeros((len(rows) - len(dh), size), FLOAT)
            dh, dc = np.vstack([dh, more]) + rows_of_grad[rows], np.vstack([dc, more])
            back[rows], self._hidden[rows], dh, dc = self._retreat(step, dh, dc, self._saved[t], rows)
        config, bias = self.params
        weight = self._find_weight_grad(step)
        step.add_param_grad(config, np.ascontiguousarray(weight.T) if self.attrs["swaps"] else weight)
        step.add_param_grad(bias, self._find_bias_grad(step))
        return (back.reshape(x.shape),)

    def _find_weight_grad(self, step: Step) -> F32:
        return multiply(self._before.T, self._hidden, step.threads)

    def _find_bias_grad(self, step: Step) -> F32:
        return sum_columns(self._hidden, step.threads)


def _bend(y: F32) -> F32:
    """Return the derivative of tanh in terms of its result."""
    return np.asarray(np.float32(1) - y * y)


class Lstm(_Recurrent, op="lstm", options=f"order peeps {_OPTIONS}"):
    """c = f * c + i * g; h = o * tanh(c). Gates i, f, o (sigmoid) and g (tanh) are in columns by `order`.

    `peeps`: the bias has three more parts, by which c before is added to i and f, and c after to o.
    """

    parts = 4

    def _read_peeps(self) -> Sequence[F32 | float]:
        if not self.attrs["peeps"]:
            return [0.0] * 3
        return np.split(self._bias[:, -3 * self.attrs["size"] :], 3, 1)

    def _advance(self, step: Step, x: F32, h: F32, c: F32) -> tuple[F32, F32, tuple[F32, ...]]:
        start = np.ascontiguousarray(self._bias[:, : x.shape[1]])
        gates = x + multiply(h, self._weight, step.threads, start)
        i, f, g, o = (np.split(gates, 4, 1)[self.attrs["order"].index(one)] for one in "ifgo")
        peeps = self._read_peeps()
        i = activate("sigmoid", i + c * peeps[0], step.threads)
        f = activate("sigmoid", f + c * peeps[1], step.threads)
        g = activate("tanh", g, step.threads)
        after = f * c + i * g
        o = activate("sigmoid", o + after * peeps[2], step.threads)
        bent = activate("tanh", after, step.threads)
        return o * bent, after, (i, f, g, o, c, after, bent)

    def _retreat(self, step: Step, dh: F32, dc: F32, saved: Sequence[F32], rows: Ids) -> Sequence[F32]:
        i, f, g, o, c, _, bent = saved
        peeps = self._read_peeps()
        do = dh * bent * o * (1 - o)
        dc = dc + dh * o * _bend(bent) + do * peeps[2]
        parts = {"i": dc * g * i * (1 - i), "f": dc * c * f * (1 - f), "g": dc * i * _bend(g), "o": do}
        both = np.hstack([parts[one] for one in self.attrs["order"]])
        before = dc * f + parts["i"] * peeps[0] + parts["f"] * peeps[1]
        return both, both, multiply(both, self._weight.T, step.threads), before

    def _find_bias_grad(self, step: Step) -> F32:
        total = super()._find_bias_grad(step)
        if not self.attrs["peeps"]:
            return total
        i, f, o = (np.split(self._hidden, 4, 1)[self.attrs["order"].index(one)] for one in "ifo")
        cells = np.zeros((2, len(self._hidden), total.shape[1] // 4), FLOAT)
        for t, rows in enumerate(self._steps):
            cells[0, rows], cells[1, rows] = self._saved[t][4:6]
        peeps = np.hstack([i * cells[0], f * cells[0], o * cells[1]])
        return np.hstack([total, sum_columns(peeps, step.threads)])


class Gru(_Recurrent, op="gru", options=_OPTIONS):
    """PaddlePaddle 2's: h = z * h + (1 - z) * c with gates r, z, and c = tanh(x_c + r * (h W_c + b_c))."""

    parts = 3

    def _advance(self, step: Step, x: F32, h: F32, c: F32) -> tuple[F32, F32, tuple[F32, ...]]:
        products = np.split(multiply(h, self._weight, step.threads, self._bias), 3, 1)
        inputs = np.split(x, 3, 1)
        r, z = (activate("sigmoid", inputs[k] + products[k], step.threads) for k in (0, 1))
        new = activate("tanh", inputs[2] + r * products[2], step.threads)
        return (h - new) * z + new, c, (r, z, new, products[2])

    def _retreat(self, step: Step, dh: F32, dc: F32, saved: Sequence[F32], rows: Ids) -> Sequence[F32]:
        r, z, new, product = saved
        dnew = dh * (1 - z) * _bend(new)
        gates = [dnew * product * r * (1 - r), dh * (self._before[rows] - new) * z * (1 - z)]
        hidden = np.hstack([*gates, dnew * r])
        before = dh * z + multiply(hidden, self._weight.T, step.threads)
        return np.hstack([*gates, dnew]), hidden, before, dc


class GruOfV2(_Recurrent, op="v2_gru", options=_OPTIONS):
    """v2's: h = (1 - z) * h + z * c, with gates z and r, and c = tanh(x_c + (r * h) W_c + b_c)."""

    parts = 3

    def _advance(self, step: Step, x: F32, h: F32, c: F32) -> tuple[F32, F32, tuple[F32, ...]]:
        size, weight, bias = h.shape[1], self._weight, self._bias
        gates = x[:, : 2 * size] + multiply(h, weight[:, : 2 * size], step.threads, bias[:, : 2 * size])
        z, r = np.split(activate("sigmoid", gates, step.threads), 2, 1)
        products = multiply(r * h, weight[:, 2 * size :], step.threads, bias[:, 2 * size :])
        new = activate("tanh", x[:, 2 * size :] + products, step.threads)
        return (new - h) * z + h, c, (z, r, new)

    def _retreat(self, step: Step, dh: F32, dc: F32, saved: Sequence[F32], rows: Ids) -> Sequence[F32]:
        (z, r, new), h, weight, size = saved, self._before[rows], self._weight, dh.shape[1]
        dnew = dh * z * _bend(new)
        dreset = multiply(dnew, weight[:, 2 * size :].T, step.threads)
        gates = np.hstack([dh * (new - h) * z * (1 - z), dreset * h * r * (1 - r)])
        before = dh * (1 - z) + dreset * r + multiply(gates, weight[:, : 2 * size].T, step.threads)
        both = np.hstack([gates, dnew])
        return both, both, before, dc

    def _find_weight_grad(self, step: Step) -> F32:
        size, reset = self._before.shape[1], np.zeros_like(self._before)
        for t, rows in enumerate(self._steps):
            reset[rows] = self._saved[t][1] * self._before[rows]
        gates = multiply(self._before.T, self._hidden[:, : 2 * size], step.threads)
        return np.hstack([gates, multiply(reset.T, self._hidden[:, 2 * size :], step.threads)])
