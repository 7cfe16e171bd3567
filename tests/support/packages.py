"""Packages of an exact size."""

from __future__ import annotations

import random
from pathlib import Path

from pslaunch.node.dispatch.archive import pack
from pslaunch.node.job import Package
from pslaunch.ship.package import list_package

TRIES = 200


def fill_package(folder: Path, packed_bytes: int) -> None:
    """Write a file of random bytes, so that the folder is a package of this size once it is packed."""
    package = Package(str(folder))
    size = packed_bytes
    for number in range(TRIES):  # a hash in the manifest may take a byte more or less
        (folder / "data").write_bytes(random.Random(number).randbytes(size))
        missing = packed_bytes - len(pack(list_package(package, {})))
        if not missing:
            return
        size += missing
    raise AssertionError(f"no package of {packed_bytes} bytes")
