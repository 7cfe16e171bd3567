"""Operations of the layers: forward and backward over one slice of a batch.

Gradients are sums over the samples, not means, as in v2: published programs choose learning rates for sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

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
    """State of one slice of a batch on its way through the network; owned by one thread.

    outs, grads: one per node. params: dense values. tables: the requested rows of each embedding
    table. places: for each embedding node its [b] positions in them. row_grads: for each embedding node
    its [b, dim], written by backward. param_grads: written by backward. buffers: kept between steps.
    """

    inputs: Mapping[str, F32 | Ids]
    params: Mapping[str, F32]
    tables: Mapping[str, F32]
    places: Mapping[int, Index]
    row_grads: Mapping[int, F32]
    outs: list[F32]
    grads: list[F32 | None]
    draw: Draw | None  # None: no training step, no dropout
    thread: int
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
        for i, (node, weight) in enumerate(zip(self.inputs, layer.weights, strict=True)):
            if i == 0:
                np.matmul(tape.outs[node], tape.params[weight.name], out=out)
            else:
                out += tape.outs[node] @ tape.params[weight.name]
        if layer.bias is not None:
            out += tape.params[layer.bias.name]
        tape.outs[self.index] = out if self.fused else _finish(tape, self, out)

    def backward(self, tape: Tape, grad: F32) -> None:
        if not self.fused:
            grad = _undo_finish(tape, self, grad)
        for node, weight, needs in zip(self.inputs, self.layer.weights, self.needs, strict=True):
            _add_param_grad(tape, self.index, weight, tape.outs[node], grad)
            if needs:
                tape.add_grad(node, grad @ tape.params[weight.name].T)
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
        picked = scores[np.arange(len(scores)), label]
        highest = scores.max(axis=1)
        # NaN never counts as the right answer.
        tape.errors += int(np.count_nonzero(~(picked >= highest)))
        if not self.fused:
            tape.outs[self.index] = -np.log(np.maximum(picked, np.float32(1e-30)))
            return
        total = _exponentiate_rows(scores, highest)  # from here `scores` holds exponentials
        tape.outs[self.index] = np.log(total) - (picked - highest)
        if tape.draw is not None:
            scores *= (np.float32(1.0) / total)[:, None]

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
        tape.outs[self.index] = np.einsum("ij,ij->i", difference, difference)

    def backward(self, tape: Tape, grad: F32) -> None:
        difference = tape.outs[self.input] - tape.inputs[self.layer.inputs[1].name]
        tape.add_grad(self.input, np.float32(2.0) * difference)


def _add_param_grad(tape: Tape, node: int, param: ParamConfig, x: F32 | None, grad: F32) -> None:
    """Add the gradient of a weight, x^T grad; for a bias x is None: the sum over the samples."""
    known = tape.param_grads.get(param.name)
    use = "grad" if known is None else "more"
    out = tape.get_buffer(f"{use} {param.name}", node, param.shape)
    if x is None:
        np.add.reduce(grad, axis=0, out=out[0])
    else:
        np.matmul(x.T, grad, out=out)
    if known is None:
        tape.param_grads[param.name] = out
    else:
        known += out


def _exponentiate_rows(scores: F32, highest: F32) -> F32:
    """Compute exp(scores - highest of its row) in place; return the sum of each row."""
    scores -= highest[:, None]
    np.exp(scores, out=scores)
    return np.asarray(scores.sum(axis=1), dtype=np.float32)


def _finish(tape: Tape, node: LayerNode, out: F32) -> F32:
    """Apply activation and dropout in place."""
    act = node.layer.act
    if act == "sigmoid":  # by tanh, which can't overflow
        out *= np.float32(0.5)
        np.tanh(out, out=out)
        out *= np.float32(0.5)
        out += np.float32(0.5)
    elif act == "tanh":
        np.tanh(out, out=out)
    elif act == "relu":
        np.maximum(out, np.float32(0.0), out=out)
    elif act == "softmax":
        out /= _exponentiate_rows(out, out.max(axis=1))[:, None]
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
        grad = grad * _draw_kept(node.layer, tape.draw, tape.thread, grad.shape)
    if act == "sigmoid":
        return grad * (out - out * out)
    if act == "tanh":
        return grad * (np.float32(1.0) - out * out)
    if act == "relu":
        return grad * (out > 0)
    if act == "softmax":
        inner: F32 = np.einsum("ij,ij->i", grad, out)
        return out * (grad - inner[:, None])
    return grad


def _drop(tape: Tape, node: LayerNode, out: F32) -> None:
    """Apply v2's dropout in place: zeros while training, otherwise outputs times the kept share."""
    if tape.draw is None:
        out *= np.float32(1.0 - node.layer.drop_rate)
    else:
        out *= _draw_kept(node.layer, tape.draw, tape.thread, out.shape)


def _draw_kept(layer: Layer, draw: Draw, thread: int, shape: tuple[int, ...]) -> F32:
    """Return 1 for kept outputs and 0 for dropped ones, from (seed, layer, trainer, step, thread) alone."""
    label = f"{draw.seed}/{draw.trainer}/{draw.step}/{thread}/{layer.name}"
    key = int.from_bytes(hashlib.blake2b(label.encode(), digest_size=16).digest(), "little")
    count = shape[0] * shape[1]
    raw = np.random.Philox(key=key).random_raw((count + 3) // 4)
    pieces = np.asarray(raw, dtype="<u8").view(np.uint16)[:count].reshape(shape)
    return np.asarray(pieces >= round(layer.drop_rate * 65536), dtype=np.float32)
