"""`infer()`: what a trained network says of samples, by the v2 name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pslaunch.runtime.arrays import F32, U64
from pslaunch.runtime.feeder import Feeder, Feeding
from pslaunch.runtime.layer import Layer
from pslaunch.runtime.network import Network
from pslaunch.runtime.parameters import Parameters
from pslaunch.runtime.settings import current


def infer(
    output_layer: Layer,
    parameters: Parameters,
    input: Iterable[Any],
    feeding: Feeding = None,
    field: str = "value",
) -> F32:
    """Values of `output_layer`, [n, size], for n samples, each with an item for each data layer below it.

    `feeding` as in train(). Nothing is dropped or learned. Raises ValueError where a sample does not fit
    its data layer, or the parameters the network.
    """
    if not isinstance(output_layer, Layer):
        raise TypeError(f"infer: output_layer={output_layer!r} is not a layer; give one at a time")
    if output_layer.op == "data":
        raise ValueError(f"infer: output_layer {output_layer.name} is an input of the network")
    if not isinstance(parameters, Parameters):
        raise TypeError(f"infer: parameters={parameters!r} is not of parameters.create() or from_tar()")
    if field != "value":
        raise ValueError(f"infer: field={field!r}: the bundled runtime has the values alone")
    samples = list(input)
    if not samples:
        raise ValueError("infer: input has no samples")
    network = Network(output_layer, threads=current().trainer_count)
    parameters.check("infer", network.params)

    def fetch(name: str, keys: U64) -> F32:
        return np.take(parameters.current(name), keys.astype(np.intp), axis=0)

    values = {name: parameters.current(name) for name in network.params if name not in network.tables}
    inputs = Feeder(network.data_layers, feeding)(samples)
    try:
        return network.infer(inputs, len(samples), values, fetch)
    finally:
        network.close()
