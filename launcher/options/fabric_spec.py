"""The job of `pslaunch fabric` from its options: its hosts, the files sent and fetched.

Rejected values raise SpecError with option, place and value. No host is contacted.
"""

from __future__ import annotations

import os
import posixpath
import string
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, NamedTuple

from ..errors import SpecError
from ..node.dispatch.manifest import KEPT
from ..node.job import Count, Node, Package
from .args import Split
from .hosts import Host, choose, parse_hosts, split_list
from .kinds import Value
from .locate import DEFAULT_PROGRAM, check_folder_to_make, find_folder, find_program
from .options import DEFAULT
from .sources import Given, gather
from .spec import (
    Elsewhere,
    JobSpec,
    Site,
    check_spec,
    choose_job_name,
    read_common_options,
    refuse_without_effect,
)

MAX_NIC_BYTES: Final = 15  # of the kernel


class Reach(NamedTuple):
    """The hosts of a job and their connection options."""

    hosts: tuple[Host, ...]
    agent_python: str | None = None  # path of the agent's Python there; None: search
    connect_timeout_s: float = DEFAULT["connect_timeout"]
    max_connections: int = DEFAULT["max_connections"]  # opened at once
    host_key_policy: Literal["ask", "accept_new", "reject"] | None = (
        None  # None: ask where there is a terminal
    )


def make_fabric_spec(given: Given, split: Split, *, cwd: Path, environ: Mapping[str, str]) -> JobSpec:
    """Return the job of `pslaunch fabric`: the given values, and defaults for all others.

    cwd: absolute; relative paths of this machine start there. Raises SpecError.
    """
    options = read_common_options(given, environ)
    reach = _read_reach(given)
    package, workspace, program = _read_package(given, split, cwd)
    name, log_dir = choose_job_name(given, workspace), given.get("log_dir")
    logs = _read_path(log_dir) if log_dir else None
    root_dir = given.get("root_dir")
    root = _read_path(root_dir) if root_dir else given.read("root_dir")
    folder = f"{root.rstrip('/')}/{name}" if package else str(workspace)
    sent = package is not None
    nodes = [Node(i, h.text, "", ranks=h.times, dispatched=sent) for i, h in enumerate(reach.hosts)]
    spec = JobSpec(
        backend="fabric",
        job_name=name,
        workspace=workspace,
        site=Site(
            tuple(node.place_in(folder, logs) for node in nodes),
            pservers=Count("per_rank", 1),
            trainers=Count("per_rank", 1),
            package=package,
            nic=_read_nic(given),
            reach=reach,
        ),
        program=program,
        program_args=(*split.forwarded, *split.program_args),
        trainer_flags=given.trainer_flags,
        python=None if options["install"] else given.read("python"),
        log_dir=Path(logs) if logs else None,
        **_read_preparation(given, cwd),
        **options,
    )
    check_spec(spec, given)
    _check_fabric_effects(spec, given)
    return spec


def find_first_host(conf: str, cwd: Path) -> Elsewhere:
    """Return the first host of a conf.py, which knows its jobs. Raises SpecError."""
    reach = _read_reach(gather("fabric", Split(ours=(f"--conf={conf}",)), cwd))
    return Elsewhere("fabric", reach, f"{reach.hosts[0].text}, the first of the hosts")


def _read_reach(given: Given) -> Reach:
    return Reach(
        hosts=tuple(_read_hosts(given)),
        agent_python=given.read("agent_python"),
        connect_timeout_s=given.read("connect_timeout"),
        max_connections=given.read("max_connections"),
        host_key_policy=given.read("host_key_policy"),
    )


def _read_hosts(given: Given) -> list[Host]:
    words = [(word, value.label) for value in given.get_all("hosts") for word in split_list(value.text)]
    found = parse_hosts([word for word, _ in words], [label for _, label in words])
    if not found:
        conf = given.get("conf")
        file = conf.text if conf else "conf.py" if "conf.py" in given.files else ""
        why = f"{file} has no HOSTS" if file else "there is no conf.py with HOSTS"
        raise SpecError(f"no hosts: {why}; give --hosts=user@host,...")
    return choose(found, given.get_all("include"), given.get_all("exclude"))


def _read_nic(given: Given) -> str:
    value = given.get("nics")
    if value is None:
        return ""
    name = value.text
    if not name or len(os.fsencode(name)) > MAX_NIC_BYTES or not name.isprintable() or set(name) & set(" /,"):
        raise SpecError(f"{value.shown} is not the name of one network interface, such as eth0")
    return name


def _read_path(value: Value) -> str:
    """Return a checked path on the hosts."""
    path = value.text
    if not path.startswith(("/", "~")) or not path.isprintable():
        raise SpecError(f"{value.shown} is no path on the hosts: expected an absolute path, or one from ~")
    return posixpath.normpath(path)


def _read_package(given: Given, split: Split, cwd: Path) -> tuple[Package | None, Path, str]:
    """Return the package, the workspace (here if it is sent, else on the hosts), and the program in it."""
    package, workspace = given.get("job_dispatch_package"), given.get("job_workspace")
    if package and workspace:
        raise SpecError(
            f"{workspace.label}={workspace.text} and {package.label}={package.text} are both given: "
            "the folder is on the hosts already, or it is sent"
        )
    if package:
        folder = find_folder(package, cwd)
        program = find_program(folder, split, cwd)
        if PurePosixPath(program).is_absolute():
            raise SpecError(f"the program {program} is not in {folder}, and only that is sent to the hosts")
        shards, links = given.get_all("shard"), given.get_all("link")
        sent = Package(
            str(folder), data_shards=tuple(map(_read_data_shard, shards)), links=_read_links(links)
        )
        sent = sent._replace(data_shard_label=shards[0].label) if shards else sent
        sent = sent._replace(link_label=links[0].label) if links else sent
        return sent, folder, program
    if workspace:
        there = Path(_read_path(workspace))
        return None, there, _find_program(there, split)
    raise SpecError(
        "no workspace: give --job_dispatch_package=DIR to send a folder to the hosts, "
        "or --job_workspace=DIR for a folder on them"
    )


def _find_program(workspace: Path, split: Split) -> str:
    """Return the program, relative to a workspace on the hosts."""
    named = split.program if split.program is not None else DEFAULT_PROGRAM
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


def _read_preparation(given: Given, cwd: Path) -> dict[str, Any]:
    """Return the fields for the steps before the start and after the end."""
    wheel, wheelhouse = given.get("wheel"), given.get("wheelhouse")
    return {
        "wheel": _find_wheel(wheel, cwd) if wheel else None,
        "wheelhouse": find_folder(wheelhouse, cwd) if wheelhouse else None,
        "setup": tuple(given.options["setup"].kind.read(v.text, v.label) for v in given.get_all("setup")),
        "fetch_output": check_folder_to_make(given.get("fetch_output"), cwd),
        "fetch_logs": check_folder_to_make(given.get("fetch_logs"), cwd),
    }


def _find_wheel(value: Value, cwd: Path) -> Path:
    path = cwd / value.text
    if path.suffix != ".whl" or not path.is_file():
        raise SpecError(f"{value.shown} is not the file of a wheel (.whl)")
    return path


def _check_fabric_effects(spec: JobSpec, given: Given) -> None:
    """Raise SpecError for an option of the command line without effect."""
    sent = spec.site.package
    for name in ("shard", "link") if not sent else ():
        refuse_without_effect(given, name, "where nothing is sent (--job_workspace)")
    install = given.get("install")
    if spec.install and install and not sent:
        raise SpecError(f"{install.label} needs --job_dispatch_package: the wheels are sent with the package")
    if spec.install:
        refuse_without_effect(
            given, "python", "with --install; --agent_python names the Python that makes its environment"
        )
    for name in ("wheel", "wheelhouse") if not spec.install else ():
        refuse_without_effect(given, name, "without --install")
    for name in ("fetch_output", "fetch_logs") if spec.detach else ():
        refuse_without_effect(given, name, "with --detach")
    if not sent and not spec.install:
        refuse_without_effect(given, "root_dir", "where nothing is sent (--job_workspace)")
    if not given.is_set("dry_run"):
        refuse_without_effect(given, "connect", "without --dry_run")
