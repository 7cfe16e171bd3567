"""Folders and files of a command line: workspace, program, logs. Changes nothing."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from pathlib import Path
from typing import Final

from ..errors import SpecError
from .args import Split, find_nearest
from .kinds import Value
from .sources import Given

MAX_NAME_BYTES: Final = 200  # a job's name is a folder's name with room for suffixes


def locate(given: Given, split: Split, cwd: Path) -> tuple[Path, str]:
    """Return the workspace (absolute, links resolved) and the program (relative if inside)."""
    workspace, package = given.get("job_workspace"), given.get("job_dispatch_package")
    if workspace and package:
        raise SpecError(
            f"{workspace.label}={workspace.text} and {package.label}={package.text} are both given: "
            "give only one"
        )
    folder = workspace or package
    if not folder:
        path = _make_absolute(split.chosen_program, cwd)
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
    """Return the program, relative to the workspace if inside. Raises SpecError."""
    path = workspace / split.chosen_program
    if split.program is not None and not _exists(path) and _exists(cwd / split.program):
        path = cwd / split.program
    _check_program(path, split, f" in the workspace {workspace}")
    path = Path(os.path.normpath(path))
    for inside in (path, path.parent.resolve() / path.name):
        if inside.is_relative_to(workspace):
            return str(inside.relative_to(workspace))
    return str(path)


def _make_absolute(text: str, cwd: Path) -> Path:
    try:
        return Path(os.path.normpath(cwd / text))
    except ValueError as e:  # an embedded NUL
        raise SpecError(f"{text!r} is not a path: {e}") from e


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def find_folder(value: Value, cwd: Path) -> Path:
    """Return a readable folder of this machine, links resolved. Raises SpecError."""
    path = _make_absolute(value.text, cwd)
    if not value.text or not _exists(path):
        raise SpecError(f"{value.shown}: no such folder")
    if not path.is_dir():
        raise SpecError(f"{value.shown} is not a folder")
    if not os.access(path, os.R_OK | os.X_OK):
        raise SpecError(f"{value.shown} can't be read: permission denied")
    return path.resolve()


def _check_program(path: Path, split: Split, place: str) -> None:
    shown = repr(split.chosen_program)
    if split.program == "" or not _exists(path):
        near = _make_python_hint(split) or _find_near(path, split)
        raise SpecError(f"no program {shown}{place}{near}{_make_forward_hint(split)}")
    if not path.is_file():
        raise SpecError(f"the program {shown} is not a file")
    if not os.access(path, os.R_OK):
        raise SpecError(f"the program {shown} can't be read: permission denied")
    if path.suffix != ".py" and not os.access(path, os.X_OK):
        raise SpecError(f"the program {shown} is neither a .py file nor executable (try chmod +x)")


def _make_python_hint(split: Split) -> str:
    """Return the remedy for `python3 train.py`, "" for another program."""
    name = split.chosen_program
    if not re.fullmatch(r"python[\d.]*", Path(name).name) or not split.program_args:
        return ""
    words = shlex.join(split.program_args)
    return f"; leave {name} out, as in: {words}. Programs in .py run by Python itself; --python chooses it"


def _find_near(path: Path, split: Split) -> str:
    """Return a hint at the file beside a missing program with nearly its name, "" if there is none."""
    named, beside = Path(split.chosen_program), list[str]()
    with contextlib.suppress(OSError, ValueError):
        beside = [item.name for item in path.parent.iterdir() if item.is_file()]
    near = find_nearest(named.name, beside)
    return f"; did you mean {named.with_name(near)}?" if near else ""


def _make_forward_hint(split: Split) -> str:
    last = split.forwarded[-1] if split.forwarded else ""
    if not last or "=" in last or split.program is None:
        return ""
    return f" (as a value of {last}, write {last}={split.program})"


def choose_name(workspace: Path) -> str:
    """Return the workspace's name as default job name. Raises SpecError if it is not usable."""
    name = workspace.name
    if not name:
        why = "no name"
    elif not name.isprintable():
        why = "control characters in its name"
    elif len(os.fsencode(name)) > MAX_NAME_BYTES:
        why = f"its name is longer than {MAX_NAME_BYTES} bytes"
    else:
        return name
    raise SpecError(
        f"the workspace {str(workspace)!r} can't be used as job name ({why}); give --job_name=NAME"
    )


def check_folder_to_make(value: Value | None, cwd: Path) -> Path | None:
    """Check that a folder of this machine exists or can be created, and return it."""
    if value is None:
        return None
    path = _make_absolute(value.text, cwd)
    there = next((p for p in (path, *path.parents) if _exists(p)), path)
    if not value.text or (there == path and not path.is_dir()):
        raise SpecError(f"{value.shown} is not a folder")
    if not there.is_dir():
        raise SpecError(f"{value.shown} can't be created: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SpecError(f"{value.shown} can't be written: {there}: permission denied, or read-only")
    return path
