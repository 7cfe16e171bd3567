"""Ratings of films in the form of v2's `dataset.movielens`: user, film, and the rating from -3 to 5.

Reads the folder `ml-1m`, or `ml-1m.zip` with it, below `movielens/` in PADDLE_DATA_HOME. Words of titles and
categories have ids in the order of characters.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engine.ops.signature import make_function
from .data_home import find_data_home, read_files

__all__ = [
    "age_table", "get_movie_title_dict", "max_job_id", "max_movie_id", "max_user_id", "movie_categories",
    "movie_info", "test", "train", "user_info",
]  # fmt: skip

age_table = [1, 18, 25, 35, 45, 50, 56]


@dataclass(frozen=True, slots=True)
class MovieInfo:
    """A film: its number, its categories, its title without the year, and the ids of both."""

    index: int
    categories: list[str]
    title: str
    ids: tuple[list[int], list[int]]

    def value(self) -> list[Any]:
        """Return its part of a sample: number, ids of categories, ids of the title's words."""
        return [self.index, *self.ids]


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user: number, gender, place of the age in `age_table`, and job."""

    index: int
    is_male: bool
    age: int
    job_id: int

    def value(self) -> list[int]:
        """Return its part of a sample: number, 0 for a man, age and job."""
        return [self.index, int(not self.is_male), self.age, self.job_id]


def _show(name: str, text: str, find: Callable[[Mapping[str, Any]], Any]) -> Callable[[], Any]:
    return make_function(f"movielens.{name}", text, lambda: find(_load(find_data_home())))


train = _show("train", "a reader of nine ratings of ten: the values of user and film, and [rating]",
              lambda of: lambda: _read_samples(of, is_test=False))  # fmt: skip
test = _show("test", "a reader of the others", lambda of: lambda: _read_samples(of, is_test=True))
get_movie_title_dict = _show("get_movie_title_dict", "the id of each word of a title", lambda of: of["words"])
movie_categories = _show("movie_categories", "the id of each category", lambda of: of["categories"])
movie_info = _show("movie_info", "the films by their numbers", lambda of: of["movies"])
user_info = _show("user_info", "the users by their numbers", lambda of: of["users"])
max_movie_id = _show("max_movie_id", "the highest number of a film", lambda of: max(of["movies"]))
max_user_id = _show("max_user_id", "the highest number of a user", lambda of: max(of["users"]))
max_job_id = _show("max_job_id", "the highest job", lambda of: max(u.job_id for u in of["users"].values()))


def _read_samples(tables: Mapping[str, Any], *, is_test: bool) -> Iterator[list[Any]]:
    drawn = random.Random(0)
    for user, film, rating, _ in tables["ratings"]:
        if (drawn.random() < 0.1) == is_test:
            values = tables["users"][int(user)].value() + tables["movies"][int(film)].value()
            yield [*values, [float(rating) * 2 - 5]]


@functools.cache
def _load(home: Path) -> Mapping[str, Any]:
    rows = {}
    for table in ("movies", "users", "ratings"):
        for name, read in read_files("movielens", ["ml-1m", "ml-1m.zip"], f"ml-1m/{table}.dat$"):
            rows[name] = [line.split("::") for line in read().decode("latin-1").splitlines()]
    films = [(int(i), re.sub(r"\(\d+\)$", "", title), kinds) for i, title, kinds in rows["ml-1m/movies.dat"]]
    words = _number(word.lower() for _, title, _ in films for word in title.split())
    categories = _number(name for _, _, kinds in films for name in kinds.split("|"))
    tables: dict[str, dict[Any, Any]] = {"words": words, "categories": categories, "movies": {}, "users": {}}
    for i, title, kinds in films:
        names = kinds.split("|")
        ids = [categories[name] for name in names], [words[word.lower()] for word in title.split()]
        tables["movies"][i] = MovieInfo(i, names, title, ids)
    for number, gender, age, job, _ in rows["ml-1m/users.dat"]:
        user = UserInfo(int(number), gender == "M", age_table.index(int(age)), int(job))
        tables["users"][user.index] = user
    return {**tables, "ratings": rows["ml-1m/ratings.dat"]}


def _number(words: Iterable[str]) -> dict[str, int]:
    return {word: i for i, word in enumerate(sorted(set(words)))}
