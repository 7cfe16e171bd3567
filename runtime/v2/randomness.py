"""The state of all that a program draws at random from `random` and numpy.random, and of shuffled readers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from .reader.decorator import count_shuffles, set_shuffles

State = dict[str, Any]  # what JSON can hold


def get_state() -> State:
    version, numbers, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state()
    return {
        "random": [version, list(numbers), gauss],
        "numpy": [kind, np.asarray(keys).tolist(), *rest],
        "shuffles": count_shuffles(),
    }


def set_state(state: State) -> None:
    version, numbers, gauss = state["random"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(tuple(state["numpy"]))
    set_shuffles(state["shuffles"])
