"""Manifests of a job on Kubernetes, from its plan; equal jobs give equal text. Starts nothing."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from .. import __version__
from ..errors import FileError, SpecError
from ..node import beginning, job
from ..node.dispatch.archive import pack
from ..node.job import Plan
from ..options.k8s_spec import FOLDER, HOME, ROOT, K8sReach
from ..ship.find_python import make_search
from ..ship.package import IGNORE, list_package
from ..ship.wheel import make_wheel, make_wheel_name
from ..ship.zipapp import make_zipapp

REPORT: Final = "/dev/termination-log"
MAX_PACKAGE_BYTES: Final = 900 * 1024  # of 1 MiB that a ConfigMap may hold
ENDING_EXTRA_S: Final = 8  # past the grace: the longest ending of docs/endings.md, and 5 s
USER: Final = 65532  # with no rights in any image
# One template each, in the order in which they are applied.
KINDS: Final = ("services", "programs", "plan", "package", "job")
# JSON's two escapes of one character.
_PAIR: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")
_PROGRAM: Final = """
import os, sys
sys.path.insert(0, {app!r})
from pslaunch.node.__main__ import main
sys.exit(main(["keeper", {lost_after!r}, {grace!r}, "begin", {folder!r}, os.environ["JOB_COMPLETION_INDEX"]]))
"""


def render(plan: Plan, reach: K8sReach, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the manifests by file name, in order. Raises SpecError if the package is too large."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("pslaunch.templates", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["yaml"] = _quote
    values = make_values(plan, reach, _pack(plan, environ))
    return {f"{kind}.yaml": templates.get_template(f"k8s/{kind}.yaml.j2").render(values) for kind in KINDS}


def make_objects(plan: Plan, reach: K8sReach, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the objects of the manifests, in order. Raises SpecError."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 10 times faster
    return [o for text in render(plan, reach, environ).values() for o in yaml.load_all(text, loader)]


def write(rendered: Mapping[str, str], folder: str) -> None:
    """Write the manifests into a folder, which is made if it is missing. Raises FileError."""
    try:
        there = Path(folder)
        there.mkdir(parents=True, exist_ok=True)
        for name, text in rendered.items():
            (there / name).write_text(text, encoding="utf-8")
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
    port = job.choose_gate_port(job.place(plan, plan.nodes))
    begun = beginning.Beginning(plan, head, port, reach.wait_timeout_s, REPORT, packed=True)
    grace_s = plan.limits.grace_s
    program = _PROGRAM.format(
        app=f"{FOLDER}/{beginning.PROGRAM}",
        lost_after=f"{plan.limits.lost_after_s:g}",
        grace=f"{grace_s:g}",
        folder=FOLDER,
    )
    return {
        "name": reach.name,
        "head": head,
        "port": port,
        "pods": len(plan.nodes),
        "reach": reach,
        "labels": {
            "app.kubernetes.io/name": "pslaunch",
            "app.kubernetes.io/instance": reach.name,
            "app.kubernetes.io/version": __version__,
            "app.kubernetes.io/managed-by": "pslaunch",
        },
        "command": ["/bin/sh", "-c", make_search(program, reach.agent_python)],
        "limits": _make_limits(reach),
        "ending_s": math.ceil(grace_s) + ENDING_EXTRA_S,
        "ttl_s": math.ceil(reach.ttl_s),
        "user": USER,
        "folder": FOLDER,
        "root": ROOT,
        "home": HOME,
        "secret_command": make_secret_command(reach),
        "app": _encode(make_zipapp()),
        "wheel": {make_wheel_name(): _encode(make_wheel())},
        "plan": _encode(begun.encode()),
        "package": _encode(package),
    }


def _pack(plan: Plan, environ: Mapping[str, str]) -> bytes:
    assert plan.package
    package = pack(list_package(plan.package, environ))
    if len(package) > MAX_PACKAGE_BYTES:
        raise SpecError(
            f"{plan.package.folder} is {len(package):,} bytes when compressed, and a ConfigMap takes "
            f"{MAX_PACKAGE_BYTES:,}: leave files out ({IGNORE}), or put them into the image"
        )
    return package


def _make_limits(reach: K8sReach) -> dict[str, str]:
    named = {"cpu": reach.cpu, "memory": reach.memory, "nvidia.com/gpu": str(reach.gpu or "")}
    return {name: amount for name, amount in named.items() if amount}


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _quote(value: object) -> str:
    """Return a value as YAML on one line: JSON in ASCII, but each character has one escape."""

    def join(pair: re.Match[str]) -> str:
        return f"{pair[1]}\\U{0x10000 + ((int(pair[2], 16) & 0x3FF) << 10) + (int(pair[3], 16) & 0x3FF):08x}"

    return _PAIR.sub(join, json.dumps(value))
