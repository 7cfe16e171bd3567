"""`infer()`: outputs of a trained network for samples, by the v2 name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..engine.columns import Feeder, Feeding, Feeds
from ..engine.learner import Learner
from ..engine.parameters import Parameters
from .building import Layer, check_layers, list_data, make_program


def infer(
    output_layer: Layer | Sequence[Layer],
    parameters: Parameters,
    input: Iterable[Any] | Feeds,
    feeding: Feeding = None,
    field: str | Sequence[str] = "value",
) -> Any:
    """Return the values of `output_layer`, [n, size], for n samples with one item per data layer below it.

    `input` may also be arrays by the names of data layers. For several layers, returns a list in their
    order, and for several fields, all layers of each. `field`: "value" or "prob", which is the same, or "id",
    the place of the highest value of each sample, [n]. `feeding` as in train(). Nothing is dropped or
    learned. Raises ValueError if a sample does not fit its data layer, or the parameters the network.
    """
    layers = check_layers(output_layer, "infer: output_layer")
    for layer in layers:
        if layer.type is not None:
            raise ValueError(f"infer: output_layer {layer.name} is an input of the network")
    if not isinstance(parameters, Parameters):
        raise TypeError(
            f"infer: parameters={parameters!r} does not come from parameters.create() or from_tar()"
        )
    fields = [field] if isinstance(field, str) else list(field)
    if not fields or not {"value", "prob", "id"} >= set(fields):
        raise ValueError(f"infer: {field=}, expected value, prob or id, or a list of these")
    batch = input if isinstance(input, Mapping) else list(input)
    if not batch:
        raise ValueError("infer: input has no samples")
    program = make_program(layers)
    parameters.check("infer", program.params)
    learner = Learner(program, parameters)
    feeds = Feeder(list_data(program), feeding)(batch)
    found = learner.compute(learner.prepare(feeds, [layer.value for layer in layers])).values
    wanted = [np.argmax(rows, axis=-1) if one == "id" else rows for one in fields for rows in found]
    return wanted if len(wanted) > 1 else wanted[0]
