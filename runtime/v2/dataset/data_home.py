"""Files of data sets: below PADDLE_DATA_HOME, by default ~/.cache/paddle/dataset; nothing is downloaded."""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

Files = Iterator[tuple[str, Callable[[], bytes]]]


def find_data_home() -> Path:
    """Return the folder that has the data sets."""
    home = os.environ.get("PADDLE_DATA_HOME")
    return Path(home) if home else Path.home() / ".cache" / "paddle" / "dataset"


def read_files(dataset: str, root: str, archive: str) -> Files:
    """Yield name and reader of each file of a data set: of its folder `root`, or the archive of it."""
    home = find_data_home() / dataset
    if (home / root).exists():
        for path in sorted((home / root).rglob("*")) if (home / root).is_dir() else [home / root]:
            yield path.relative_to(home).as_posix(), path.read_bytes
    elif not (home / archive).is_file():
        raise FileNotFoundError(
            f"{dataset}: neither {home / archive} nor {home / root} exists; nothing is downloaded: put "
            f"{archive} there, or set PADDLE_DATA_HOME to the folder above {dataset}/"
        )
    elif zipfile.is_zipfile(home / archive):
        with zipfile.ZipFile(home / archive) as whole:
            yield from ((name, lambda name=name: whole.read(name)) for name in whole.namelist())
    else:
        with tarfile.open(home / archive) as tar:
            for member in tar:  # in the order of the archive, which is compressed as a whole
                if (found := tar.extractfile(member)) is not None:
                    yield member.name.removeprefix("./"), found.read
