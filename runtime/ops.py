"""Operations of the layers: forward and backward over one batch.

Products, sums over many values and functions are kernels of the core, with the same bits on every processor
and for any number of threads. Of numpy's operations only those are used that IEEE defines exactly.
Gradients are sums over the samples, not means, as in v2: published programs choose learning rates for sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from . import _core
from .arrays import F32, Ids, Index
from .layer import Layer
from .param_config import ParamConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """Inputs of a training step's random numbers, besides the layer; nothing else affects them."""

    seed: int
    trainer: int
    step: int


@dataclass(kw_only=True, slots=True)
class Tape:
    """State of one batch on its way through the network.

    outs, grads: one per node. params: dense values. tables: the requested rows of each embedding
    table. places: for each embedding node its [b] positions in them. row_grads: for each embedding node
    its [b, dim], written by backward. param_grads: written by backward. buffers: kept between steps.
    threads: most of a kernel.
    """

    inputs: Mapping[str, F32 | Ids]
    params: Mapping[str, F32]
    tables: Mapping[str, F32]
    places: Mapping[int, Index]
    row_grads: Mapping[int, F32]
    outs: list[F32]
    grads: list[F32 | None]
    draw: Draw | None  # None: no training step, no dropout
    threads: int
    buffers: dict[tuple[str, int], F32]
    param_grads: dict[str, F32] = field(default_factory=dict)
    errors: int = 0  # samples classified wrongly

    def get_buffer(self, use: str, node: int, shape: tuple[int, int]) -> F32:
        """Return an array of `shape` with any content; steps of equal size get the same one again."""
        found = self.buffers.get((use, node))
        if found is None or found.shape != shape:
            found = self.buffers[use, node] = np.empty(shape, dtype=np.float32)
        return found

    def add_grad(self, node: int, grad: F32) -> None:
        """Add to the gradient of a node's output; keeps `grad`, which may be a view."""
        known = self.grads[node]
        self.grads[node] = grad if known is None else known + grad


class LayerNode(Protocol):
    """One compiled layer. `forward` fills outs[index]; `backward` passes its gradient to the inputs."""

    index: int
    layer: Layer

    def forward(self, tape: Tape) -> None: ...
    def backward(self, tape: Tape, grad: F32) -> None: ...


@dataclass(slots=True)
class DataNode:
    """An input of the network."""

    index: int
    layer: Layer

    def forward(self, tape: Tape) -> None:
        value = tape.inputs[self.layer.name]
        if value.dtype == np.float32:  # nodes that need ids read them from `inputs`
            tape.outs[self.index] = value.view(np.float32)

    def backward(self, tape: Tape, grad: F32) -> None:
        pass


@dataclass(slots=True)
class EmbeddingNode:
    """Table rows, one per id."""

    index: int
    layer: Layer

    def forward(self, tape: Tape) -> None:
        out = np.take(tape.tables[self.layer.weights[0].name], tape.places[self.index], axis=0)
        tape.outs[self.index] = _finish(tape, self, out)

    def backward(self, tape: Tape, grad: F32) -> None:
        np.copyto(tape.row_grads[self.index], _undo_finish(tape, self, grad))


@dataclass(slots=True)
class ConcatNode:
    """Vectors one after the other."""

    index: int
    layer: Layer
    inputs: tuple[int, ...]

    def forward(self, tape: Tape) -> None:
        parts = [tape.outs[i] for i in self.inputs]
        out = tape.get_buffer("out", self.index, (len(parts[0]), self.layer.size))
        np.concatenate(parts, axis=1, out=out)
        tape.outs[self.index] = _finish(tape, self, out)

    def backward(self, tape: Tape, grad: F32) -> None:
        grad = _undo_finish(tape, self, grad)
        at = 0
        for node in self.inputs:
            width = tape.outs[node].shape[1]
            tape.add_grad(node, grad[:, at : at + width])
            at += width


@dataclass(slots=True)
class FcNode:
    """act(sum of x W + b). `fused`: the cost that follows computes the softmax."""

    index: int
    layer: Layer
    inputs: tuple[int, ...]
    needs: tuple[bool, ...]  # inputs that need a gradient
    fused: bool

    def forward(self, tape: Tape) -> None:
        layer = self.layer
        out = tape.get_buffer("out", self.index, (len(tape.outs[self.inputs[0]]), layer.size))
        start = None if layer.bias is None else tape.params[layer.bias.name]
        for node, weight in zip(self.inputs, layer.weights, strict=True):
            _core.matmul(tape.outs[node], tape.params[weight.name], out, start, tape.threads)
            start = out
        tape.outs[self.index] = out if self.fused else _finish(tape, self, out)

    def backward(self, tape: Tape, grad: F32) -> None:
        if not self.fused:
            grad = _undo_finish(tape, self, grad)
        for node, weight, needs in zip(self.inputs, self.layer.weights, self.needs, strict=True):
            _add_param_grad(tape, self.index, weight, tape.outs[node], grad)
            if needs:
                back = np.empty((len(grad), weight.shape[0]), dtype=np.float32)
                _core.matmul(grad, tape.params[weight.name].T, back, None, tape.threads)
                tape.add_grad(node, back)
        if self.layer.bias is not None:
            _add_param_grad(tape, self.index, self.layer.bias, None, grad)


@dataclass(slots=True)
class CrossEntropyNode:
    """-log(probability of the label). `fused`: the input is scores; their softmax is computed here."""

    index: int
    layer: Layer
    input: int
    fused: bool

    def forward(self, tape: Tape) -> None:
        scores, label = tape.outs[self.input], tape.inputs[self.layer.inputs[1].name]
        if self.fused:
            cost = np.empty(len(scores), dtype=np.float32)
            labels = np.ascontiguousarray(label, dtype=np.int64)
            tape.errors += _core.cross_entropy(scores, labels, cost, tape.threads)
            tape.outs[self.index] = cost
            return
        picked = scores[np.arange(len(scores)), label]
        # NaN never counts as the right answer.
        tape.errors += int(np.count_nonzero(~(picked >= scores.max(axis=1))))
        logs = np.maximum(picked, np.float32(1e-30))
        _core.take_logs(logs, tape.threads)
        tape.outs[self.index] = -logs

    def backward(self, tape: Tape, grad: F32) -> None:
        probability, label = tape.outs[self.input], tape.inputs[self.layer.inputs[1].name]
        places = np.arange(len(probability))
        if self.fused:
            probability[places, label] -= np.float32(1.0)
            tape.add_grad(self.input, probability)
            return
        back = np.zeros_like(probability)
        back[places, label] = -np.float32(1.0) / np.maximum(probability[places, label], np.float32(1e-30))
        tape.add_grad(self.input, back)


@dataclass(slots=True)
class SquareErrorNode:
    """Sum of squared differences to the label."""

    index: int
    layer: Layer
    input: int

    def forward(self, tape: Tape) -> None:
        difference = tape.outs[self.input] - tape.inputs[self.layer.inputs[1].name]
        tape.outs[self.index] = np.empty(len(difference), dtype=np.float32)
        _core.dot_rows(difference, difference, tape.outs[self.index], tape.threads)

    def backward(self, tape: Tape, grad: F32) -> None:
        difference = tape.outs[self.input] - tape.inputs[self.layer.inputs[1].name]
        tape.add_grad(self.input, np.float32(2.0) * difference)


def _add_param_grad(tape: Tape, node: int, param: ParamConfig, x: F32 | None, grad: F32) -> None:
    """Add the gradient of a weight, x^T grad; for a bias x is None: the sum over the samples."""
    known = tape.param_grads.get(param.name)
    if x is not None:
        out = tape.get_buffer(f"grad {param.name}", node, param.shape) if known is None else known
        _core.matmul(x.T, grad, out, known, tape.threads)
    else:
        use = "grad" if known is None else "more"
        out = tape.get_buffer(f"{use} {param.name}", node, param.shape)
        _core.sum_columns(np.ascontiguousarray(grad), out, tape.threads)
        if known is not None:
            out += known
    tape.param_grads[param.name] = out


def _finish(tape: Tape, node: LayerNode, out: F32) -> F32:
    """Apply activation and dropout in place."""
    if node.layer.act != "linear":
        _core.activate(node.layer.act, out, tape.threads)
    if node.layer.drop_rate > 0.0:
        _drop(tape, node, out)
    return out


def _undo_finish(tape: Tape, node: LayerNode, grad: F32) -> F32:
    """Return the gradient before activation and dropout; a new array if they changed it.

    The derivatives are in terms of the output. A dropped output is 0, and so is its gradient; each depends
    on its own input alone, except for Softmax, which is never dropped.
    """
    out, act = tape.outs[node.index], node.layer.act
    if node.layer.drop_rate > 0.0 and tape.draw is not None:
        grad = grad * _draw_kept(node.layer, tape.draw, grad.shape)
    if act == "linear":
        return grad
    back = np.empty_like(out)
    _core.undo_activation(act, out, np.ascontiguousarray(grad), back, tape.threads)
    return back


def _drop(tape: Tape, node: LayerNode, out: F32) -> None:
    """Apply v2's dropout in place: zeros while training, otherwise outputs times the kept share."""
    if tape.draw is None:
        out *= np.float32(1.0 - node.layer.drop_rate)
    else:
        out *= _draw_kept(node.layer, tape.draw, out.shape)


def _draw_kept(layer: Layer, draw: Draw, shape: tuple[int, ...]) -> F32:
    """Return 1 for kept outputs and 0 for dropped ones, from (seed, trainer, step, layer, sample) alone."""
    label = f"{draw.seed}/{draw.trainer}/{draw.step}/{layer.name}"
    key = int.from_bytes(hashlib.blake2b(label.encode(), digest_size=16).digest(), "little")
    count = shape[0] * shape[1]
    raw = np.random.Philox(key=key).random_raw((count + 3) // 4)
    pieces = np.asarray(raw, dtype="<u8").view(np.uint16)[:count].reshape(shape)
    return np.asarray(pieces >= round(layer.drop_rate * 65536), dtype=np.float32)
