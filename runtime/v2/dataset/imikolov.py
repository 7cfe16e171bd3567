"""Penn Treebank text in the form of v2's `dataset.imikolov`: a dictionary, and n-grams or sequences of ids.

Reads `simple-examples.tgz`, the folder `simple-examples` of it, or the bare files `ptb.train.txt` and
`ptb.valid.txt`, below `imikolov/` in PADDLE_DATA_HOME, by default ~/.cache/paddle/dataset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from .data_home import read_files

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
    frequent = [(word, count) for word, count in counts.items() if count > min_word_freq]
    frequent.sort(key=lambda item: (-item[1], item[0]))
    word_idx = {word: i for i, (word, _) in enumerate(frequent)}
    word_idx["<unk>"] = len(word_idx)
    return word_idx


def train(
    word_idx: dict[str, int], n: int, data_type: int = DataType.NGRAM
) -> Callable[[], Iterator[Sample]]:
    """Return a reader of the training text: n-grams, or sequences of at most `n` words (0: any)."""
    return _make_reader(TRAIN_FILE, word_idx, n, data_type)


def test(word_idx: dict[str, int], n: int, data_type: int = DataType.NGRAM) -> Callable[[], Iterator[Sample]]:
    """Return a reader of the validation text, as `train` does."""
    return _make_reader(TEST_FILE, word_idx, n, data_type)


def _make_reader(
    name: str, word_idx: dict[str, int], n: int, data_type: int
) -> Callable[[], Iterator[Sample]]:
    if data_type not in (DataType.NGRAM, DataType.SEQ):
        raise ValueError(f"imikolov: data_type={data_type!r} is neither DataType.NGRAM nor DataType.SEQ")
    if n < (1 if data_type == DataType.NGRAM else 0):
        raise ValueError(f"imikolov: n={n} is too small")
    of_line = _split_ngrams if data_type == DataType.NGRAM else _make_sequence

    def read() -> Iterator[Sample]:
        for line in _read_lines(name):
            yield from of_line(line.split(), word_idx, n)

    return read


def _split_ngrams(words: list[str], word_idx: dict[str, int], n: int) -> Iterator[Sample]:
    unknown = word_idx["<unk>"]
    ids = [word_idx.get(word, unknown) for word in ("<s>", *words, "<e>")]
    for end in range(n, len(ids) + 1):
        yield tuple(ids[end - n : end])


def _make_sequence(words: list[str], word_idx: dict[str, int], n: int) -> Iterator[Sample]:
    unknown = word_idx["<unk>"]
    ids = [word_idx.get(word, unknown) for word in words]
    if n == 0 or len(ids) < n:
        yield [word_idx["<s>"], *ids], [*ids, word_idx["<e>"]]


def _read_lines(name: str) -> Iterator[str]:
    places = ["simple-examples", name, "simple-examples.tgz"]
    for _, read in read_files("imikolov", places, f"(simple-examples/data/)?{name}$"):
        yield from read().decode("utf-8").splitlines()
