"""Manifests of a job on Kubernetes, from its plan; equal jobs give equal text. Starts nothing."""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from ... import __version__
from ...errors import FileError, SpecError
from ...node import beginning, job
from ...node.codes import Refusal
from ...node.dispatch.archive import pack_archive
from ...node.job import Plan
from ...node.loop import ignore
from ...ship.find_python import make_search
from ...ship.package import IGNORE, list_package
from ...ship.wheel import RUNTIME_FILES, make_wheel, make_wheel_name
from ...ship.zipapp import make_zipapp
from .options import DEFAULT
from .patch import apply_patches, read_patches
from .spec import K8sReach, name_servers
from .values import FOLDER, HOME, ROOT

REPORT: Final = "/dev/termination-log"
MAX_PACKAGE_BYTES: Final = 900 * 1024  # of 1 MiB that a ConfigMap may hold
TO_CONFIG_MAP: Final = f"{MAX_PACKAGE_BYTES // 1024} KiB"
LIMIT_EXTRA_S: Final = 10.0  # of pods, past --wait_timeout: a launcher that is there says the reason first
ENDING_EXTRA_S: Final = 8  # past the grace: the longest ending of docs/endings.md, and 5 s
USER: Final = 65532  # with no rights in any image
# One template each, in the order in which they are applied.
KINDS: Final = ("services", "policy", "programs", "plan", "package", "job")
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
LOST_NODE_S: Final = 30  # until a lost node's pods are removed; the head notices it itself
LOST_NODE: Final = tuple(
    {
        "key": f"node.kubernetes.io/{state}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": LOST_NODE_S,
    }
    for state in ("not-ready", "unreachable")
)
# JSON's two escapes of one character.
_PAIR: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")
_PROGRAM: Final = """
import os, sys
sys.path.insert(0, {app!r})
from pslaunch.node.__main__ import main
sys.exit(main([{words}]))
"""


class _Group(NamedTuple):
    """The pods of one Job, and their nodes: `pods` from `first` on."""

    name: str
    component: str
    first: int
    pods: int
    command: list[str]
    limits: Mapping[str, str]


def render(plan: Plan, reach: K8sReach, package: bytes) -> dict[str, str]:
    """Return the manifests by file name, in the order in which they are applied.

    package: of `pack_package`. Raises SpecError if a patch is invalid.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("pslaunch.templates", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["yaml"] = _quote
    values = make_values(plan, reach, package)
    rendered = {
        f"{kind}.yaml": templates.get_template(f"k8s/{kind}.yaml.j2").render(values)
        for kind in _list_kinds(reach, package)
    }
    return apply_patches(rendered, read_patches(reach.patch)) if reach.patch else rendered


def make_objects(plan: Plan, reach: K8sReach, package: bytes) -> list[dict[str, Any]]:
    """Return the objects that `render` prints, the trainers' Job last. Raises SpecError."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 10 times faster
    objects = [o for text in render(plan, reach, package).values() for o in yaml.load_all(text, loader)]
    return sorted(objects, key=lambda thing: is_main_job(thing, reach))


def make_secret(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with a new secret of a job, which belongs beside this Job."""
    metadata = job["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{metadata['name']}-secret", "labels": metadata["labels"]},
        "stringData": {"secret": os.urandom(32).hex()},
    }


def is_main_job(thing: Mapping[str, Any], reach: K8sReach) -> bool:
    """Return True for the Job of node 0, which owns all other objects."""
    return bool(thing["kind"] == "Job" and thing["metadata"]["name"] == reach.name)


def _list_kinds(reach: K8sReach, package: bytes) -> list[str]:
    """Return the names of the job's templates."""
    without = {"policy": not reach.network_policy, "package": not package}
    return [kind for kind in KINDS if not without.get(kind)]


def write(rendered: Mapping[str, str], folder: Path) -> None:
    """Write the manifests into a folder, which is made if it is missing; those of other options go.

    Raises FileError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in {f"{kind}.yaml" for kind in KINDS} - rendered.keys():
            (folder / name).unlink(missing_ok=True)
        for name, text in rendered.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as e:
        raise FileError.from_os(e, "write the manifests (--output_dir)") from e


def make_secret_command(reach: K8sReach) -> str:
    """Return the command that makes the job's secret, which is in no manifest and on no command line."""
    there = f" --namespace={reach.access.namespace}" if reach.access.namespace else ""
    create = f"kubectl create secret generic {reach.name}-secret{there} --from-file=secret=/dev/stdin"
    return f"openssl rand -hex 32 | {create}"


def make_values(plan: Plan, reach: K8sReach, package: bytes) -> dict[str, Any]:
    """Return the values of the templates."""
    head = f"{reach.name}-head"
    port = job.choose_head_port(job.place(plan, plan.nodes))
    packed = bool(package)
    begun = beginning.Beginning(
        plan, head, port, reach.wait_timeout_s + LIMIT_EXTRA_S, REPORT,
        packed=packed, lease_s=reach.lease_s, linger_s=reach.linger_s,
    )  # fmt: skip
    return {
        "name": reach.name,
        "head": head,
        "port": port,
        "groups": _make_groups(plan, reach),
        "reach": reach,
        "labels": {
            "app.kubernetes.io/name": "pslaunch",
            "app.kubernetes.io/instance": reach.name,
            "app.kubernetes.io/version": __version__,
            "app.kubernetes.io/managed-by": "pslaunch",
        },
        "queue_label": QUEUE_LABEL,
        "tolerations": LOST_NODE,
        "ending_s": compute_ending_s(plan),
        "ttl_s": math.ceil(reach.ttl_s),
        "deadline_s": reach.deadline_s and math.ceil(reach.deadline_s),
        "user": USER,
        "folder": FOLDER,
        "name_file": PurePosixPath(beginning.NAME_FILE).name,
        "root": ROOT,
        "home": HOME,
        "secret_command": make_secret_command(reach),
        "app": _encode(make_zipapp()),
        "wheel": {make_wheel_name(): _encode(make_wheel(RUNTIME_FILES))},
        "plan": _encode(begun.encode()),
        "packed": packed,
        "package": _encode(package),
    }


def _make_groups(plan: Plan, reach: K8sReach) -> list[_Group]:
    """Return the Jobs: of all nodes, or of trainers and pservers."""
    trainers = len(plan.nodes) - reach.server_pods
    limits = _make_limits(reach.cpu, reach.memory, reach.gpu)
    main = _Group(
        reach.name,
        "trainers" if reach.server_pods else "nodes",
        0,
        trainers,
        _make_command(plan, reach, reach.name, 0),
        limits,
    )
    if not reach.server_pods:
        return [main]
    limits = _make_limits(reach.server_cpu, reach.server_memory, 0)
    name = name_servers(reach.name)
    command = _make_command(plan, reach, name, trainers)
    return [_Group(name, "pservers", trainers, reach.server_pods, command, limits), main]


def _make_command(plan: Plan, reach: K8sReach, name: str, first: int) -> list[str]:
    """Return the command of the pods of the Job `name`, whose nodes count from `first`."""
    limits = plan.limits
    words = ["keeper", f"{limits.lost_after_s:g}", f"{limits.grace_s:g}", "begin", FOLDER, name]
    return make_command(reach, words, f'str({first} + int(os.environ["JOB_COMPLETION_INDEX"]))')


def make_command(reach: K8sReach, words: Sequence[str], *computed: str) -> list[str]:
    """Return the command of a program of ours in a pod; `computed`: further words, as expressions there."""
    listed = ", ".join([*map(repr, words), *computed])
    program = _PROGRAM.format(app=f"{FOLDER}/{beginning.PROGRAM}", words=listed)
    return ["/bin/sh", "-c", make_search(program, reach.agent_python)]


def compute_ending_s(plan: Plan) -> int:
    """Return the limit for a pod to end after a signal."""
    return math.ceil(plan.limits.grace_s) + ENDING_EXTRA_S


def pack_package(plan: Plan, environ: Mapping[str, str], warn: Callable[[str], object] = ignore) -> bytes:
    """Return the package for a ConfigMap, b"" if none is sent or it is too large.

    warn: gets a remark on large folders that tools have made. Raises SpecError, FileError.
    """
    if plan.package is None:
        return b""
    try:
        return pack_archive(list_package(plan.package, environ, warn), MAX_PACKAGE_BYTES)
    except Refusal as e:
        raise SpecError(str(e)) from None
    except OSError as e:
        raise FileError.from_os(e, "read the package") from e


def find_brought(plan: Plan, package: bytes) -> job.Package | None:
    """Return the package if a launcher has to bring it; package: of `pack_package`."""
    return None if package else plan.package


def add_lease(reach: K8sReach, plan: Plan, package: bytes) -> K8sReach:
    """Return the reach with a lease for a detached job, too, while a launcher has to bring its package."""
    return (
        reach._replace(lease_s=DEFAULT["lease"])
        if find_brought(plan, package) and not reach.lease_s
        else reach
    )


def describe_package(plan: Plan, reach: K8sReach, package: bytes) -> str:
    """Return in words the way of the package to the nodes."""
    if plan.package is None:
        folder = PurePosixPath(plan.nodes[0].workspace)
        claims = [(path, name) for name, path in reach.claims if folder.is_relative_to(path)]
        place = f"in the volume claim {max(claims)[1]}" if claims else f"in the image {reach.image}"
        return f"nothing is sent: {folder} is {place}"
    if package:
        return f"the package goes into a ConfigMap: {len(package):,} bytes when compressed"
    return f"the package goes over the line to pod 0: it is over {TO_CONFIG_MAP} when compressed"


def refuse_brought(plan: Plan, package: bytes) -> None:
    """Raise SpecError if a launcher has to bring the package: manifests have none."""
    if brought := find_brought(plan, package):
        raise SpecError(
            f"{brought.folder} is over {TO_CONFIG_MAP} when compressed, and a ConfigMap takes no more: "
            f"leave files out ({IGNORE}), put them into a volume claim (--pvc), or the whole folder into the "
            "image or a claim (--job_workspace); pslaunch k8s apply sends a folder of any size"
        )


def _make_limits(cpu: str, memory: str, gpu: int) -> dict[str, str]:
    named = {"cpu": cpu, "memory": memory, "nvidia.com/gpu": str(gpu or "")}
    return {name: amount for name, amount in named.items() if amount}


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _quote(value: object) -> str:
    """Return a value as YAML on one line: JSON in ASCII, but each character has one escape."""

    def join(pair: re.Match[str]) -> str:
        return f"{pair[1]}\\U{0x10000 + ((int(pair[2], 16) & 0x3FF) << 10) + (int(pair[3], 16) & 0x3FF):08x}"

    text = json.dumps(value)
    return _PAIR.sub(join, text) if "\\ud" in text else text  # packages are long, and have none
