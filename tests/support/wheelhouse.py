"""A folder of wheels of what is installed here, so that a host without a network can install the same."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from importlib.metadata import distribution, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pslaunch.ship.wheel import RUNTIME_NEEDS


def make_wheelhouse(folder: Path, names: Sequence[str] = RUNTIME_NEEDS) -> Path:
    """Make wheels, of what the runtime needs by default, for this Python's version and processor."""
    folder.mkdir()
    for name in names:
        _repack(name, folder)
    return folder


def list_needs(*names: str) -> list[str]:
    """Return these distributions and all that they need here, directly or not."""
    found = [*map(canonicalize_name, names)]
    for name in found:  # which grows
        for need in map(Requirement, requires(name) or ()):
            is_new = canonicalize_name(need.name) not in found
            if is_new and (not need.marker or need.marker.evaluate({"extra": ""})):
                found.append(canonicalize_name(need.name))
    return [*found]


def _repack(name: str, folder: Path) -> None:
    installed = distribution(name)
    said = (installed.read_text("WHEEL") or "").splitlines()
    tags = [line.partition(": ")[2].split("-") for line in said if line.startswith("Tag: ")]
    tag = "-".join(".".join(dict.fromkeys(parts)) for parts in zip(*tags, strict=True))
    files = [f for f in installed.files or () if ".." not in f.parts and f.suffix != ".pyc"]
    stem = f"{name.replace('-', '_')}-{installed.version}"
    record = next(f for f in files if f.name == "RECORD")
    with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w") as wheel:
        for file in files:
            if file != record:
                wheel.write(str(file.locate()), str(file))
        wheel.writestr(str(record), "".join(f"{file},,\n" for file in files))
