"""Makes data of the form of Criteo's display advertising challenge, with clicks that depend on it.

    python make_data.py [DIR] [--lines 100000] [--split_count 4] [--seed 1]

A line is a label, 13 numbers and 26 categories, separated by tabs; any number or category may be missing.
Categories are frequent by Zipf's law, from a few to 100,000 in a column. The chance of a click depends on the
numbers, on each category, and on pairs of categories.

DIR gets `train/part-00000` and so on, one or more for each trainer, and `test/part-00000`, a tenth as many
lines. The same arguments give the same files.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

DENSE, SPARSE = 13, 26
SIZES = np.geomspace(4, 100_000, SPARSE).astype(np.int64)  # categories of each column
ZIPF = 1.2
SCALES = np.array([20, 600, 100, 50, 64_000, 500, 100, 50, 500, 10, 10, 10, 50]) / 4  # of the numbers
MISSING = 0.05  # share of the fields
BIAS, PAIRS = -1.0, 0.5  # coefficients
NUMBERS, CATEGORIES = 0.8, 0.5  # their standard deviations
HERE = Path(__file__).resolve().parent

Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


class Truth:
    """Coefficients of the chance of a click, drawn from the seed."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        self.numbers = rng.normal(0, NUMBERS, DENSE)
        self.categories = [rng.normal(0, CATEGORIES, size) for size in SIZES]
        self.signs = [rng.choice([-1.0, 1.0], size) for size in SIZES]

    def compute_chances(self, numbers: Array, ids: Ids) -> Array:
        """Return the chance of a click for each line; ids below 0 and numbers that are NaN are missing."""
        score = BIAS + np.nan_to_num(np.log1p(numbers / SCALES) - 0.8) @ self.numbers
        signs = np.zeros(ids.shape)
        for column in range(SPARSE):
            known = ids[:, column] >= 0
            score[known] += self.categories[column][ids[known, column]]
            signs[known, column] = self.signs[column][ids[known, column]]
        score += PAIRS * (signs[:, :10:2] * signs[:, 1:10:2]).sum(axis=1)
        chances: Array = 1 / (1 + np.exp(-score))
        return chances


def draw_numbers(rng: np.random.Generator, lines: int) -> Array:
    """Return a whole number for each line and column, or NaN."""
    numbers: Array = np.floor(rng.lognormal(0.0, 1.0, (lines, DENSE)) * SCALES)
    numbers[rng.random(numbers.shape) < MISSING] = np.nan
    return numbers


def draw_ids(rng: np.random.Generator, lines: int) -> Ids:
    """Return a category for each line and column, or -1."""
    columns = [rng.zipf(ZIPF, lines).astype(np.float64) % size for size in SIZES]
    ids: Ids = np.stack(columns, axis=1).astype(np.int64)
    ids[rng.random(ids.shape) < MISSING] = -1
    return ids


def format_category(column: int, number: int) -> str:
    """Return 8 hexadecimal digits, as Criteo's categories are; different ones for different categories."""
    return f"{((column << 20 | number) * 2654435761) % 2**32:08x}" if number >= 0 else ""


def make_lines(seed: int, stream: int, count: int) -> Iterator[str]:
    """Yield lines; streams of one seed have different lines with the same truth."""
    rng = np.random.default_rng([seed, 1 + stream])
    numbers = draw_numbers(rng, count)
    ids = draw_ids(rng, count)
    clicks = rng.random(count) < Truth(seed).compute_chances(numbers, ids)
    for click, own_numbers, own_ids in zip(clicks.tolist(), numbers.tolist(), ids.tolist(), strict=True):
        fields = [str(int(click))]
        fields += ["" if number != number else str(int(number)) for number in own_numbers]
        fields += [format_category(column, one) for column, one in enumerate(own_ids)]
        yield "\t".join(fields) + "\n"


def write_part(path: Path, seed: int, stream: int, count: int) -> None:
    """Write one file of lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        file.writelines(make_lines(seed, stream, count))


def make_data(folder: Path, *, lines: int, split_count: int, seed: int) -> None:
    """Write all files; those of an earlier call are replaced."""
    for old in folder.glob("t*/part-*"):
        old.unlink()
    for part in range(split_count):
        count = lines * (part + 1) // split_count - lines * part // split_count
        write_part(folder / "train" / f"part-{part:05d}", seed, 1 + part, count)
    write_part(folder / "test" / "part-00000", seed, 0, lines // 10)


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=HERE / "data", help="default: data beside it")
    parser.add_argument("--lines", type=int, default=100_000, help="to train on (%(default)s)")
    parser.add_argument("--split_count", type=int, default=4, help="files to train on (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="other data (%(default)s)")
    options = parser.parse_args()
    if options.split_count < 1 or options.lines < options.split_count:
        parser.error("--split_count must be at least 1, and --lines as many")
    make_data(options.folder, lines=options.lines, split_count=options.split_count, seed=options.seed)
    print(f"{options.folder}: {options.lines} lines to train on, in {options.split_count} files")


if __name__ == "__main__":
    main()
