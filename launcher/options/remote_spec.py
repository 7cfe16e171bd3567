"""Parts of jobs on other machines, for all backends: package, paths there, preparation. Contacts no host."""

from __future__ import annotations

import os
import posixpath
import string
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final
from zipfile import is_zipfile

from ..errors import SpecError
from ..node.dispatch.manifest import KEPT
from ..node.job import Package
from .args import Split
from .kinds import Value
from .locate import check_folder_to_make, find_folder
from .sources import Given
from .spec import choose_job_name

MAX_NIC_BYTES: Final = 15  # of the kernel


def read_folders(given: Given, workspace: Path, *, sent: bool) -> tuple[str, str, str | None]:
    """Return the job's name, its workspace on the hosts, and its log folder there if one was given."""
    name, log_dir, root_dir = choose_job_name(given, workspace), given.get("log_dir"), given.get("root_dir")
    root = _read_path(root_dir) if root_dir else given.read("root_dir")
    folder = f"{root.rstrip('/')}/{name}" if sent else str(workspace)
    return name, folder, _read_path(log_dir) if log_dir else None


def read_nic(given: Given) -> str:
    """Return the name of the network interface, checked; "" if it is not given."""
    value = given.get("nics")
    if value is None:
        return ""
    name = value.text
    if not name or len(os.fsencode(name)) > MAX_NIC_BYTES or not name.isprintable() or set(name) & set(" /,"):
        raise SpecError(f"{value.shown} is not the name of one network interface, such as eth0")
    return name


def _read_path(value: Value) -> str:
    path = value.text
    if not path.startswith(("/", "~")) or not path.isprintable():
        raise SpecError(f"{value.shown} is not a path on the hosts: expected an absolute path, or one from ~")
    return posixpath.normpath(path)


def read_package(
    given: Given, split: Split, find_sent: Callable[[], tuple[Path, str]]
) -> tuple[Package | None, Path, str]:
    """Return the package, the workspace (here if it is sent, else on the hosts), and the program in it.

    find_sent: returns the folder to send and its program, without `--job_workspace`.
    """
    package, workspace = given.get("job_dispatch_package"), given.get("job_workspace")
    if package and workspace:
        raise SpecError(
            f"{workspace.label}={workspace.text} and {package.label}={package.text} are both given: "
            "the folder is on the hosts already, or it is sent"
        )
    if workspace:
        there = Path(_read_path(workspace))
        return None, there, _find_program(there, split)
    folder, program = find_sent()
    if PurePosixPath(program).is_absolute():
        raise SpecError(f"the program {program} is not in {folder}, and only that is sent to the hosts")
    shards, links = given.get_all("shard"), given.get_all("link")
    sent = Package(str(folder), data_shards=tuple(map(_read_data_shard, shards)), links=_read_links(links))
    sent = sent._replace(data_shard_label=shards[0].label) if shards else sent
    sent = sent._replace(link_label=links[0].label) if links else sent
    return sent, folder, program


def _find_program(workspace: Path, split: Split) -> str:
    """Return the program, relative to a workspace on the hosts."""
    named = split.chosen_program
    path = posixpath.normpath(workspace / named)
    if not named or "\0" in named or not Path(path).is_relative_to(workspace) or path == str(workspace):
        raise SpecError(f"the program {named!r} is not in the workspace {workspace} of the hosts")
    return str(Path(path).relative_to(workspace))


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


def read_programs(given: Given, split: Split, log_dir: str | None, cwd: Path) -> dict[str, Any]:
    """Return the fields for the programs, and for the steps before the start and after the end."""
    wheel, wheelhouse = given.get("wheel"), given.get("wheelhouse")
    return {
        "program_args": (*split.forwarded, *split.program_args),
        "python": None if given.is_set("install") else given.read("python"),
        "log_dir": Path(log_dir) if log_dir else None,
        "wheel": find_wheel(wheel, cwd) if wheel else None,
        "wheelhouse": find_folder(wheelhouse, cwd) if wheelhouse else None,
        "fetch_output": check_folder_to_make(given.get("fetch_output"), cwd),
        "fetch_logs": check_folder_to_make(given.get("fetch_logs"), cwd),
    }


def find_wheel(value: Value, cwd: Path) -> Path:
    path = cwd / value.text
    if path.suffix != ".whl" or not is_zipfile(path):
        raise SpecError(f"{value.shown} is not the file of a wheel (.whl)")
    return path
