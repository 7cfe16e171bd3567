"""The job of `pslaunch local` from its options: this machine, or a simulated cluster."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from ...errors import SpecError
from ...node.job import Count, Node, Package
from ...options.kinds import Value
from ...options.locate import check_folder_to_make, choose_job_name, locate
from ...options.spec import JobSpec, Site, check_spec, read_common_options, read_draft
from ..face import CommandLine


def make_local_spec(line: CommandLine) -> JobSpec:
    """Return the job of `pslaunch local`. Raises SpecError; looks at files, changes nothing."""
    given, split, cwd, environ = line.given, line.split, line.cwd, line.environ
    # Options are checked before the program.
    draft, options = read_draft("local", given, environ), read_common_options(given, split, environ)
    options["python"] = _find_python(given.get("python"), cwd, environ)
    options["log_dir"] = check_folder_to_make(given.get("log_dir"), cwd)
    workspace, program = locate(given, split, cwd)
    spec = JobSpec(
        draft=draft._replace(name=choose_job_name(given, workspace)),
        workspace=workspace,
        site=make_local_site(workspace, options["log_dir"], given.read("nodes")),
        program=program,
        **options,
    )
    check_spec(spec, given)
    return spec


def make_local_site(workspace: Path, log_dir: Path | None = None, nodes: int = 1) -> Site:
    """Return this machine as node 0; further nodes of a simulated cluster get copies of the workspace.

    Logs, output and lock of node 0 are in the workspace, or all below `log_dir`; copies are below its lock.
    """
    first = _make_node(0, workspace, log_dir)
    copies = Path(first.state_dir) / "nodes"
    rest = [
        _make_node(i, copies / str(i) / workspace.name)._replace(dispatched=True) for i in range(1, nodes)
    ]
    skip: tuple[str, ...] = ()
    if log_dir and log_dir != workspace and log_dir.is_relative_to(workspace):
        skip = (str(log_dir.relative_to(workspace)),)
    package = Package(str(workspace), skip, links_out=True) if rest else None
    return Site((first, *rest), Count("per_node", 1), remote=False, package=package)


def _make_node(i: int, workspace: Path, log_dir: Path | None = None) -> Node:
    name = "localhost" if i == 0 else f"localhost-{i}"
    addr = f"127.0.{i // 250}.{i % 250 + 1}"  # the whole of 127/8 is this machine
    return Node(i, name, addr).place_in(str(workspace), str(log_dir) if log_dir else None)


def _find_python(value: Value | None, cwd: Path, environ: Mapping[str, str]) -> str:
    if value is None:
        return sys.executable
    # Links are not resolved: Python finds a virtual environment by the link's folder.
    text = value.text
    found = shutil.which(cwd / text if "/" in text else text, path=environ.get("PATH"))
    if not text or found is None:
        raise SpecError(f"{value.shown} is not an executable file or a command in PATH")
    return str(cwd / found)
