"""Files of other programs: PaddlePaddle's .pdparams and numpy's .npz, with a digest behind their content.

Their readers ignore it. Files without one are taken as they are.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from .objects import SetError
from .saving import hash_content, write_whole

MARK = b"pslaunch sha256 "
TRAILER_BYTES = len(MARK) + 64
AnyArray = npt.NDArray[Any]
_CLASSES = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"), ("builtins", "bytes")}
_CLASSES |= {(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}
_CLASSES |= {(f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")}


def check_content(path: Path, f: IO[bytes]) -> bool:
    """Return True if the file has a digest, which must be that of its content; rewind. Raises SetError."""
    end = max(f.seek(0, os.SEEK_END) - TRAILER_BYTES, 0)
    f.seek(end)
    trailer = f.read()
    f.seek(0)
    has = trailer.startswith(MARK)
    if has and hash_content(f, end).encode() != trailer[len(MARK) :]:
        raise SetError(f"{path} is damaged: its digest does not match its content; take another copy")
    f.seek(0)
    return has


class _Unpickler(pickle.Unpickler):
    """Takes arrays alone: a pickle could else run any program."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _CLASSES:
            raise pickle.UnpicklingError(f"it has a {module}.{name}, expected arrays by name")
        return super().find_class(module, name)


def read_pdparams(path: Path) -> dict[str, AnyArray]:
    """Return the arrays of a .pdparams file by name. Raises SetError, OSError."""
    with path.open("rb") as f:
        has = check_content(path, f)
        try:
            found = _Unpickler(f, encoding="latin1").load()
        except Exception as e:  # a damaged pickle raises any
            raise SetError(f"{path} is damaged, or is no file of PaddlePaddle's parameters: {e}") from None
        if not has and f.read(1):
            raise SetError(f"{path} is damaged: it has bytes behind its end")
    if not isinstance(found, dict):
        raise SetError(f"{path} is no file of PaddlePaddle's parameters: it has no names")
    return {name: one for name, one in found.items() if isinstance(one, np.ndarray)}


def write_pdparams(path: Path, arrays: Mapping[str, AnyArray]) -> None:
    """Write arrays by name as PaddlePaddle 2's static.save does. Raises OSError."""

    def write(f: IO[bytes]) -> None:
        pickle.dump(dict(arrays), f, protocol=4)
        _seal(f, f.tell())

    write_whole(path, write)


def _seal(f: IO[bytes], end: int) -> None:
    f.seek(0)
    f.write(MARK + hash_content(f, end).encode())


def read_npz(path: Path) -> dict[str, AnyArray]:
    """Return the arrays of an .npz file by name. Raises SetError, OSError."""
    with path.open("rb") as f:
        has = check_content(path, f)
        try:
            with zipfile.ZipFile(f) as archive:
                if not has and archive.comment:
                    raise ValueError("it has an unknown comment")
            f.seek(0)
            with np.load(f, allow_pickle=False) as found:
                return dict(found)
        except (ValueError, zipfile.BadZipFile, EOFError, KeyError, NotImplementedError, RuntimeError) as e:
            raise SetError(f"{path} is damaged, or is no file of numpy's arrays: {e}") from None


def write_npz(path: Path, arrays: Iterable[tuple[str, AnyArray]]) -> None:
    """Write arrays by name, one at a time; the digest is the comment of the archive. Raises OSError."""

    def write(f: IO[bytes]) -> None:
        with zipfile.ZipFile(f, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, array in arrays:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
            archive.comment = MARK + bytes(64)
        _seal(f, f.seek(-TRAILER_BYTES, os.SEEK_END))

    write_whole(path, write)


def fit_shape(array: AnyArray, shape: tuple[int, int], what: str) -> AnyArray:
    """Return an array in a parameter's shape, whose rows may be any number of axes there. Raises SetError."""
    if array.size != shape[0] * shape[1] or array.shape[-1:] != shape[1:]:
        raise SetError(f"{what} has the shape {array.shape}, the program {shape}")
    return array.reshape(shape).astype(np.float32)
