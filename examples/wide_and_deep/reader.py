"""Reads lines of Criteo's form as samples: a vector of 13 numbers, 26 categories, and a label."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

DENSE, SPARSE = 13, 26
LOWEST = (0, -3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)  # of most numbers in a column
RANGES = (20, 603, 100, 50, 64_000, 500, 100, 50, 500, 10, 10, 10, 50)

Sample = list[list[float] | list[str] | list[int]]


def read_line(line: str) -> Sample:
    """Return 13 numbers of about 0 to 1, 26 categories and the label, as lists; missing numbers are 0."""
    label, *fields = line.rstrip("\n").split("\t")
    if len(fields) != DENSE + SPARSE:
        raise ValueError(f"a line has {1 + len(fields)} fields, expected {1 + DENSE + SPARSE}: {line[:60]!r}")
    numbers = [
        (float(field) - low) / size if field else 0.0
        for field, low, size in zip(fields[:DENSE], LOWEST, RANGES, strict=True)
    ]
    return [numbers, *([field] for field in fields[DENSE:]), [int(label)]]


def list_files(folder: Path) -> list[str]:
    """Return all files of a folder in the order of their names; raises ValueError if there is none."""
    found = sorted(str(path) for path in folder.glob("*") if path.is_file())
    if not found:
        raise ValueError(
            f"{folder} has no files; make_data.py makes some, and --data DIR is the place of others"
        )
    return found


def make_reader(files: Sequence[str]) -> Callable[[], Iterator[Sample]]:
    """Return a function that reads the samples of these files."""

    def read_samples() -> Iterator[Sample]:
        for name in files:
            with Path(name).open() as lines:
                yield from map(read_line, lines)

    return read_samples
