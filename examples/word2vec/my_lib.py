"""Functions that training programs share: they choose this trainer's files and read them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

Sample = tuple[int, ...]
Reader = Callable[[], Iterator[Sample]]


def is_alone() -> bool:
    """Return True if there are no pservers, so that the program trains by itself."""
    return not os.environ.get("PADDLE_INIT_PSERVERS")


def count_trainers() -> int:
    """Return the number of trainers of the job; 1 if the environment does not say it."""
    return int(os.environ.get("PADDLE_INIT_NUM_GRADIENT_SERVERS", "1"))


def get_trainer_id() -> int:
    """Return the number of this trainer, from 0."""
    return int(os.environ.get("PADDLE_INIT_TRAINER_ID", "0"))


def find_data_folder(name: str) -> Path:
    """`train` -> `train_data_dir/train` where there is such a folder, else `train_data_dir`."""
    flat = Path(f"{name}_data_dir")
    return flat / name if (flat / name).is_dir() else flat


def list_own_files(folder: Path, count: int, own: int) -> list[Path]:
    """The files `…-00000` of a folder whose number modulo `count` is `own`, in order of numbers.

    Files without such a suffix are left out: `train.txt` itself is all of its pieces.
    """
    found = []
    for path in folder.iterdir():
        _, dash, suffix = path.name.rpartition("-")
        if dash and suffix.isdigit() and int(suffix) % count == own:
            found.append((int(suffix), path))
    return [path for _, path in sorted(found)]


def make_reader(name: str) -> Reader:
    """Samples of this trainer's part of the `train` or `test` data: tuples of word ids."""

    def read_samples() -> Iterator[Sample]:
        for path in list_own_files(find_data_folder(name), count_trainers(), get_trainer_id()):
            with path.open() as lines:
                for line in lines:
                    yield tuple(map(int, line.split(",")))

    return read_samples
