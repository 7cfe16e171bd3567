"""Writes seeded stand-ins for the data sets of the book into data/, in the form of the published files.

Labels depend on the rest, so that a model can learn them; nothing in them is true of houses or films.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

DATA = Path("data")
AGES = (1, 18, 25, 35, 45, 50, 56)


def write(path: str, lines: list[str]) -> None:
    """Write lines below data/."""
    whole = DATA / path
    whole.parent.mkdir(parents=True, exist_ok=True)
    whole.write_text("".join(f"{line}\n" for line in lines))


def make_houses(rng: np.random.RandomState) -> None:
    """506 houses: the price is a sum of 13 numbers, with noise."""
    x = rng.normal(size=(506, 13))
    price = 22.5 + x @ rng.normal(scale=2.0, size=13) + rng.normal(size=506)
    write("uci_housing/housing.data", [" ".join(f"{n:.3f}" for n in row) for row in np.c_[x, price]])


def make_ratings(rng: np.random.RandomState) -> None:
    """Ratings of 200 films by 300 users: each age likes some categories."""
    kinds, ages = rng.randint(8, size=(200, 2)), rng.randint(len(AGES), size=300)
    films = [f"Film{i % 40} Part{i % 7} (1999)::Kind{a}|Kind{8 + b}" for i, (a, b) in enumerate(kinds)]
    users = [f"{'MF'[i % 2]}::{AGES[age]}::{i % 21}::0" for i, age in enumerate(ages)]
    taste = rng.normal(scale=1.2, size=(len(AGES), 8))
    ratings = []
    for user, film in zip(rng.randint(300, size=8000), rng.randint(200, size=8000), strict=True):
        liked = 3.5 + taste[ages[user], kinds[film, 0]] + rng.normal(scale=0.4)
        ratings.append(f"{user + 1}::{film + 1}::{min(5, max(1, round(liked)))}::0")
    write("movielens/ml-1m/movies.dat", [f"{i}::{film}" for i, film in enumerate(films, 1)])
    write("movielens/ml-1m/users.dat", [f"{i}::{user}" for i, user in enumerate(users, 1)])
    write("movielens/ml-1m/ratings.dat", ratings)


def make_reviews(rng: np.random.RandomState) -> None:
    """800 reviews of 40 words, of which one in five is of a tone, mostly that of the review."""
    for part in ("train", "test"):
        for i in range(400):
            kind, other = ("pos", "neg") if i % 2 else ("neg", "pos")
            words = []
            for _ in range(40):
                tone = kind if rng.uniform() < 0.75 else other
                words.append(f"{tone}{rng.randint(12)}" if rng.uniform() < 0.2 else f"word{rng.randint(60)}")
            write(f"imdb/aclImdb/{part}/{kind}/{i}_5.txt", [" ".join(words)])


if __name__ == "__main__":
    for make in (make_houses, make_ratings, make_reviews):
        make(np.random.RandomState(0))  # its numbers never change
    print(f"{DATA}/ has seeded stand-ins in the form of uci_housing, movielens and imdb, not their data")
