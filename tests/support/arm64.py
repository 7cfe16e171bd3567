"""Python for arm64 under qemu-user, with the runtime and a core that is compiled for it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import pytest

from support.others import ROOT, arm64_root

CSRC = ROOT / "runtime" / "csrc"
COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64"
[_MODULE] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
FLAGS = [flag for flag in _MODULE["extra-compile-args"] if not flag.startswith("-O")]
# The kernel starts no programs of another processor: a script is the interpreter, for itself as well.
SCRIPT = """#!/bin/sh
export PYTHONHOME={home} PYTHONPATH={packages} PYTHONDONTWRITEBYTECODE=1
exec {emulator} -0 "$0" -L {root} {python} "$@"
"""


def need_program(name: str) -> str:
    """Return the path of a program; skips the test where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def make_python(folder: Path) -> Path:
    """Return the path of an interpreter, which is made in this folder."""
    root, emulator = arm64_root().resolve(), need_program(EMULATOR)
    runtime, headers = folder / "packages/pslaunch/runtime", folder / "headers"
    runtime.mkdir(parents=True)
    headers.mkdir()
    # Debian's Python.h includes a folder named after the processor; the numbers in it are the same.
    (headers / "aarch64-linux-gnu").symlink_to("/usr/include/x86_64-linux-gnu")
    for source in ("launcher", "runtime"):
        target = runtime.parent if source == "launcher" else runtime
        for path in (ROOT / source).iterdir():
            if path.suffix != ".so" and path.name != "__pycache__":
                (target / path.name).symlink_to(path)
    # -O1: compiled in half the time; test_builds.py has other levels.
    subprocess.run(
        [
            need_program(COMPILER),
            *FLAGS,
            *("-O1", "-shared", "-fPIC", "-pthread"),
            *(f"-D{name}={value}" for name, value in _MODULE["define-macros"]),
            *("-I", CSRC, "-isystem", sysconfig.get_path("include"), "-isystem", headers),
            *(ROOT / name for name in _MODULE["sources"]),
            *("-lm", "-o", runtime / "_core.abi3.so"),
        ],
        check=True,
    )
    paths = {
        "home": root / "usr",
        "packages": folder / "packages",
        "emulator": emulator,
        "root": root,
        "python": root / "usr/bin/python3",
    }
    python = folder / "python"
    python.write_text(SCRIPT.format_map({name: shlex.quote(str(path)) for name, path in paths.items()}))
    python.chmod(0o755)
    return python
