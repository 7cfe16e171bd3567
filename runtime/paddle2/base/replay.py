"""Runs of a program's own loop that a snapshot holds: they are made again without computing anything."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...engine.learner import Learner

Array = npt.NDArray[Any]
State = dict[str, Any]  # what JSON can hold
Key = tuple[object, ...]  # names of fetches
MOST_BYTES = 1 << 20  # of fetched values in a snapshot, and of counts; of larger ones it has zeros


class Replay:
    """The runs of a training so far. A loop begins again at its start, and so do its data and its draws."""

    def __init__(self) -> None:
        self._done = self._runs = 0
        self._state: State = {}

    def begin(self, state: State | None, log: Callable[[str], None]) -> None:
        """Begin with what a snapshot has of this worker, if there is one."""
        if state is not None:
            self._state, self._runs = state, state["runs"]
            log(f"the first {state['runs']} training runs are in the snapshot: they compute nothing")

    @property
    def is_on(self) -> bool:
        """True until the last run that the snapshot holds."""
        return self._done < self._runs

    def repeat(self, learner: Learner, key: Key) -> list[Array] | None:
        """Return the last fetched values in place of a run that the snapshot holds; None for another run.

        A run with other fetches gets zeros.
        """
        if not self.is_on:
            return None
        self._done += 1
        if self._done == self._runs:
            learner.steps = self._state["steps"]
            learner.counts = {name: np.array(n) for name, n in self._state["counts"].items()}
        fetched = self._state["fetched"] if self._state["key"] == [str(one) for one in key] else []
        return [_decode(one) for one in fetched] or [np.zeros(1, np.float32) for _ in key]

    def note(self) -> None:
        self._done += 1

    def describe(self, learner: Learner, key: Key, values: Sequence[Array]) -> State:
        """Return what a snapshot has of this worker after a run."""
        return {
            "runs": self._done,
            "steps": learner.steps,
            "counts": {name: n.tolist() for name, n in learner.counts.items() if n.nbytes <= MOST_BYTES},
            "key": [str(one) for one in key],
            "fetched": [_encode(value) for value in values],
        }


def _encode(array: Array) -> State:
    data = array.tobytes() if array.nbytes <= MOST_BYTES else b""
    return {"kind": array.dtype.str, "shape": array.shape, "data": base64.b64encode(data).decode()}


def _decode(found: State) -> Array:
    data = base64.b64decode(found["data"])
    if not data:
        return np.zeros(found["shape"], found["kind"])
    return np.frombuffer(data, found["kind"]).reshape(found["shape"]).copy()
