"""Model average: the mean of the values after the last updates, as v2's AverageOptimizer has it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from .arrays import F32
from .parameters import Parameters

LEAST_WINDOW = 10_000  # updates


class ModelAverage:
    """Lets tests and saved files have mean values of dense parameters; the training goes on with its own.

    The mean is that of the updates since a window began, and of the window before it. A window ends after
    `average_window` times all updates so far, at least 10,000, and at most `max_average_window`.
    `do_average_in_cpu` has no effect.
    """

    def __init__(
        self, average_window: float, max_average_window: int | None = None, do_average_in_cpu: bool = False
    ) -> None:
        self._share, self._most = float(average_window), max_average_window or 2**62
        if not 0.0 < self._share <= 1.0 or self._most < 1:
            raise ValueError(
                f"ModelAverage: {average_window=}, expected 0 to 1, {max_average_window=}, above 0"
            )
        self._updates = self._count = self._before = 0  # of this window, and of that before
        self._get: Callable[[str], F32]  # returns a parameter's own array
        self._sums: dict[str, npt.NDArray[np.float64]] = {}  # of both, [2, rows, cols]

    def attach(self, parameters: Parameters, names: Iterable[str]) -> None:
        """Take the mean of these parameters from now on."""
        self._get = parameters.get_array
        self._sums = {name: np.zeros((2, *parameters.get_shape(name))) for name in names}

    def add(self) -> None:
        """Count the values after an update."""
        self._updates += 1
        self._count += 1
        for name, both in self._sums.items():
            both[0] += self._get(name)
        if self._count >= min(self._most, max(LEAST_WINDOW, self._updates * self._share)):
            for both in self._sums.values():
                both[1], both[0] = both[0], 0.0
            self._before, self._count = self._count, 0

    @contextlib.contextmanager
    def apply(self) -> Iterator[None]:
        """Let the values be the mean ones in a `with` block."""
        count = self._count + self._before
        kept = {name: self._get(name).copy() for name in self._sums if count}
        for name in kept:
            self._get(name)[...] = self._sums[name].sum(axis=0) / count
        try:
            yield
        finally:
            for name, values in kept.items():
                self._get(name)[...] = values
