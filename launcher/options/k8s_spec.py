"""The job of `pslaunch k8s` from its options: pods, their image and resources, the package in a ConfigMap.

Rejected values raise SpecError with option, place and value. No cluster is asked.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import SpecError
from ..node.job import FIRST_PORT, Count, Node
from .args import Split
from .kinds import Value
from .locate import choose_name, locate
from .options import DEFAULT
from .remote_spec import read_package
from .sources import Given
from .spec import JobSpec, Site, check_spec, read_common_options, refuse_without_effect

FOLDER: Final = "/pslaunch"  # in a pod: what node/beginning.py names
ROOT: Final = "/workspace"  # of all workspaces in a pod
HOME: Final = "/home/pslaunch"
OWN_FOLDERS: Final = (FOLDER, ROOT, HOME, "/tmp", "/dev", "/proc", "/sys", "/etc")
MAX_NAME: Final = 63  # of a label, a host name or a service
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_QUANTITY: Final = re.compile(r"(?=.*[1-9])[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_OBJECT: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_WORD: Final = r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_SELECTOR: Final = re.compile(rf"({_OBJECT.pattern}/)?{_WORD}=({_WORD})?")


class Access(NamedTuple):
    """The cluster, its user and its namespace; "" is the default of the kubeconfig, or of this pod."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""


class K8sReach(NamedTuple):
    """The pods of a job."""

    name: str  # of its objects
    image: str
    cpu: str = ""
    memory: str = ""
    gpu: int = 0
    shm: str = ""
    node_selector: Mapping[str, str] = {}
    claims: tuple[tuple[str, str], ...] = ()  # names of volume claims, and their paths in the pods
    image_pull_secret: str = ""
    service_account: str = ""
    ttl_s: float = DEFAULT["ttl"]
    wait_timeout_s: float = DEFAULT["wait_timeout"]
    agent_python: str | None = None  # path of the agents' Python; None: search
    access: Access = Access()


def make_k8s_spec(given: Given, split: Split, *, cwd: Path, environ: Mapping[str, str]) -> JobSpec:
    """Return the job of `pslaunch k8s`: the given values, and defaults for all others.

    cwd: absolute; relative paths of this machine start there. Raises SpecError.
    """
    options = read_common_options(given, environ)
    package, workspace, program = read_package(given, split, lambda: locate(given, split, cwd))
    pods = _count_pods(given)
    name = _choose_object_name(given, workspace, pods)
    reach = K8sReach(
        name=name,
        image=_read_image(given, environ),
        cpu=_read_quantity(given, "cpu"),
        memory=_read_quantity(given, "memory"),
        gpu=given.read("gpu"),
        shm=_read_quantity(given, "shm"),
        node_selector=_read_selector(given),
        claims=tuple(_read_claims(given)),
        image_pull_secret=_read_object_name(given, "image_pull_secret"),
        service_account=_read_object_name(given, "service_account"),
        ttl_s=given.read("ttl"),
        wait_timeout_s=given.read("wait_timeout"),
        agent_python=given.read("agent_python"),
        access=read_access(given),
    )
    nodes = [Node(i, f"{name}-{i}", "", dispatched=True) for i in range(pods)]
    one = Count("per_node", 1)
    spec = JobSpec(
        backend="k8s",
        job_name=name,
        workspace=workspace,
        site=Site(
            tuple(node.place_in(f"{ROOT}/{name}") for node in nodes),
            pservers=one,
            trainers=one,
            package=package,
            reach=reach,
        ),
        program=program,
        program_args=(*split.forwarded, *split.program_args),
        trainer_flags=given.trainer_flags,
        head="node",
        detach=True,
        **{
            **{k: v for k, v in options.items() if k not in ("head", "detach")},
            "port": options["port"] or FIRST_PORT,  # a pod has all ports; the head's is known beforehand
            "python": given.read("python"),
        },
    )
    check_spec(spec, given)
    if given.is_set("use_gpu") and not reach.gpu:
        refuse_without_effect(given, "use_gpu", "in pods without a GPU; --gpu=1 asks for one")
    return spec


def read_access(given: Given) -> Access:
    """Return the cluster to ask. Raises SpecError for names that no cluster can have."""
    context, kubeconfig = given.get("context"), given.get("kubeconfig")
    return Access(
        str(Path(kubeconfig.text).expanduser()) if kubeconfig else "",
        context.text if context else "",
        read_namespace(given.get("namespace")),
    )


def read_namespace(value: Value | None) -> str:
    """Return the name of a namespace; "" if it is not given."""
    if value is not None and not _NAMESPACE.fullmatch(value.text):
        raise SpecError(f"{value.shown} is no name of a namespace: expected small letters, digits and dashes")
    return value.text if value else ""


def _count_pods(given: Given) -> int:
    """Return the given number, else enough for one process of each role in each pod."""
    return int(given.read("nodes") or max(given.read("server_num") or 1, given.read("worker_num") or 1))


def _choose_object_name(given: Given, workspace: Path, pods: int) -> str:
    """Return the name of the job's objects: the given one, or the folder's in allowed characters."""
    most = MAX_NAME - max(len("-head"), len(f"-{pods - 1}"))
    value = given.get("job_name")
    if value is None:
        safe = re.sub("[^a-z0-9]+", "-", choose_name(workspace).lower()).strip("-")[:most].strip("-")
        return safe if _LABEL.fullmatch(safe) else f"job-{safe}"[:most].strip("-")
    if not _LABEL.fullmatch(value.text):
        raise SpecError(
            f"{value.shown} is no name of objects: expected small letters, digits and dashes, first a letter"
        )
    if len(value.text) > most:
        raise SpecError(
            f"{value.shown} has {len(value.text)} characters; with {pods} pods it may have {most}"
        )
    return value.text


def _read_image(given: Given, environ: Mapping[str, str]) -> str:
    value = given.get("image") or Value(environ.get("PSLAUNCH_IMAGE", ""), "PSLAUNCH_IMAGE")
    if not value.text:
        from importlib.resources import files

        folder = files("pslaunch.templates") / "k8s"
        raise SpecError(
            f"no image: give --image=NAME, [k8s].image in pslaunch.toml, or PSLAUNCH_IMAGE. "
            f"Any with Python 3.9 or later will do; {folder}/Dockerfile makes one for the bundled runtime"
        )
    if not re.fullmatch(r"[!-~]{1,500}", value.text):
        raise SpecError(f"{value.shown} is no name of an image")
    return value.text


def _read_quantity(given: Given, name: str) -> str:
    value = given.get(name)
    if value is None:
        return ""
    if not _QUANTITY.fullmatch(value.text):
        raise SpecError(
            f"{value.shown} is no quantity: expected a number above 0, with a unit such as m, Mi or Gi if any"
        )
    return value.text


def _read_object_name(given: Given, name: str) -> str:
    value = given.get(name)
    if value is not None and not _OBJECT.fullmatch(value.text):
        raise SpecError(
            f"{value.shown} is no name of an object: expected small letters, digits, dashes and dots"
        )
    return value.text if value else ""


def _read_claims(given: Given) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for value in given.get_all("pvc"):
        name, _, path = value.text.partition(":")
        if not _OBJECT.fullmatch(name) or not re.fullmatch(r"/[^:]+", path) or not path.isprintable():
            raise SpecError(f"{value.shown}: expected NAME:PATH with an absolute path")
        path = posixpath.normpath(path)
        taken = next((t for t in (*OWN_FOLDERS, *(p for _, p in found)) if _overlap(t, path)), None)
        if taken:
            raise SpecError(f"{value.shown}: {taken} in the pods is in use already; choose another path")
        found.append((name, path))
    return found


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _read_selector(given: Given) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in given.get_all("node_selector"):
        name, _, text = value.text.partition("=")
        if not _SELECTOR.fullmatch(value.text):
            raise SpecError(f"{value.shown} is no label of nodes: expected NAME=VALUE")
        if name in found:
            raise SpecError(f"{value.shown}: {name} is given twice")
        found[name] = text
    return found
