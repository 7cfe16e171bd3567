"""`infer()`: outputs of a trained network for samples, by the v2 name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..engine.arrays import F32
from ..engine.columns import Feeder, Feeding, Feeds
from ..engine.learner import make_learner
from ..engine.parameters import Parameters
from .layer import Layer, list_data, make_program


def infer(
    output_layer: Layer | Sequence[Layer],
    parameters: Parameters,
    input: Iterable[Any] | Feeds,
    feeding: Feeding = None,
    field: str = "value",
) -> F32 | list[F32]:
    """Return the values of `output_layer`, [n, size], for n samples with one item per data layer below it.

    `input` may also be arrays by the names of data layers. For several layers, returns a list in their
    order. `feeding` as in train(). Nothing is dropped or learned. Raises ValueError if a sample does not fit
    its data layer, or the parameters the network.
    """
    layers = output_layer if isinstance(output_layer, Sequence) else [output_layer]
    if not layers:
        raise ValueError("infer: output_layer has no layers")
    for layer in layers:
        if not isinstance(layer, Layer):
            raise TypeError(
                f"infer: output_layer is a {type(layer).__name__}, expected a layer or a list of layers"
            )
        if layer.type is not None:
            raise ValueError(f"infer: output_layer {layer.name} is an input of the network")
    if not isinstance(parameters, Parameters):
        raise TypeError(
            f"infer: parameters={parameters!r} does not come from parameters.create() or from_tar()"
        )
    if field != "value":
        raise ValueError(
            f"infer: field={field!r} is for layers that choose ids, which the bundled runtime lacks; "
            "numpy.argmax(values, axis=1) gives the most likely id of each sample"
        )
    batch = input if isinstance(input, Mapping) else list(input)
    if not batch:
        raise ValueError("infer: input has no samples")
    program = make_program(layers)
    parameters.check("infer", program.params)
    learner = make_learner(program, parameters)
    feeds = Feeder(list_data(program), feeding)(batch)
    found = learner.compute(learner.prepare(feeds, [layer.value for layer in layers])).values
    return found if len(found) > 1 else found[0]
