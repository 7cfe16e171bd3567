"""A network compiled from its layers: its inputs, its parameters, and one step over a batch.

It holds no parameter values: the caller gives the dense ones, and a function that fetches table rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from . import _core
from .arrays import F32, U64, Ids, Rows, find_rows, sum_rows
from .layer import Layer
from .ops import (
    ConcatNode,
    CrossEntropyNode,
    DataNode,
    Draw,
    EmbeddingNode,
    FcNode,
    LayerNode,
    SquareErrorNode,
    Tape,
)
from .param_config import ParamConfig

COSTS = ("cross_entropy", "square_error")
FetchRows = Callable[[Mapping[str, U64]], Mapping[str, F32]]
Inputs = Mapping[str, F32 | Ids]


def do_nothing() -> None:
    """Do nothing between two layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchInput:
    """Inputs of a batch by data layer, the number of its samples, and the table rows that it needs."""

    inputs: Inputs
    samples: int
    rows: Mapping[str, Rows]

    @property
    def keys(self) -> dict[str, U64]:
        """The keys of these rows."""
        return {name: found.keys for name, found in self.rows.items()}


@dataclass(kw_only=True, slots=True)
class StepResult:
    """Sums over the samples of one batch; gradients are sums too, and empty without training.

    sparse: unique keys of each embedding table, and their gradients [k, dim].
    """

    samples: int
    cost: float
    errors: int
    dense: dict[str, F32] = field(default_factory=dict)
    sparse: dict[str, tuple[U64, F32]] = field(default_factory=dict)


def sort_layers(outputs: Iterable[Layer]) -> list[Layer]:
    """Return all layers below `outputs`, each once, inputs first, in the order of their definition."""
    found: dict[int, Layer] = {}

    def visit(layer: Layer) -> None:
        if id(layer) in found:
            return
        for one in layer.inputs:
            visit(one)
        found[id(layer)] = layer

    for layer in outputs:
        visit(layer)
    return list(found.values())


def collect_params(layers: Iterable[Layer]) -> dict[str, ParamConfig]:
    """Return the parameters of layers by name; raises ValueError if two of one name differ."""
    params: dict[str, ParamConfig] = {}
    for layer in layers:
        for config in layer.params:
            known = params.setdefault(config.name, config)
            if known.shape != config.shape:
                raise ValueError(
                    f"parameter {config.name}: layer {layer.name} needs {config.shape}, "
                    f"another layer made it {known.shape}"
                )
            if known != config:
                raise ValueError(
                    f"parameter {config.name}: layer {layer.name} gives it other attributes than an "
                    "earlier layer; layers that share a parameter must give it equal attributes"
                )
    return params


def _check_names(layers: Sequence[Layer]) -> None:
    seen: dict[str, Layer] = {}
    for layer in layers:
        if seen.setdefault(layer.name, layer) is not layer:
            raise ValueError(f"two layers have the name {layer.name}")


class Network:
    """Compiled layers below one output, a cost for steps, or below several outputs.

    `threads`: most that compute one operation; the results do not depend on their number.
    """

    def __init__(self, output: Layer, *others: Layer, threads: int = 1) -> None:
        self._outputs = (output, *others)
        self.layers = sort_layers(self._outputs)
        _check_names(self.layers)
        self.params = collect_params(self.layers)
        # v2's order of the items of a sample without `feeding`.
        self.data_layers = sorted(
            (one for one in self.layers if one.op == "data"), key=lambda one: one.number
        )
        self.output = output
        self._nodes = _compile(self.layers, self._outputs)
        # Lookup layers of each table, in the order of layers: their gradients are summed in it.
        self._lookups: dict[str, list[LayerNode]] = {}
        for node in self._nodes:
            if node.layer.op == "embedding":
                self._lookups.setdefault(node.layer.weights[0].name, []).append(node)
        for config in self.params.values():
            users = [layer for layer in self.layers if config in layer.params]
            if config.name in self._lookups and any(user.op != "embedding" for user in users):
                raise ValueError(
                    f"parameter {config.name}: an embedding's table can't be the weight of another layer"
                )
        self._threads = threads
        self._buffers: dict[tuple[str, int], F32] = {}

    @property
    def tables(self) -> frozenset[str]:
        """Names of the embedding tables."""
        return frozenset(self._lookups)

    def prepare(self, inputs: Inputs, samples: int) -> BatchInput:
        """Return the input of a batch."""
        ids = {
            name: (self.params[name].rows, _join_ids(nodes, inputs)) for name, nodes in self._lookups.items()
        }
        return BatchInput(inputs=inputs, samples=samples, rows=find_rows(ids, self._threads))

    def step(
        self,
        batch: BatchInput,
        params: Mapping[str, F32],
        fetch: FetchRows,
        draw: Draw | None,
        between: Callable[[], None] = do_nothing,
    ) -> StepResult:
        """Compute forward, and with `draw` backward, over a batch.

        Calls `between` between two layers.
        params: the dense values by name. fetch(keys by table) returns their rows, [k, dim] each.
        """
        tables = fetch(batch.keys)
        row_grads = {
            name: np.empty((found.index.size, tables[name].shape[1]), dtype=np.float32)
            for name, found in batch.rows.items()
            if draw is not None
        }
        tape = self._make_tape(batch, params, tables, row_grads, draw)
        self._run(tape, between)
        # In the order of the samples: other sums of numpy depend on the processor.
        cost = np.cumsum(tape.outs[-1], dtype=np.float64)
        result = StepResult(samples=batch.samples, cost=float(cost[-1]), errors=tape.errors)
        if draw is not None:
            result.dense = tape.param_grads
            result.sparse = {
                name: (found.keys, sum_rows(found, [row_grads[name]], self._threads))
                for name, found in batch.rows.items()
            }
        return result

    def infer(self, batch: BatchInput, params: Mapping[str, F32], fetch: FetchRows) -> list[F32]:
        """Return each output's values, [samples, size], in a new array."""
        tape = self._make_tape(batch, params, fetch(batch.keys), {}, None)
        self._run(tape)
        places = [self.layers.index(one) for one in self._outputs]
        return [
            tape.outs[place].reshape(batch.samples, one.size).copy()
            for one, place in zip(self._outputs, places, strict=True)
        ]

    def _make_tape(
        self,
        batch: BatchInput,
        params: Mapping[str, F32],
        tables: Mapping[str, F32],
        row_grads: Mapping[str, F32],
        draw: Draw | None,
    ) -> Tape:
        parts = {
            node.index: (name, slice(i * batch.samples, (i + 1) * batch.samples))
            for name, nodes in self._lookups.items()
            for i, node in enumerate(nodes)
        }
        return Tape(
            inputs=batch.inputs,
            params=params,
            tables=tables,
            places={node: batch.rows[name].index[part] for node, (name, part) in parts.items()},
            row_grads={node: row_grads[name][part] for node, (name, part) in parts.items() if row_grads},
            outs=[_NOTHING] * len(self._nodes),
            grads=[None] * len(self._nodes),
            draw=draw,
            threads=self._threads,
            buffers=self._buffers,
        )

    def _run(self, tape: Tape, between: Callable[[], None] = do_nothing) -> None:
        before = _core.set_floats()  # a library may have set this thread's floats for its own speed
        try:
            self._compute(tape, between)
        finally:
            _core.set_floats(before)

    def _compute(self, tape: Tape, between: Callable[[], None]) -> None:
        for node in self._nodes:
            node.forward(tape)
            between()
        if tape.draw is None:
            return
        tape.grads[-1] = _NOTHING  # the cost's own gradient is 1; cost nodes ignore it
        for node in reversed(self._nodes):
            grad = tape.grads[node.index]
            if grad is not None:
                node.backward(tape, grad)
                between()


def _join_ids(nodes: Sequence[LayerNode], inputs: Inputs) -> Ids:
    ids = [inputs[node.layer.inputs[0].name] for node in nodes]
    return np.concatenate(ids).astype(np.int64, copy=False)


_NOTHING: F32 = np.empty((0, 0), dtype=np.float32)


def _compile(layers: Sequence[Layer], outputs: Sequence[Layer]) -> list[LayerNode]:
    place = {id(layer): i for i, layer in enumerate(layers)}
    users = [id(one) for layer in layers for one in layer.inputs] + [id(one) for one in outputs]
    # A softmax read only by the cost is computed with it: one pass less, and exact near 0 and 1.
    fused = {
        id(layer.inputs[0])
        for layer in layers
        if layer.op == "cross_entropy"
        and layer.inputs[0].op == "fc"
        and users.count(id(layer.inputs[0])) == 1
    }
    return [_make_node(i, layer, place, fused) for i, layer in enumerate(layers)]


def _make_node(index: int, layer: Layer, place: Mapping[int, int], fused: set[int]) -> LayerNode:
    inputs = tuple(place[id(one)] for one in layer.inputs)
    match layer.op:
        case "data":
            return DataNode(index, layer)
        case "embedding":
            return EmbeddingNode(index, layer)
        case "concat":
            return ConcatNode(index, layer, inputs)
        case "fc":
            needs = tuple(one.op != "data" for one in layer.inputs)
            return FcNode(index, layer, inputs, needs, id(layer) in fused)
        case "cross_entropy":
            return CrossEntropyNode(index, layer, inputs[0], id(layer.inputs[0]) in fused)
        case "square_error":
            return SquareErrorNode(index, layer, inputs[0])
