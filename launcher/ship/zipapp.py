"""The zip file that nodes run: `pslaunch.node` and its imports, as sources and as compiled files.

zipimport reads it. A node with the launcher's version of Python loads the compiled files and starts in
half the time; any other compiles the sources.
"""

from __future__ import annotations

import functools
import io
import marshal
import struct
import zipfile
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from types import CodeType

import pslaunch
import pslaunch.runtime

_MAIN = b"import sys\nfrom pslaunch.node.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"


def list_sources() -> dict[str, Path]:
    """Return the file of each module by its path in the zip; the package may be installed anywhere."""
    launcher, runtime = (Path(str(p.__file__)).parent for p in (pslaunch, pslaunch.runtime))
    found = {"pslaunch/__init__.py": launcher / "__init__.py"}
    for prefix, base, paths in (
        ("pslaunch", launcher, (launcher / "node").rglob("*.py")),
        ("pslaunch/runtime", runtime, [runtime / "__init__.py", *(runtime / "shared").glob("*.py")]),
    ):
        found |= {f"{prefix}/{path.relative_to(base).as_posix()}": path for path in sorted(paths)}
    return found


@functools.cache
def make_zipapp() -> bytes:
    """Return the zip file; `python app.pyz keeper …` or a boot over SSH runs it."""
    files = {"__main__.py": _MAIN}
    for name, path in list_sources().items():
        files[name] = path.read_bytes()
        files[f"{name}c"] = _compile(name, path, files[name])
    return make_zip(files)


def make_zip(files: Mapping[str, bytes]) -> bytes:
    """Return a zip file, the same for the same files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in files.items():  # level 6 takes twice as long for a tenth fewer bytes
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, compresslevel=1)
    return packed.getvalue()


def _compile(name: str, path: Path, source: bytes) -> bytes:
    """Return the compiled file of a module, from Python's cache if possible.

    Marked as unchecked (PEP 552): zipimport compares only Python's version.
    """
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    code = SourceFileLoader(module, str(path)).get_code(module)
    assert code is not None
    compiled = marshal.dumps(_set_filename(code, name), 2)  # later formats depend on counts of references
    return MAGIC_NUMBER + struct.pack("<I", 1) + source_hash(source) + compiled


def _set_filename(code: CodeType, name: str) -> CodeType:
    """Return the code with `name` as its file name: the same bytes on every machine."""
    consts = tuple(_set_filename(c, name) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=name, co_consts=consts)
