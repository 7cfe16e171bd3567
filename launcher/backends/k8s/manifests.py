"""Manifests of a job on Kubernetes, from its plan; equal jobs give equal text. Starts nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ... import __version__
from ...errors import FileError, SpecError
from ...node import beginning, codes, job
from ...node.codes import Refusal
from ...node.dispatch.archive import pack_archive
from ...node.job import Plan
from ...node.loop import ignore
from ...options.locate import check_folder_to_make
from ...options.spec import JobSpec
from ...plan import make_plan
from ...ship.find_python import make_search
from ...ship.package import IGNORE, list_package
from ...ship.wheel import RUNTIME_FILES, cut_wheel, make_wheel, make_wheel_name
from ...ship.zipapp import make_zip, make_zipapp
from ..face import CommandLine
from .job_records import ENDING, INSTANCE, QUEUE_LABEL
from .options import K8S_DEFAULTS
from .patch import apply_patches, read_patches
from .spec import FOLDER, HOME, ROOT, K8sReach, name_servers

REPORT: Final = "/dev/termination-log"
MAX_PACKAGE_BYTES: Final = 900 * 1024  # in a few ConfigMaps; a cluster is no store for files
TO_CONFIG_MAPS: Final = f"{MAX_PACKAGE_BYTES // 1024} KiB"
# `kubectl apply` writes the whole object, in base64, into an annotation of it, and 256 KiB are the limit.
MAP_PIECE_BYTES: Final = 184 * 1024
LIMIT_EXTRA_S: Final = 10.0  # of pods, past --wait_timeout: a launcher that is there says the reason first
ENDING_EXTRA_S: Final = 8  # past the grace: the longest ending of docs/endings.md, and 5 s
PLAIN: Final = "job"  # the job's file as it is, where it comes alone and fits
# One each, in the order in which they are applied.
TEMPLATES: Final = ("services", "policy", "files", "job")
# first: what the first process of a pod does before all else. Without our zip the image has pslaunch.
_PROGRAM: Final = """
import os, sys
{first}if os.path.exists({app!r}):
    sys.path.insert(0, {app!r})
else:
    import site
    site.main()
from pslaunch.node.__main__ import main
sys.exit(main([{words}]))
"""


def print_manifests(line: CommandLine, spec: JobSpec) -> int:
    """Print the manifests of a job, or write them with `--output_dir`; return 0. Raises PslaunchError."""
    folder, reach = check_folder_to_make(line.given.get("output_dir"), line.cwd), spec.site.reach
    plan = make_plan(spec, spec.draft.name)
    package = pack_package(plan, line.environ, line.tell)
    refuse_brought(plan, package)
    rendered = render_manifests(plan, reach, package)
    if folder is None:
        line.out.write("---\n".join(rendered.values()))
    else:
        write(rendered, folder)
    line.tell(f"before it is applied: {make_secret_command(reach)}")
    return 0


def render_manifests(plan: Plan, reach: K8sReach, package: bytes) -> dict[str, str]:
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
    first = templates.get_template("k8s/first.py.j2").render(values)
    for group in values["groups"]:
        group["command"] = make_pod_command(reach, *group["words"], first=first)
    rendered = {
        f"{name}.yaml": templates.get_template(f"k8s/{name}.yaml.j2").render(values)
        for name in TEMPLATES
        if name != "policy" or reach.network_policy
    }
    return apply_patches(rendered, read_patches(reach.patch)) if reach.patch else rendered


def make_objects(plan: Plan, reach: K8sReach, package: bytes) -> list[dict[str, Any]]:
    """Return the objects of the manifests, then a new secret, then the Job of node 0, which owns all others.

    Raises SpecError.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 10 times faster
    rendered = render_manifests(plan, reach, package)
    objects = [thing for text in rendered.values() for thing in yaml.load_all(text, loader)]
    objects.sort(key=lambda thing: (thing["kind"], thing["metadata"]["name"]) == ("Job", reach.name))
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{reach.name}-secret", "labels": objects[-1]["metadata"]["labels"]},
        "stringData": {"secret": os.urandom(32).hex()},
    }
    return [*objects[:-1], secret, objects[-1]]


def write(rendered: Mapping[str, str], folder: Path) -> None:
    """Write the manifests into a folder, made if missing; those of other options go. Raises FileError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in {f"{name}.yaml" for name in TEMPLATES} - rendered.keys():
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
    head = f"{reach.name}-head"
    port = job.choose_head_port(job.place(plan, plan.nodes))
    begun = beginning.Beginning(
        plan, head, port, reach.wait_timeout_s + LIMIT_EXTRA_S, REPORT,
        packed=bool(package), lease_s=reach.lease_s, linger_s=reach.linger_s,
    )  # fmt: skip
    labels = {
        "app.kubernetes.io/name": "pslaunch",
        INSTANCE: reach.name,
        "app.kubernetes.io/version": __version__,
        "app.kubernetes.io/managed-by": "pslaunch",
    }
    kind, data = PLAIN, begun.encode()
    if package or len(data) > MAP_PIECE_BYTES // 2:  # the annotation escapes quotes and line ends
        packed = {beginning.PACKAGE_FILE: package} if package else {}
        kind, data = "files", make_zip({beginning.JOB_FILE: data, **packed})
    return {
        "name": reach.name,
        "head": head,
        "port": port,
        "groups": _make_groups(plan, reach),
        "reach": reach,
        "labels": labels,
        "bundles": [
            *([] if reach.has_pslaunch else [_make_program(reach, labels)]),
            _make_bundle(kind, f"{reach.name}-files", labels, data),
        ],
        "version": __version__,
        "refusal": codes.PREFLIGHT,
        "queue_label": QUEUE_LABEL,
        "ending_s": compute_ending_s(plan),
        "grace_s": compute_ending_s(plan) + math.ceil(reach.linger_s),
        "ending_mark": ENDING,
        "ttl_s": math.ceil(reach.ttl_s),
        "restarts": plan.limits.max_restarts,
        "deadline_s": reach.deadline_s and math.ceil(reach.deadline_s),
        "folder": FOLDER,
        "plain": PLAIN,
        "job_file": f"{FOLDER}/{beginning.JOB_FILE}",
        "name_file": PurePosixPath(beginning.NAME_FILE).name,
        "root": ROOT,
        "home": HOME,
        "secret_command": make_secret_command(reach),
    }


def _make_program(reach: K8sReach, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return agent and keeper of each pod, and the bundled runtime for images without this version of it."""
    given = {Path(path).name: cut_wheel(Path(path)) for path in reach.wheels}
    wheels = given or {make_wheel_name(): make_wheel(RUNTIME_FILES)}
    named = {f"{beginning.WHEEL}/{name}": wheel for name, wheel in wheels.items()}
    data, name = make_zip({beginning.PROGRAM: make_zipapp(), **named}), f"{reach.name}-program"
    if reach.shares:
        labels = {key: text for key, text in labels.items() if key != INSTANCE}
        name = f"pslaunch-program-{hashlib.sha256(data).hexdigest()[:16]}"
    return _make_bundle("program", name, labels, data)


def _make_bundle(kind: str, name: str, labels: Mapping[str, str], data: bytes) -> dict[str, Any]:
    """Return a zip file of files below FOLDER in pieces, by their ConfigMaps; PLAIN is text, one piece."""
    pieces = (data[start : start + MAP_PIECE_BYTES] for start in range(0, len(data), MAP_PIECE_BYTES))
    coded = (piece.decode() if kind == PLAIN else base64.b64encode(piece).decode() for piece in pieces)
    named = {f"{name}-{i}": (f"{kind}.{i:03}", piece) for i, piece in enumerate(coded)}
    return {"kind": kind, "labels": labels, "digest": hashlib.sha256(data).hexdigest(), "pieces": named}


def _make_groups(plan: Plan, reach: K8sReach) -> list[dict[str, Any]]:
    """Return the Jobs: of all nodes, or of pservers and of trainers, whose nodes are the first."""
    servers, trainers = reach.server_pods, len(plan.nodes) - reach.server_pods
    times = (f"{plan.limits.lost_after_s:g}", f"{plan.limits.grace_s:g}")
    of_servers = _make_limits(reach.server_cpu or reach.cpu, reach.server_memory or reach.memory, 0)
    limits, component = _make_limits(reach.cpu, reach.memory, reach.gpus), "trainers" if servers else "nodes"
    rows = [(reach.name, component, trainers, 0, limits)]
    if servers:
        rows.insert(0, (name_servers(reach.name), "pservers", servers, trainers, of_servers))
    return [
        {"name": name, "component": component, "pods": pods, "limits": limits,
         "words": (["keeper", *times, "begin", FOLDER, name],
                   f'str({first} + int(os.environ["JOB_COMPLETION_INDEX"]))')}
        for name, component, pods, first, limits in rows
    ]  # fmt: skip


def make_pod_command(reach: K8sReach, words: Sequence[str], *computed: str, first: str = "") -> list[str]:
    """Return the command of a program of ours in a pod; `computed`: further words, as expressions there."""
    listed = ", ".join([*map(repr, words), *computed])
    program = _PROGRAM.format(app=f"{FOLDER}/{beginning.PROGRAM}", first=first, words=listed)
    return ["/bin/sh", "-c", make_search(program, reach.agent_python)]


def compute_ending_s(plan: Plan) -> int:
    """Return the limit for a pod's programs to end after a signal; then it may linger."""
    return math.ceil(plan.limits.grace_s) + ENDING_EXTRA_S


def pack_package(plan: Plan, environ: Mapping[str, str], warn: Callable[[str], object] = ignore) -> bytes:
    """Return the package for ConfigMaps, b"" if none is sent or it is too large.

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


def add_lease(reach: K8sReach, plan: Plan, package: bytes) -> K8sReach:
    """Return the reach with a lease for a detached job, too, while a launcher has to bring its package."""
    needs_lease = plan.package and not (package or reach.lease_s)
    return reach._replace(lease_s=K8S_DEFAULTS["lease"]) if needs_lease else reach


def describe_package(plan: Plan, reach: K8sReach, package: bytes) -> str:
    """Return in words the way of the package to the nodes."""
    if plan.package is None:
        folder = PurePosixPath(plan.nodes[0].workspace)
        claims = [(path, name) for name, path in reach.claims if folder.is_relative_to(path)]
        place = f"in the volume claim {max(claims)[1]}" if claims else f"in the image {reach.image}"
        return f"nothing is sent: {folder} is {place}"
    if package:
        return f"the package goes into ConfigMaps: {len(package):,} bytes when compressed"
    return f"the package goes over the line to pod 0: it is over {TO_CONFIG_MAPS} when compressed"


def refuse_brought(plan: Plan, package: bytes) -> None:
    """Raise SpecError if a launcher has to bring the package: manifests have none."""
    if plan.package and not package:
        raise SpecError(
            f"{plan.package.folder} is over {TO_CONFIG_MAPS} when compressed, too much for ConfigMaps: "
            f"leave files out ({IGNORE}), put them into a volume claim (--pvc), or the whole folder into the "
            "image or a claim (--job_workspace); pslaunch k8s apply sends a folder of any size"
        )


def _make_limits(cpu: str, memory: str, gpus: int) -> dict[str, str]:
    named = {"cpu": cpu, "memory": memory, "nvidia.com/gpu": str(gpus or "")}
    return {name: amount for name, amount in named.items() if amount}


def _quote(value: object) -> str:
    """Return a value as YAML on one line: JSON in ASCII, but each character has one escape."""
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", r"\x7f")
    return text.encode("ascii", "backslashreplace").decode()
