"""Folders and files of a command line: workspace, program, package, logs. Changes nothing."""

from __future__ import annotations

import contextlib
import itertools
import os
import posixpath
import re
import shlex
import shutil
import string
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Final

from pslaunch.runtime.shared.env import find_near, suggest

from ..errors import SpecError
from ..node.dispatch.manifest import KEPT
from ..node.job import Package
from .args import NEAR, Split
from .kinds import Value
from .sources import Given

_exists = os.path.exists  # Path.exists raises for names that can't be
SHELL: Final = re.compile(r"[\s|&;<>()$`*?\"']")  # in a line for a shell
MAX_NAME_BYTES: Final = 200  # a job's name is a folder's name with room for suffixes


def locate(given: Given, split: Split, cwd: Path) -> tuple[Path, str]:
    """Return the workspace (absolute, links resolved) and the program (relative if inside)."""
    folder = given.get("job_workspace") or given.get("job_dispatch_package")
    if not folder and (split.is_module or _is_command(cwd, split)):
        return cwd.resolve(), find_program(cwd.resolve(), split, cwd)
    if not folder:
        path = Path(os.path.normpath(cwd / split.chosen_program))
        _check_program(
            path, split, "" if split.program else f" in {cwd}; name one, or give --job_workspace=DIR"
        )
        return _find_own_folder(path, split), path.name
    found = find_folder(folder, cwd)
    return found, find_program(found, split, cwd)


def _find_own_folder(program: Path, split: Split) -> Path:
    """Return the program's folder as workspace. Raises SpecError for a folder of PATH, such as /usr/bin."""
    folder = program.parent.resolve()
    commands = {Path(entry).resolve() for entry in os.get_exec_path() if Path(entry).is_absolute()}
    if program.suffix != ".py" and folder in commands:
        raise SpecError(
            f"the program {program} is a command of PATH"
            + (_make_python_hint(split) or "; give a folder for logs and results: --job_workspace=DIR")
        )
    return folder


def find_program(workspace: Path, split: Split, cwd: Path) -> str:
    """Return the program, relative to the workspace if inside. Raises SpecError.

    Of a command of PATH its path; of a module its file if the workspace has it, else its name.
    """
    if split.is_module:
        place = split.chosen_program.replace(".", "/")
        return next((f for f in (f"{place}.py", f"{place}/__main__.py") if _exists(workspace / f)), place)
    path = workspace / split.chosen_program
    if split.program is not None and not _exists(path) and _exists(cwd / split.program):
        path = cwd / split.program
    elif _is_command(workspace, split):
        return str(shutil.which(split.chosen_program))
    _check_program(path, split, f" in the workspace {workspace}")
    path = Path(os.path.normpath(path))
    for inside in (path, path.parent.resolve() / path.name):
        if inside.is_relative_to(workspace):
            return str(inside.relative_to(workspace))
    return str(path)


def check_module(name: str, workspace: Path) -> None:
    """Raise SpecError for a module whose first name neither the workspace nor our Python has."""
    top = name.partition(".")[0]
    with contextlib.suppress(OSError, ValueError):  # the latter for no name, and for __main__
        if find_spec(top) is None and PathFinder.find_spec(top, [str(workspace)]) is None:
            remedy = "; install it, or choose another Python with --python"
            remedy = suggest(top, [path.stem for path in workspace.iterdir()], remedy, NEAR)
            where = f"neither the workspace {workspace} nor {sys.executable} has {top or name}"
            raise SpecError(f"no module {name!r}: {where}{remedy}")


def _is_command(folder: Path, split: Split) -> bool:
    """Return True for a command of PATH that is no file of the folder; Python runs programs itself."""
    name = split.program or "/"
    there = "/" in name or "\0" in name or name.endswith(".py") or _exists(folder / name)
    return not there and not _make_python_hint(split) and shutil.which(name) is not None


def find_folder(value: Value, cwd: Path) -> Path:
    """Return a readable folder of this machine, links resolved. Raises SpecError."""
    path = Path(os.path.normpath(cwd / value.text))
    try:
        os.scandir(path if value.text else "").close()
    except (OSError, ValueError) as e:
        raise SpecError(f"{value.shown}: {getattr(e, 'strerror', e)}") from e
    return path.resolve()


def read_list(path: Path, shown: str) -> str:
    """Return the text of a file of hosts. shown: in messages. Raises SpecError."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise SpecError(f"{shown} is not UTF-8: {e.reason} at byte {e.start}") from None
    except (OSError, ValueError) as e:
        raise SpecError(f"{shown} can't be read: {getattr(e, 'strerror', '') or e}") from None


def _check_program(path: Path, split: Split, place: str) -> None:
    name, shown = split.chosen_program, repr(split.chosen_program)
    if name and not _exists(path) and SHELL.search(name):
        line = shlex.quote(" ".join([name, *map(shlex.quote, split.program_args)]))
        raise SpecError(f"no program {shown}{place}; a line for a shell is given as: sh -c {line}")
    if split.program == "" or not _exists(path):
        other = "; give a file, -m MODULE or a command of PATH" if split.program else ""
        if hint := _make_python_hint(split):
            raise SpecError(f"{name} itself is not given{hint}")
        raise SpecError(f"no program {shown}{place}{_find_near(path, split) or other}")
    if not path.is_file():
        raise SpecError(f"the program {shown} is not a file; name one in it, or -m MODULE")
    if not os.access(path, os.R_OK):
        raise SpecError(f"the program {shown} can't be read: permission denied")
    if path.suffix == ".ipynb":
        remedy = f"jupyter nbconvert --to script {name} makes {Path(name).with_suffix('.py')} of it"
        raise SpecError(f"the program {shown} is a notebook, which is not run: {remedy}")
    if path.suffix == ".py":
        return
    if not os.access(path, os.X_OK):
        raise SpecError(f"the program {shown} is neither a .py file nor executable (try chmod +x)")
    with path.open("rb") as f:
        first = f.readline(MAX_NAME_BYTES)
    if first.startswith(b"#!") and first.endswith(b"\r\n"):
        why = "its lines end with CRLF, so its interpreter is not found"
        raise SpecError(f"the program {shown} can't be run: {why}; convert it: sed -i 's/\\r$//' {name}")


def _make_python_hint(split: Split) -> str:
    """Return the remedy for `python3 train.py`, "" for another program."""
    name = split.chosen_program
    if not re.fullmatch(r"python[\d.]*", Path(name).name):
        return ""
    if split.program_args[:1] != ("-m",) and not any(word.endswith(".py") for word in split.program_args):
        return ""
    words = shlex.join(
        itertools.dropwhile(lambda word: word.startswith("-") and word != "-m", split.program_args)
    )
    return f"; leave {name} out, as in: {words}. Programs in .py run by Python itself; --python chooses it"


def _find_near(path: Path, split: Split) -> str:
    """Return a hint at the file beside a missing program with nearly its name, "" if there is none."""
    named, beside = Path(split.chosen_program), list[str]()
    with contextlib.suppress(OSError, ValueError):
        beside = [item.name for item in path.parent.iterdir() if item.is_file()]
    near = find_near(named.name, beside, NEAR)
    return f"; did you mean {named.with_name(near)}?" if near else ""


def choose_job_name(given: Given, workspace: Path) -> str:
    """Return the given name, or the workspace's. Raises SpecError if it is not usable."""
    value = given.get("job_name")
    name = value.text if value else workspace.name
    if name in ("", ".", "..") or "/" in name or not name.isprintable():
        why = "is not a valid folder name"
    elif len(os.fsencode(name)) > MAX_NAME_BYTES:
        why = f"is longer than {MAX_NAME_BYTES} bytes"
    else:
        return name
    shown = value.shown if value else f"the name of the workspace {str(workspace)!r}"
    raise SpecError(f"{shown} {why}; give --job_name=NAME")


def check_folder_to_make(value: Value | None, cwd: Path) -> Path | None:
    """Check that a folder of this machine exists or can be created, and return it."""
    if value is None:
        return None
    path = Path(os.path.normpath(cwd / value.text))
    there = next((p for p in (path, *path.parents) if _exists(p)), path)
    if not value.text or (there == path and not path.is_dir()):
        raise SpecError(f"{value.shown} is not a folder")
    if not there.is_dir():
        raise SpecError(f"{value.shown} can't be created: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SpecError(f"{value.shown} can't be written: {there}: permission denied, or read-only")
    return path


# --- On other machines. ---


def read_remote_path(value: Value) -> str:
    """Return a path on the hosts. Raises SpecError."""
    path = value.text
    if not path.startswith(("/", "~")) or not path.isprintable():
        raise SpecError(f"{value.shown} is not a path on the hosts: expected an absolute path, or one from ~")
    return posixpath.normpath(path)


def read_package(given: Given, split: Split, cwd: Path) -> tuple[Package | None, Path, str]:
    """Return the package, the workspace (here if it is sent, else on the hosts), and the program in it."""
    if workspace := given.get("job_workspace"):
        there, named = Path(read_remote_path(workspace)), split.chosen_program
        if split.is_module or _is_command(there, split):
            return None, there, find_program(there, split, there)
        path = posixpath.normpath(there / named)
        if not named or "\0" in named or not Path(path).is_relative_to(there) or path == str(there):
            raise SpecError(f"the program {named!r} is not in the workspace {there} of the hosts")
        return None, there, str(Path(path).relative_to(there))
    folder, program = locate(given, split, cwd)
    if PurePosixPath(program).is_absolute() and not _is_command(folder, split):
        raise SpecError(f"the program {program} is not in {folder}, and only that is sent to the hosts")
    shards, links = given.get_all("shard"), given.get_all("link")
    sent = Package(str(folder), data_shards=tuple(map(_read_data_shard, shards)), links=_read_links(links))
    sent = sent._replace(data_shard_label=shards[0].label) if shards else sent
    sent = sent._replace(link_label=links[0].label) if links else sent
    return sent, folder, program


def _read_data_shard(value: Value) -> str:
    """Return a pattern with one place for a file's number: 'data/*-{:05d}'."""
    try:
        places = [part for _, part, _, _ in string.Formatter().parse(value.text) if part is not None]
        name = value.text.format(0)
    except (ValueError, IndexError, KeyError, AttributeError, TypeError) as e:
        raise SpecError(f"{value.shown}: {e}; as in 'data/*-{{:05d}}'") from e
    if len(places) != 1:
        raise SpecError(
            f"{value.shown} has {len(places)} places for a number; expected one, as in 'data/*-{{:05d}}'"
        )
    _check_inside(name, value)
    return value.text


def _read_links(values: Sequence[Value]) -> dict[str, str]:
    links: dict[str, str] = {}
    for value in values:
        name, _, path = value.text.partition("=")
        if not posixpath.isabs(path) or not path.isprintable():
            raise SpecError(f"{value.shown}: expected NAME=PATH with an absolute path of the hosts")
        _check_inside(name, value)
        if posixpath.normpath(name) in links:
            raise SpecError(f"{value.shown}: {name} is given twice")
        links[posixpath.normpath(name)] = path
    return links


def _check_inside(name: str, value: Value) -> None:
    path = posixpath.normpath(name) if name else "."
    if path == "." or path.startswith(("/", "../")) or path == ".." or not path.isprintable():
        raise SpecError(f"{value.shown}: {name!r} is not inside the workspace")
    if path.partition("/")[0] in KEPT:
        raise SpecError(f"{value.shown}: {path.partition('/')[0]} in the workspace is pslaunch's own")


def find_wheel(value: Value, cwd: Path) -> Path:
    """Return the file of a wheel. Raises SpecError."""
    from zipfile import is_zipfile  # slow: only where used

    path = cwd / value.text
    if path.suffix != ".whl" or not is_zipfile(path):
        raise SpecError(f"{value.shown} is not the file of a wheel (.whl)")
    return path
