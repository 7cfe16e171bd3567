"""Readers of the book's data sets, on small files in the published layouts."""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pslaunch.runtime as paddle

DATASET = paddle.dataset
FILMS = {
    "ml-1m/movies.dat": "1::Toy Story (1995)::Animation|Comedy\n3::Story of \xc9t\xe9 (2000)::Drama\n",
    "ml-1m/users.dat": "1::F::1::10::48067\n7::M::56::16::70072\n",
    "ml-1m/ratings.dat": "".join(
        f"{(1, 7)[i % 2]}::{(1, 3)[i % 3 > 0]}::{1 + i % 5}::97\n" for i in range(50)
    ),
}
REVIEWS = {
    "train/pos/0_9.txt": "Good, good film!\n",
    "train/pos/1_8.txt": "A good one",
    "train/neg/0_2.txt": "Bad film.",
    "test/pos/0_7.txt": "good",
    "test/neg/0_1.txt": "the bad one",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PADDLE_DATA_HOME", str(tmp_path))
    return tmp_path


def put(folder: Path, files: dict[str, str], encoding: str = "utf-8") -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode(encoding))


def test_prices_are_those_of_the_file_and_numbers_are_scaled(home: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(10, 14)).round(3)
    put(home, {"uci_housing/housing.data": "\n".join("  ".join(map(str, row)) for row in rows)})
    train, test = list(DATASET.uci_housing.train()()), list(DATASET.uci_housing.test()())
    assert (len(train), len(test)) == (8, 2)
    x = (rows - rows.mean(axis=0)) / (rows.max(axis=0) - rows.min(axis=0))
    x[:, 13] = rows[:, 13]
    np.testing.assert_allclose([np.concatenate(one) for one in [*train, *test]], x, atol=1e-12)


@pytest.mark.parametrize("packed", [False, True])
def test_ratings_have_user_and_film(home: Path, packed: bool) -> None:
    movielens = DATASET.movielens
    if packed:
        (home / "movielens").mkdir()
        with zipfile.ZipFile(home / "movielens/ml-1m.zip", "w") as archive:
            for name, text in FILMS.items():
                archive.writestr(name, text.encode("latin-1"))
    else:
        put(home / "movielens", FILMS, "latin-1")
    assert movielens.get_movie_title_dict() == {"of": 0, "story": 1, "toy": 2, "\xe9t\xe9": 3}
    assert movielens.movie_categories() == {"Animation": 0, "Comedy": 1, "Drama": 2}
    numbers = [movielens.max_movie_id(), movielens.max_user_id(), movielens.max_job_id()]
    assert numbers == [3, 7, 16]
    assert movielens.user_info()[7].value() == [7, 0, 6, 16]
    assert movielens.movie_info()[3].value() == [3, [2], [1, 0, 3]]
    train, test = list(movielens.train()()), list(movielens.test()())
    assert (len(train) + len(test), len(test) > 0) == (50, True)
    assert [1, 1, 0, 10, 1, [0, 1], [2, 1], [-3.0]] in train
    assert {sample[-1][0] for sample in train} == {-3.0, -1.0, 1.0, 3.0, 5.0}


@pytest.mark.parametrize("packed", [False, True])
def test_reviews_are_words_and_praise_comes_in_turn(home: Path, packed: bool) -> None:
    imdb = DATASET.imdb
    if packed:
        (home / "imdb").mkdir()
        with tarfile.open(home / "imdb/aclImdb_v1.tar.gz", "w:gz") as tar:
            for name, text in REVIEWS.items():
                info = tarfile.TarInfo(f"aclImdb/{name}")
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
    else:
        put(home / "imdb/aclImdb", REVIEWS)
    words = imdb.build_dict(re.compile(r"aclImdb/train/.*\.txt$"), 1)
    assert words == {"good": 0, "film": 1, "<unk>": 2}
    assert list(imdb.train(words)()) == [([0, 0, 1], 0), ([2, 1], 1), ([2, 0, 2], 0)]
    assert list(imdb.test(words)()) == [([0], 0), ([2, 2, 2], 1)]
    assert imdb.word_dict() == {"<unk>": 0}


@pytest.mark.parametrize(
    "read", [DATASET.uci_housing.train, DATASET.movielens.max_job_id, DATASET.imdb.word_dict]
)
def test_absent_files_are_named(home: Path, read: object) -> None:
    assert callable(read)
    with pytest.raises(FileNotFoundError, match=r"exists; nothing is downloaded: put .* there, or set"):
        read()


@pytest.mark.parametrize(
    ("folder", "read", "file"),
    [
        ("imdb/aclImdb/train/pos", DATASET.imdb.word_dict, r"aclImdb/\(train.test"),
        ("imdb/aclImdb/train/pos", lambda: list(DATASET.imdb.train({"<unk>": 0})()), "aclImdb/train/pos/"),
        ("movielens/ml-1m", DATASET.movielens.max_job_id, "ml-1m/movies.dat"),
        ("uci_housing/housing.data", DATASET.uci_housing.train, "housing.data"),
    ],
)
def test_empty_folders_are_no_data(home: Path, folder: str, read: Callable[[], object], file: str) -> None:
    (home / folder).mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=rf"in .*{folder.split('/')[0]} no file {file}.* exists"):
        read()


@pytest.mark.parametrize("name", ["movies", "users", "ratings"])
def test_each_table_of_films_is_needed(home: Path, name: str) -> None:
    put(home / "movielens", {file: text for file, text in FILMS.items() if name not in file}, "latin-1")
    with pytest.raises(FileNotFoundError, match=f"no file ml-1m/{name}.dat"):
        DATASET.movielens.train()
