"""Files of data sets: below PADDLE_DATA_HOME, by default ~/.cache/paddle/dataset; nothing is downloaded."""

from __future__ import annotations

import os
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

Files = Iterator[tuple[str, Callable[[], bytes]]]


def find_data_home() -> Path:
    home = os.environ.get("PADDLE_DATA_HOME")
    return Path(home) if home else Path.home() / ".cache" / "paddle" / "dataset"


def read_files(dataset: str, places: Sequence[str], wanted: str | re.Pattern[str]) -> Files:
    """Yield name and reader of each file of a data set whose name matches, of the first place that has one.

    places: folders, bare files and the archive, which is the last, below the data set's own folder.
    """
    home, pattern = find_data_home() / dataset, re.compile(wanted)
    for place in places:
        found = False
        for name, read in _list_files(home, home / place):
            if pattern.match(name):
                found = True
                yield name, read
        if found:
            return
    raise FileNotFoundError(
        f"{dataset}: in {home} no file {pattern.pattern} of {' or '.join(places)} exists; nothing is "
        f"downloaded: put {places[-1]} there, or set PADDLE_DATA_HOME to the folder above {dataset}/"
    )


def number_words(counts: Mapping[str, int], least: int) -> dict[str, int]:
    """Map words that occur more than `least` times to ids, frequent ones first; `<unk>` has the last id."""
    frequent = sorted((-count, word) for word, count in counts.items() if count > least)
    return {word: i for i, (_, word) in enumerate([*frequent, (0, "<unk>")])}


def _list_files(home: Path, place: Path) -> Files:
    if place.is_dir():
        files = (path for path in sorted(place.rglob("*")) if path.is_file())
        yield from ((path.relative_to(home).as_posix(), path.read_bytes) for path in files)
    elif not place.is_file():
        return
    elif place.suffix == ".zip":
        with zipfile.ZipFile(place) as whole:
            yield from ((name, lambda name=name: whole.read(name)) for name in whole.namelist())
    elif place.suffix in (".gz", ".tgz"):
        with tarfile.open(place) as tar:
            for member in tar:  # in the order of the archive, which is compressed as a whole
                if (found := tar.extractfile(member)) is not None:
                    yield member.name.removeprefix("./"), found.read
    else:
        yield place.name, place.read_bytes
