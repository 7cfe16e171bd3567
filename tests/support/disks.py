"""Disks that are full, or read-only."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(folder: Path, *words: str) -> Iterator[Path]:
    """Mount something at `folder`; skips where that is not allowed."""
    mount = subprocess.run(["mount", *words, str(folder)], capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"a file system can't be mounted here: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 256 KiB at `folder`."""
    folder.mkdir()
    with mounted(folder, "-t", "tmpfs", "-o", "size=256k", "none"):
        yield folder


def fill(disk: Path, name: str = "ballast") -> None:
    """Write until nothing more fits."""
    with contextlib.suppress(OSError), (disk / name).open("wb", buffering=0) as f:
        while f.write(b"x" * 4096):
            pass
