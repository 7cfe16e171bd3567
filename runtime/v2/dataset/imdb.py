"""Reviews of films in the form of v2's `dataset.imdb`: the ids of their words, and 0 for praise, else 1.

Reads the folder `aclImdb`, or `aclImdb_v1.tar.gz` with it, below `imdb/` in PADDLE_DATA_HOME.
"""

from __future__ import annotations

import functools
import itertools
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator

from ...engine.ops.signature import make_function
from .data_home import number_words, read_files

__all__ = ["build_dict", "test", "train", "word_dict"]


def word_dict() -> dict[str, int]:
    """Map words that occur more than 150 times to ids, frequent ones first; `<unk>` has the last id."""
    return build_dict(re.compile(r"aclImdb/(train|test)/(pos|neg)/.*\.txt$"), 150)


def build_dict(pattern: re.Pattern[str], cutoff: int) -> dict[str, int]:
    """Return such ids of words that occur more than `cutoff` times in the files whose names match."""
    return number_words(Counter(itertools.chain.from_iterable(_read_words(pattern))), cutoff)


def _make_reader(part: str, word_idx: dict[str, int]) -> Callable[[], Iterator[tuple[list[int], int]]]:
    patterns = [re.compile(rf"aclImdb/{part}/{kind}/.*\.txt$") for kind in ("pos", "neg")]

    def read() -> Iterator[tuple[list[int], int]]:
        for texts in itertools.zip_longest(*map(_read_words, patterns)):
            for label, words in enumerate(texts):
                if words is not None:
                    yield [word_idx.get(word, word_idx["<unk>"]) for word in words], label

    return read


def _read_words(pattern: re.Pattern[str]) -> Iterator[list[str]]:
    for _, read in read_files("imdb", ["aclImdb", "aclImdb_v1.tar.gz"], pattern):
        yield read().translate(None, string.punctuation.encode()).decode().lower().split()


train = make_function("imdb.train word_idx", "a reader of the training reviews, praise and others in turn",
                      functools.partial(_make_reader, "train"))  # fmt: skip
test = make_function("imdb.test word_idx", "a reader of the test reviews, as `train` does",
                     functools.partial(_make_reader, "test"))  # fmt: skip
