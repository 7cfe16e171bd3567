"""Makes seeded data of the six forms that the models read:

    python make_data.py [DIR] [--lines 8000] [--split_count 4] [--seed 1]

DIR gets `criteo/part-00000` and so on, and likewise `census`, `aliccp`, `amazon`, `text` and `pairs`: one or
more files for each trainer. Labels depend on what is in a line, so that a model can learn them. The same
arguments give the same files.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
IDS, GROUPS = 400, 20  # ids of a field, of an item or a word: 1 to IDS; each is of one of so many groups


class Source:
    """Draws of one file, with coefficients that are the same for all files of a seed."""

    def __init__(self, seed: int, stream: int) -> None:
        truth = np.random.default_rng([seed, 0])
        self.rng = np.random.default_rng([seed, 1 + stream])
        self.weights = truth.normal(0, 1.0, (26, IDS + 1))  # of the ids of each field
        self.mixing = truth.normal(0, 1.0, (2, 40))  # of numbers, for each of two tasks
        self.group = truth.integers(0, GROUPS, IDS + 1)  # of each item
        self.members = [np.flatnonzero(self.group[1:] == one) + 1 for one in range(GROUPS)]

    def draw_ids(self, count: int) -> list[int]:
        """Return ids, small ones more often."""
        found: list[int] = (1 + IDS * self.rng.random(count) ** 4).astype(int).tolist()
        return found

    def draw_members(self, group: int, count: int) -> list[int]:
        """Return items of a group."""
        found: list[int] = self.rng.choice(self.members[group], count).tolist()
        return found

    def decide(self, score: float) -> int:
        """Return 1 with the chance 1 / (1 + exp(-score)), else 0."""
        return int(self.rng.random() < 1 / (1 + np.exp(-score)))


def make_criteo(source: Source) -> str:
    """Return a label, 13 numbers and 26 categories of hexadecimal digits, separated by tabs."""
    numbers = np.floor(source.rng.lognormal(1.0, 1.0, 13)).astype(int)
    ids = source.draw_ids(26)
    score = source.weights[np.arange(26), ids].sum() / 2 + np.log1p(numbers[:4]) @ [1, -1, 1, -1] - 1
    categories = [f"{(field << 20 | one) * 2654435761 % 2**32:08x}" for field, one in enumerate(ids)]
    return "\t".join([str(source.decide(score)), *map(str, numbers.tolist()), *categories])


def make_census(source: Source) -> str:
    """Return two labels and 40 numbers, separated by commas."""
    numbers = source.rng.normal(0, 1.0, 40).round(3)
    first, second = source.mixing @ np.tanh(numbers) / 2
    labels = [source.decide(first + second / 2), source.decide(second)]
    return ",".join(map(str, [*labels, *numbers.tolist()]))


def make_aliccp(source: Source) -> str:
    """Return click and purchase, and one to three ids of each of 8 fields: `1,0,1:5,1:7,2:8`."""
    fields = [sorted(set(source.draw_ids(1 + int(source.rng.integers(3))))) for _ in range(8)]
    score = sum(source.weights[field, ids].mean() for field, ids in enumerate(fields))
    click = source.decide(score)
    buy = click * source.decide(source.weights[0, fields[0]].sum() + source.weights[9, fields[1]].sum())
    pairs = [f"{1 + field}:{one}" for field, ids in enumerate(fields) for one in ids]
    return ",".join([str(click), str(buy), *pairs])


def make_amazon(source: Source) -> str:
    """Return a history of items, their categories, an item, its category, and the label: `5 7;2 3;9;3;1`.

    Items of some groups are clicked more often, and those of a group in the history.
    """
    likes = source.rng.integers(0, GROUPS, 2).tolist()
    history = [source.draw_members(likes[i % 2], 1)[0] for i in range(source.rng.integers(2, 11))]
    group = likes[0] if source.rng.random() < 0.5 else int(source.rng.integers(0, GROUPS))
    (item,) = source.draw_members(group, 1)
    label = source.decide((1.0 if group in likes else -1.0) + source.weights[0, group])
    columns = [history, (1 + source.group[history]).tolist(), [item], [1 + group], [label]]
    return ";".join(" ".join(map(str, one)) for one in columns)


def make_text(source: Source) -> str:
    """Return 8 words, most of them of one group."""
    words, noise = source.draw_members(int(source.rng.integers(0, GROUPS)), 8), source.draw_ids(8)
    return " ".join(str(a if source.rng.random() < 0.8 else b) for a, b in zip(words, noise, strict=True))


def make_pairs(source: Source) -> str:
    """Return a query, a document that fits it, and four that do not, each of 3 words: `1 2 3;4 5 6;...`."""
    first, *others = source.rng.permutation(GROUPS)[:5].tolist()
    return ";".join(" ".join(map(str, source.draw_members(one, 3))) for one in (first, first, *others))


FORMS: dict[str, Callable[[Source], str]] = {
    "criteo": make_criteo,
    "census": make_census,
    "aliccp": make_aliccp,
    "amazon": make_amazon,
    "text": make_text,
    "pairs": make_pairs,
}


def make_lines(form: str, seed: int, stream: int, count: int) -> Iterator[str]:
    """Yield lines of a form; streams of one seed have different lines, whose labels depend on them alike."""
    source = Source(seed, stream)
    return (FORMS[form](source) for _ in range(count))


def make_data(folder: Path, *, lines: int, split_count: int, seed: int) -> None:
    """Write the files of all forms; those of an earlier call are replaced."""
    for old in folder.glob("*/part-*"):
        old.unlink()
    for form in FORMS:
        (folder / form).mkdir(parents=True, exist_ok=True)
        for part in range(split_count):
            count = lines * (part + 1) // split_count - lines * part // split_count
            text = "".join(f"{line}\n" for line in make_lines(form, seed, part, count))
            (folder / form / f"part-{part:05d}").write_text(text)


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=HERE / "data", help="default: data beside it")
    parser.add_argument("--lines", type=int, default=8000, help="of each form (%(default)s)")
    parser.add_argument("--split_count", type=int, default=4, help="files of each form (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="other data (%(default)s)")
    options = parser.parse_args()
    make_data(options.folder, lines=options.lines, split_count=options.split_count, seed=options.seed)
    print(f"{options.folder}: {options.lines} lines of each of {', '.join(FORMS)}")


if __name__ == "__main__":
    main()
