"""The word2vec example: the published formats, and the modulo rule for any number of trainers."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from pathlib import Path

import my_lib
import numpy as np
import prepare
import pytest
import report

ROOT = Path(__file__).parents[3]
TEXT = """The cat sat on the mat. The dog sat on the mat!

>>> the_code("is left out")

The cat saw 2 dogs, and the dog saw the cat: it was a dog's day.
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace made of many different sentences; the test runs in it."""
    nouns = ("cat", "dog", "mouse", "bird", "fish", "cow")
    text = "\n".join(f"the {a} sees the {b} and the {c}" for a, b, c in itertools.product(nouns, repeat=3))
    prepare.prepare(tmp_path, [text], split_count=3, layout="nested", min_freq=1)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_another_layout_leaves_nothing_of_the_one_before(workspace: Path) -> None:
    prepare.prepare(workspace, ["b b b b b b b\na b b b b b b"], split_count=1, layout="flat", min_freq=1)
    assert my_lib.find_data_folder("train") == Path("train_data_dir")
    assert not (workspace / "train_data_dir/train").exists()


def test_sentences_are_words_without_code() -> None:
    assert list(prepare.split_sentences(TEXT)) == [
        ("the", "cat", "sat", "on", "the", "mat"),
        ("the", "dog", "sat", "on", "the", "mat"),
        ("the", "cat", "saw", "N", "dogs", "and", "the", "dog", "saw", "the", "cat"),
        ("it", "was", "a", "dog's", "day"),
    ]


def test_without_blank_lines_each_line_is_a_sentence() -> None:
    assert list(prepare.split_sentences("no <unk> here\nmr. n was there")) == [
        ("no", "<unk>", "here"),
        ("mr",),
        ("n", "was", "there"),
    ]


def test_the_dictionary_has_frequent_words_first_and_unk_last() -> None:
    found = prepare.build_dict([("b", "a", "a"), ("a", "b", "c")], 2)
    assert found == {"a": 0, "<e>": 1, "<s>": 2, "b": 3, "<unk>": 4}


def test_no_sentence_is_both_for_training_and_for_testing() -> None:
    word_dict = {"<s>": 0, "<e>": 1, "a": 2, "<unk>": 3}
    corpus = [("a",) * n + (unknown,) for n in range(1, 60) for unknown in ("x", "y")]
    train, test = prepare.split(corpus, word_dict)
    assert len(train) + len(test) == 59 == len({*train, *test})
    assert len(test) == 3


def test_ngrams_of_a_sentence() -> None:
    assert list(prepare.format_ngrams([(0, 1, 2, 3, 4, 5), (0, 1)])) == ["0,1,2,3,4\n", "1,2,3,4,5\n"]


def test_pieces_are_the_whole(workspace: Path) -> None:
    folder = workspace / "train_data_dir" / "train"
    pieces = sorted(folder.glob("train.txt-*"))
    assert [path.name for path in pieces] == [f"train.txt-{i:05d}" for i in range(3)]
    assert "".join(path.read_text() for path in pieces) == (folder / "train.txt").read_text()
    assert pickle.loads((workspace / "word_dict.pickle").read_bytes())["<unk>"] == 11


def test_both_layouts_are_read(workspace: Path) -> None:
    nested = sorted(my_lib.make_reader("train")())
    text = "the cat sees a dog\na dog sees the cat"
    prepare.prepare(workspace / "flat", [text], split_count=2, layout="flat", min_freq=1)
    assert nested and (workspace / "flat" / "train_data_dir" / "train.txt-00001").exists()
    assert my_lib.find_data_folder("train") == Path("train_data_dir/train")


@pytest.mark.parametrize("trainers", [1, 2, 3, 5])
def test_each_file_has_one_trainer(tmp_path: Path, trainers: int) -> None:
    for name in ("train.txt", "notes", "a-b", *(f"train.txt-{i:05d}" for i in range(7))):
        (tmp_path / name).touch()
    parts = [my_lib.list_own_files(tmp_path, trainers, own) for own in range(trainers)]
    assert sorted(itertools.chain(*parts)) == sorted(tmp_path.glob("train.txt-*"))
    for own, part in enumerate(parts):
        assert [int(path.name[-5:]) % trainers for path in part] == [own] * len(part)


def test_the_reader_takes_its_part_from_the_contract(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = sorted(my_lib.make_reader("train")())
    monkeypatch.setenv("PADDLE_INIT_NUM_GRADIENT_SERVERS", "2")
    parts = []
    for own in ("0", "1"):
        monkeypatch.setenv("PADDLE_INIT_TRAINER_ID", own)
        parts.append(list(my_lib.make_reader("train")()))
    assert all(parts) and sorted(parts[0] + parts[1]) == everything
    assert {len(sample) for sample in everything} == {prepare.N}


def test_the_default_corpus_is_english_and_the_same_each_time() -> None:
    first = list(itertools.islice(prepare.read_bundled_texts(), 200))
    assert first == list(itertools.islice(prepare.read_bundled_texts(), 200))
    words = [word for text in first for sentence in prepare.split_sentences(text) for word in sentence]
    assert words.count("the") > len(words) / 50


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "--corpus {}: No such file or directory"),
        (b"the cat \xff sat", "--corpus {}: it is no text in UTF-8: invalid start byte at byte 8"),
        (b"the cat sat on the mat", "the text is too short to train on: it needs two different sentences"),
    ],
)
def test_a_corpus_that_is_of_no_use_is_one_line(tmp_path: Path, content: bytes | None, words: str) -> None:
    corpus, made = tmp_path / "corpus", tmp_path / "ws"
    if content is not None:
        corpus.write_bytes(content)
    argv = [sys.executable, str(ROOT / "examples/word2vec/prepare.py"), str(made), "--corpus", str(corpus)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, made.exists()) == (2, "", False)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"prepare.py: {words.format(corpus)}")


def test_bad_split_count_is_a_usage_error(tmp_path: Path) -> None:
    argv = [sys.executable, str(ROOT / "examples/word2vec/prepare.py"), str(tmp_path), "--split_count", "0"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--split_count must be at least 1" in done.stderr


def test_report_numbers_on_a_model_that_knows_nothing() -> None:
    words = 6
    nothing = {
        "_proj": np.zeros((words, 2), dtype=np.float32),
        "hidden": np.zeros((8, 3), dtype=np.float32),
        "hidden_bias": np.zeros((1, 3), dtype=np.float32),
        "next": np.zeros((3, words), dtype=np.float32),
        "next_bias": np.zeros((1, words), dtype=np.float32),
    }
    samples = np.arange(60).reshape(12, 5) % words
    assert report.compute_perplexity(nothing, samples, drop=0.5) == pytest.approx(words)
    assert report.compute_unigram_perplexity(samples, samples, words) == pytest.approx(words)


def test_nearest_is_by_direction() -> None:
    table = np.array([[1, 0], [0, 5], [9, 1], [-1, 0]], dtype=np.float32)
    assert report.find_nearest(table, 0, 2) == [2, 1]


def test_words_that_the_dictionary_lacks_are_replaced() -> None:
    word_dict = {f"w{i}": i for i in range(60)}
    assert report.select_known(("a b", "w1 w2"), word_dict) == ["w1 w2"]
    assert report.select_known(("a b",), word_dict) == ["w20 w21", "w40 w41"]
