"""Makes the workspace of the word2vec job: a dictionary and 5-grams of English text, split into files.

    python prepare.py [WORKSPACE] [--split_count 4] [--layout nested|flat] [--corpus FILE...]

The formats are those of PaddlePaddle's cluster example: `word_dict.pickle` is a dict of word to id,
a line of `train.txt` is one 5-gram as comma-separated ids, and `train.txt-00000` and so on are its
pieces, one or more for each trainer. Without `--corpus` the text is what every Python installation
carries: the language reference (`pydoc_data.topics`) and the docstrings of the standard library.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import pickle
import random
import re
import shutil
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

SPLIT_COUNT = 4  # files for training, and as many for testing; at least one for each trainer
N = 5  # words of an n-gram
MIN_FREQ = 10  # rarer words become <unk>
TEST_EVERY = 20  # one sentence in so many is for testing
START, END, UNKNOWN = "<s>", "<e>", "<unk>"
HERE = Path(__file__).resolve().parent
# Not of the standard library's own text, or not English.
SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "ensurepip"})

WORD = re.compile(r"<unk>|[A-Za-z]+(?:'[a-z]+)?|[0-9]+")
SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+")
BLANK_LINE = re.compile(r"\n[ \t]*\n")
CODE = re.compile(r"^\s*(>>>|\.\.\.|::=|\||\+[-=]|[-=*~^]{3,})|::=", re.MULTILINE)


def read_topics(path: Path) -> Iterator[str]:
    """The texts in the dict that `pydoc_data/topics.py` is."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Dict):
            for value in node.values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


def read_docstrings(path: Path) -> Iterator[str]:
    """The docstrings of a source file, always in the same order; none where it can't be parsed."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def read_bundled_texts() -> Iterator[str]:
    """The default corpus. Source files are read, not imported; the order is that of their names."""
    library = Path(sysconfig.get_path("stdlib"))
    yield from read_topics(library / "pydoc_data" / "topics.py")
    for path in sorted(library.rglob("*.py"), key=lambda path: path.relative_to(library).as_posix()):
        folders = path.relative_to(library).parts[:-1]
        if not SKIPPED.intersection(folders) and folders[:1] != ("pydoc_data",):
            yield from read_docstrings(path)


def split_paragraphs(text: str) -> list[str]:
    """Pieces between blank lines; lines, where there is no blank one (a sentence a line, as in the PTB)."""
    return BLANK_LINE.split(text) if BLANK_LINE.search(text) else text.splitlines()


def split_sentences(text: str) -> Iterator[tuple[str, ...]]:
    """Sentences as lower-case words, numbers as `N`; code and tables are left out."""
    for paragraph in split_paragraphs(text):
        if CODE.search(paragraph):
            continue
        for sentence in SENTENCE_END.split(paragraph):
            words = WORD.findall(sentence)
            if words:
                yield tuple("N" if word.isdigit() else word.lower() for word in words)


def build_dict(corpus: Iterable[Sequence[str]], min_freq: int) -> dict[str, int]:
    """Ids of all words of `min_freq` or more, the most frequent first; `<unk>` has the last one."""
    counts: Counter[str] = Counter()
    for words in corpus:
        counts.update((START, *words, END))
    del counts[UNKNOWN]
    kept = sorted((-n, word) for word, n in counts.items() if n >= min_freq)
    ids = {word: i for i, (_, word) in enumerate(kept)}
    ids[UNKNOWN] = len(ids)
    return ids


def convert_to_ids(words: Sequence[str], word_dict: dict[str, int]) -> tuple[int, ...]:
    """A sentence with its start and end as ids."""
    return tuple(word_dict.get(word, word_dict[UNKNOWN]) for word in (START, *words, END))


def split(
    corpus: Sequence[tuple[str, ...]], word_dict: dict[str, int]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Sentences for training and for testing, no sentence in both; order and choice are always the same.

    Docstrings repeat: a sentence is taken once, also where it differs from another in unknown words only.
    """
    unique = list(dict.fromkeys(convert_to_ids(words, word_dict) for words in corpus))
    random.Random(1).shuffle(unique)
    return [s for i, s in enumerate(unique) if i % TEST_EVERY], unique[::TEST_EVERY]


def format_ngrams(corpus: Iterable[Sequence[int]]) -> Iterator[str]:
    """A line for each n-gram of each sentence that is long enough."""
    for ids in corpus:
        for end in range(N, len(ids) + 1):
            yield ",".join(map(str, ids[end - N : end])) + "\n"


def remove_pieces(path: Path) -> None:
    """Remove the files of an earlier `write_pieces`, and their folder if that is empty then."""
    for old in path.parent.glob(path.name + "*"):
        old.unlink()
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def write_pieces(path: Path, lines: Sequence[str], split_count: int) -> None:
    """`path` with all lines, and `split_count` contiguous pieces of nearly equal length beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
    for i in range(split_count):
        piece = lines[len(lines) * i // split_count : len(lines) * (i + 1) // split_count]
        path.with_name(f"{path.name}-{i:05d}").write_text("".join(piece))


def prepare(workspace: Path, texts: Iterable[str], *, split_count: int, layout: str, min_freq: int) -> str:
    """Write the workspace, programs included; returns what there is to say about it.

    Raises ValueError, and has written nothing, where the texts are too short to train on.
    """
    corpus = [words for text in texts for words in split_sentences(text) if len(words) >= N - 2]
    word_dict = build_dict(corpus, min_freq)
    parts = dict(zip(("train", "test"), split(corpus, word_dict), strict=True))
    if not parts["train"]:
        raise ValueError(
            f"the text is too short to train on: it needs two different sentences of {N - 2} words or more, "
            f"where words that come less than {min_freq} times (--min_freq) count as one"
        )
    workspace.mkdir(parents=True, exist_ok=True)
    (workspace / "word_dict.pickle").write_bytes(pickle.dumps(word_dict, protocol=2))
    counts = {}
    for name, part in parts.items():
        lines = list(format_ngrams(part))
        flat = workspace / f"{name}_data_dir" / f"{name}.txt"
        nested = flat.parent / name / flat.name
        for place in (flat, nested):  # the programs read what lies there, also of another layout
            remove_pieces(place)
        write_pieces(nested if layout == "nested" else flat, lines, split_count)
        counts[name] = len(lines)
    for program in ("train.py", "my_lib.py"):
        if workspace.resolve() != HERE:
            shutil.copy(HERE / program, workspace / program)
    return (
        f"{workspace}: {len(word_dict)} words; {counts['train']} {N}-grams to train on "
        f"and {counts['test']} to test on, in {split_count} files each"
    )


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workspace", nargs="?", type=Path, default=HERE / "ws", help="default: ws beside it")
    parser.add_argument("--split_count", type=int, default=SPLIT_COUNT, help="files to write (%(default)s)")
    parser.add_argument("--min_freq", type=int, default=MIN_FREQ, help="rarer words are <unk> (%(default)s)")
    parser.add_argument(
        "--layout",
        choices=("nested", "flat"),
        default="nested",
        help="train_data_dir/train/train.txt-… or train_data_dir/train.txt-… (%(default)s)",
    )
    parser.add_argument(
        "--corpus", nargs="+", type=Path, metavar="FILE", help="any text, in place of Python's"
    )
    found = parser.parse_args()
    if found.split_count < 1:
        parser.error("--split_count must be at least 1")
    return found


def read_given_texts(corpus: Iterable[Path]) -> Iterator[str]:
    """The user's own texts. Raises ValueError for what can't be read as such."""
    for path in corpus:
        try:
            yield path.read_text(encoding="utf-8")
        except OSError as e:
            raise ValueError(f"--corpus {path}: {e.strerror}") from None
        except UnicodeDecodeError as e:
            raise ValueError(
                f"--corpus {path}: it is not text in UTF-8: {e.reason} at byte {e.start}"
            ) from None


def main() -> None:
    """Prepare, and say what was made."""
    options = parse_arguments()
    try:
        told = prepare(
            options.workspace,
            read_given_texts(options.corpus) if options.corpus else read_bundled_texts(),
            split_count=options.split_count,
            layout=options.layout,
            min_freq=options.min_freq,
        )
    except ValueError as e:
        print(f"prepare.py: {e}", file=sys.stderr)
        sys.exit(2)
    print(told)


if __name__ == "__main__":
    main()
