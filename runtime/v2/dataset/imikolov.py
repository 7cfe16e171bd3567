"""Penn Treebank text in the form of v2's `dataset.imikolov`: a dictionary, and n-grams or sequences of ids.

Reads `simple-examples.tgz`, the folder `simple-examples` of it, or the bare files `ptb.train.txt` and
`ptb.valid.txt`, below `imikolov/` in PADDLE_DATA_HOME, by default ~/.cache/paddle/dataset.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator

from ...engine.ops.signature import make_function
from .data_home import number_words, read_files

__all__ = ["DataType", "build_dict", "test", "train"]

TRAIN_FILE = "ptb.train.txt"
TEST_FILE = "ptb.valid.txt"
Sample = tuple[int, ...] | tuple[list[int], list[int]]


class DataType:
    """Form of a reader's samples: the n-grams of a sentence, or the sentence and the same shifted by one."""

    NGRAM = 1
    SEQ = 2


def build_dict(min_word_freq: int = 50) -> dict[str, int]:
    """Map words that occur more than `min_word_freq` times to ids, frequent ones first.

    `<s>` and `<e>` count once per sentence; `<unk>`, for all other words, has the last id.
    """
    counts: Counter[str] = Counter()
    for name in (TRAIN_FILE, TEST_FILE):
        for line in _read_lines(name):
            counts.update(line.split())
            counts.update(("<s>", "<e>"))
    counts.pop("<unk>", None)
    return number_words(counts, min_word_freq)


def _make_reader(
    name: str, word_idx: dict[str, int], n: int, data_type: int
) -> Callable[[], Iterator[Sample]]:
    if data_type not in (DataType.NGRAM, DataType.SEQ):
        raise ValueError(f"imikolov: data_type={data_type!r} is neither DataType.NGRAM nor DataType.SEQ")
    if n < (1 if data_type == DataType.NGRAM else 0):
        raise ValueError(f"imikolov: n={n} is too small")

    def read() -> Iterator[Sample]:
        for line in _read_lines(name):
            ids = [word_idx.get(word, word_idx["<unk>"]) for word in ("<s>", *line.split(), "<e>")]
            if data_type == DataType.NGRAM:
                yield from (tuple(ids[end - n : end]) for end in range(n, len(ids) + 1))
            elif n == 0 or len(ids) - 2 < n:
                yield ids[:-1], ids[1:]

    return read


def _read_lines(name: str) -> Iterator[str]:
    places = ["simple-examples", name, "simple-examples.tgz"]
    for _, read in read_files("imikolov", places, f"(simple-examples/data/)?{name}$"):
        yield from read().decode("utf-8").splitlines()


train = make_function(f"imikolov.train word_idx n | data_type={DataType.NGRAM}",
                      "a reader of the training text: n-grams, or sequences of at most `n` words (0: any)",
                      functools.partial(_make_reader, TRAIN_FILE))  # fmt: skip
test = make_function(f"imikolov.test word_idx n | data_type={DataType.NGRAM}",
                     "a reader of the validation text, as `train` does",
                     functools.partial(_make_reader, TEST_FILE))  # fmt: skip
