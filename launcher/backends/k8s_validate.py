"""The API server's verdict on every object of a job, by dry run: nothing is created."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from ..errors import ClusterError, PslaunchError
from ..node import codes
from ..node.job import Plan
from ..node.logs import clean
from ..options.k8s_spec import K8sReach
from . import k8s_manifests as manifests
from .k8s_api import Cluster, open_cluster
from .k8s_errors import Right

PODS = Right("create", "pods")  # which only the cluster itself needs


class Verdict(NamedTuple):
    """The server's answer for one object."""

    shown: str  # kind and name
    error: PslaunchError | None = None
    left_out: str = ""  # why it was not asked


def validate(plan: Plan, reach: K8sReach, out: TextIO, *, as_json: bool) -> int:
    """Print the verdict on each object; return 0, or the code of the first refusal. Raises ClusterError."""
    cluster = open_cluster(reach.access)
    code = codes.OK
    try:
        package = manifests.pack_package(plan, os.environ)
        *others, job = manifests.make_objects(plan, reach, package)
        for verdict in ask(cluster, [*others, manifests.make_secret(job), job]):
            print(_format(verdict, out, as_json=as_json), file=out, flush=True)
            code = code or (verdict.error.exit_code if verdict.error else codes.OK)
    finally:
        cluster.close()
    return code


def ask(cluster: Cluster, objects: Sequence[Mapping[str, Any]]) -> Iterator[Verdict]:
    """Return the verdict on each object, and on a pod of each Job where the user may ask for it."""
    for thing in objects:
        yield _ask_one(cluster, thing)
    pods = [_make_pod(thing) for thing in objects if thing["kind"] == "Job"]
    may = cluster.has_right(PODS)
    for pod in pods:
        yield _ask_one(cluster, pod) if may else Verdict(_name(pod), left_out=f"you have no right to {PODS}")


def _ask_one(cluster: Cluster, thing: Mapping[str, Any]) -> Verdict:
    name = _name(thing)
    try:
        cluster.create(thing, dry_run=True)
    except ClusterError:
        raise
    except PslaunchError as e:
        return Verdict(name, e)
    return Verdict(name)


def _make_pod(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod as the cluster makes them of a Job, for rules that hold for pods alone."""
    template, name = job["spec"]["template"], f"{job['metadata']['name']}-0"
    labels = template["metadata"]["labels"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": template["spec"]}  # fmt: skip


def _name(thing: Mapping[str, Any]) -> str:
    return f"{thing['kind']} {thing['metadata']['name']}"


def _format(verdict: Verdict, out: TextIO, *, as_json: bool) -> str:
    answer = "refused" if verdict.error else "not asked" if verdict.left_out else "accepted"
    text = str(verdict.error or verdict.left_out)
    if as_json:
        return json.dumps({"object": verdict.shown, "answer": answer, "text": text or None})
    return clean(f"{verdict.shown}: {answer}{f': {text}' if text else ''}", out.encoding or "utf-8")
