"""The Penn Treebank reader, on a small archive in the published layout."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path

import pytest

import pslaunch.runtime as paddle

TRAIN = "the cat sat on the mat\nthe dog <unk> on\n"
VALID = "the cat on the dog\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PADDLE_DATA_HOME", str(tmp_path))
    (tmp_path / "imikolov").mkdir()
    return tmp_path / "imikolov"


def pack(home: Path) -> None:
    with tarfile.open(home / "simple-examples.tgz", "w:gz") as tar:
        for name, text in (("ptb.train.txt", TRAIN), ("ptb.valid.txt", VALID)):
            info = tarfile.TarInfo(f"./simple-examples/data/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))


def unpack(home: Path) -> None:
    (home / "ptb.train.txt").write_text(TRAIN)
    (home / "ptb.valid.txt").write_text(VALID)


@pytest.mark.parametrize("put", [pack, unpack])
def test_dataset_has_the_dictionary_and_ngrams_of_v2(home: Path, put: object) -> None:
    assert callable(put)
    put(home)
    imikolov = paddle.dataset.imikolov
    words = imikolov.build_dict(min_word_freq=1)
    # the 5; <e>, <s> and on 3, in the order of characters; cat and dog 2; the rest is unknown
    assert words == {"the": 0, "<e>": 1, "<s>": 2, "on": 3, "cat": 4, "dog": 5, "<unk>": 6}
    grams = list(imikolov.test(words, 5)())
    assert grams == [(2, 0, 4, 3, 0), (0, 4, 3, 0, 5), (4, 3, 0, 5, 1)]
    assert next(imikolov.train(words, 3)()) == (2, 0, 4)
    sequences = list(imikolov.test(words, 0, imikolov.DataType.SEQ)())
    assert sequences == [([2, 0, 4, 3, 0, 5], [0, 4, 3, 0, 5, 1])]


def test_archive_is_read_for_what_the_folder_lacks(home: Path) -> None:
    pack(home)
    (home / "simple-examples/data").mkdir(parents=True)
    (home / "simple-examples/data/ptb.valid.txt").write_text("the mat\n")
    imikolov = paddle.dataset.imikolov
    words = {"the": 0, "mat": 1, "<s>": 2, "<e>": 3, "<unk>": 4}
    assert list(imikolov.test(words, 2)()) == [(2, 0), (0, 1), (1, 3)]
    assert next(imikolov.train(words, 3)()) == (2, 0, 4)


def test_folder_goes_before_bare_files(home: Path) -> None:
    unpack(home)
    (home / "simple-examples/data").mkdir(parents=True)
    (home / "simple-examples/data/ptb.valid.txt").write_text("the mat\n")
    words = {"the": 0, "mat": 1, "<s>": 2, "<e>": 3, "<unk>": 4}
    assert len(list(paddle.dataset.imikolov.test(words, 2)())) == 3


@pytest.mark.parametrize("packed", [False, True])
def test_file_that_the_data_lacks_is_named(home: Path, packed: bool) -> None:
    (home / "simple-examples/data").mkdir(parents=True)
    (home / "simple-examples/data/ptb.valid.txt").write_text(VALID)
    if packed:
        tarfile.open(home / "simple-examples.tgz", "w:gz").close()
    text = rf"imikolov: in {re.escape(str(home))} no file .*ptb\.train\.txt.* of simple-examples or"
    with pytest.raises(FileNotFoundError, match=text):
        paddle.dataset.imikolov.build_dict()
    with pytest.raises(FileNotFoundError, match=text):
        list(paddle.dataset.imikolov.train({"<unk>": 0}, 2)())


def test_absent_data_is_named(home: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing is downloaded: put simple-examples"):
        paddle.dataset.imikolov.build_dict()
