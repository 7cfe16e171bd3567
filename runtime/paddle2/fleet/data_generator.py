"""Bases of programs for a dataset's `pipe_command`: lines of any form in, text of slots out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any

from ...v2.reader import batch

__all__ = ["MultiSlotDataGenerator", "MultiSlotStringDataGenerator"]

Sample = Iterable[tuple[str, Sequence[Any]]]  # names of slots, and their values


class MultiSlotStringDataGenerator:
    """Writes samples whose values are strings.

    A subclass defines `generate_sample(line)`, which returns a function that returns the line's samples,
    each a list of pairs of a slot's name and its values.
    """

    generate_sample: Callable[[Any], Callable[[], Iterable[Sample | None]]]

    def __init__(self) -> None:
        self.batch_size_ = 32  # PaddlePaddle's name

    def set_batch(self, batch_size: int) -> None:
        """Set the number of samples that generate_batch() gets at once."""
        self.batch_size_ = batch_size

    def generate_batch(self, samples: Sequence[Sample]) -> Callable[[], Iterable[Sample]]:
        """Return a function that returns samples made from these; a subclass may define it."""
        return lambda: samples

    def run_from_stdin(self) -> None:
        """Write the samples of all lines of the standard input."""
        self._run(sys.stdin)

    def run_from_memory(self) -> None:
        """Write the samples of generate_sample(None)."""
        self._run([None])

    def _run(self, lines: Iterable[Any]) -> None:
        samples = (sample for line in lines for sample in self.generate_sample(line)() if sample is not None)
        for several in batch(lambda: samples, self.batch_size_)():
            for sample in self.generate_batch(several)():
                sys.stdout.write(self._format(list(sample)))

    def _format(self, sample: list[tuple[str, Sequence[Any]]]) -> str:
        return " ".join(f"{len(values)} {' '.join(map(str, values))}" for _, values in sample) + "\n"


class MultiSlotDataGenerator(MultiSlotStringDataGenerator):
    """Writes samples whose values are numbers; all samples have the same slots."""

    _names: list[str] | None = None

    def _format(self, sample: list[tuple[str, Sequence[Any]]]) -> str:
        names = [name for name, _ in sample]
        self._names = self._names or names
        if names != self._names:
            raise ValueError(f"{type(self).__name__}: a sample has the slots {names}, expected {self._names}")
        for name, values in sample:
            if not values or not all(isinstance(one, Real) for one in values):
                raise ValueError(
                    f"{type(self).__name__}: slot {name} has {values!r}, expected one number or more"
                )
        return super()._format(sample)
