"""A wheel of the running pslaunch, for installation on nodes.

Made from the imported files: works from an installed wheel and from an editable install, without a build
or the network. The same files give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import sysconfig
import time
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pslaunch
import pslaunch.runtime
import pslaunch.templates

from ..errors import PreflightError
from .package import find_caches
from .zipapp import make_zip

RUNTIME_NEEDS: Final = ("numpy",)  # all other dependencies are the launcher's
RUNTIME_FILES: Final = ("pslaunch/__init__.py", "pslaunch/py.typed", "pslaunch/runtime/", "pslaunch/torch/")
UNWANTED_S: Final = 30 * 86400.0
_SUFFIXES: Final = (".py", ".pyi", ".typed", ".so", ".yaml", ".j2")


def list_pins() -> list[str]:
    """Return the runtime's dependencies in the versions installed here: equal bits need the same numpy."""
    return [f"{name}=={distribution(name).version}" for name in RUNTIME_NEEDS]


def _make_tag() -> str:
    """Return the tag for every Python from 3.11 on, of this system and processor."""
    return f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def make_wheel_name() -> str:
    return f"pslaunch-{pslaunch.__version__}-{_make_tag()}.whl"


def keep_wheel(given: Path | None, environ: Mapping[str, str]) -> Path:
    """Store one wheel, our own or the `given` one, in the user's caches; return its folder.

    Removes wheels that were not used for a month. Raises OSError, PreflightError.
    """
    name, data = (given.name, given.read_bytes()) if given else (make_wheel_name(), make_wheel())
    kept = find_caches(environ) / "wheels"
    folder = kept / hashlib.sha256(data).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / name).exists():
        new = kept / f"{folder.name}.{os.getpid()}"
        new.write_bytes(data)
        new.replace(folder / name)
    os.utime(folder)
    for other in kept.iterdir():
        if other.is_dir() and time.time() - other.stat().st_mtime > UNWANTED_S:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def cut_wheel(path: Path) -> bytes:
    """Return the runtime of a wheel of pslaunch. Raises OSError, BadZipFile."""
    with ZipFile(path) as wheel:
        return make_zip(
            {name: wheel.read(name) for name in wheel.namelist() if name.startswith(RUNTIME_FILES)}
        )


def make_wheel(parts: tuple[str, ...] = ("",)) -> bytes:
    """Return our wheel, with the files whose paths begin as one of `parts`. Raises PreflightError."""
    files = _read_files(parts)
    if not any(name.endswith(".so") for name in files):
        raise PreflightError(
            "the C core of this pslaunch is not built: install pslaunch (pip install), then try again"
        )
    version, tag = pslaunch.__version__, _make_tag()
    info = f"pslaunch-{version}.dist-info"
    here = distribution("pslaunch")
    metadata = here.read_text("METADATA") or here.read_text("PKG-INFO")  # the latter in a source tree
    assert metadata is not None
    files[f"{info}/METADATA"] = metadata.encode()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: pslaunch {version}\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\npslaunch = pslaunch.__main__:main\n"
    record = "".join(f"{name},sha256={_hash(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    return make_zip(files)


def _read_files(parts: tuple[str, ...]) -> dict[str, bytes]:
    """Return contents by path in the wheel; in an editable install the packages have separate folders."""
    found: dict[str, bytes] = {}
    for package in (pslaunch, pslaunch.runtime, pslaunch.templates):
        base = Path(str(package.__file__)).parent
        prefix = package.__name__.replace(".", "/")
        for path in sorted(base.rglob("*")):
            name = f"{prefix}/{path.relative_to(base).as_posix()}"
            name = name.replace("pslaunch/runtime/torch/", "pslaunch/torch/")  # its folder and its name
            wanted = path.suffix in _SUFFIXES and name.startswith(parts)
            if wanted and path.is_file() and "__pycache__" not in path.parts:
                found[name] = path.read_bytes()
    return found


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
