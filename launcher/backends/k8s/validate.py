"""The API server's verdict on every object of a job, by dry run: nothing is created."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TextIO

from ...errors import ClusterError, PslaunchError
from ...node import codes
from ...node.job import Plan
from ...node.logs import clean
from . import manifests
from .api import Cluster, make_plural, open_cluster
from .api_errors import Right
from .job_records import Object
from .spec import K8sReach


class ObjectVerdict(NamedTuple):
    """The server's answer for one object."""

    shown: str  # kind and name
    error: PslaunchError | None = None
    left_out: str = ""  # why it was not asked
    made: Object | None = None  # as the server would have it

    def make_data(self) -> dict[str, str | None]:
        """Return it as JSON data."""
        answer = "refused" if self.error else "not asked" if self.left_out else "accepted"
        return {"object": self.shown, "answer": answer, "text": str(self.error or self.left_out) or None}


def validate(plan: Plan, reach: K8sReach, out: TextIO, *, as_json: bool) -> int:
    """Print the verdict on each object; return 0, or the code of the first refusal. Raises ClusterError."""
    cluster = open_cluster(reach.access)
    code = codes.OK
    try:
        package = manifests.pack_package(plan, os.environ)
        *others, job = manifests.make_objects(plan, reach, package)
        for verdict in ask_verdicts(cluster, [*others, manifests.make_secret(job), job]):
            print(_format(verdict, out, as_json=as_json), file=out, flush=True)
            code = code or (verdict.error.exit_code if verdict.error else codes.OK)
    finally:
        cluster.close()
    return code


def ask_verdicts(cluster: Cluster, objects: Sequence[Object]) -> Iterator[ObjectVerdict]:
    """Return the verdict on each object, and on a pod of each Job where the user may ask for it."""
    for thing in objects:
        yield _ask_one(cluster, thing)
    for pod in (make_pod(thing) for thing in objects if thing["kind"] == "Job"):
        if cluster.has_right(right := find_right(pod)):
            yield _ask_one(cluster, pod)
        else:
            yield ObjectVerdict(name_object(pod), left_out=f"you have no right to {right}")


def _ask_one(cluster: Cluster, thing: Object) -> ObjectVerdict:
    name = name_object(thing)
    try:
        return ObjectVerdict(name, made=cluster.create(thing, dry_run=True))
    except ClusterError:
        raise
    except PslaunchError as e:
        if "does not support dry run" in str(e):  # a webhook, which may well accept it
            return ObjectVerdict(name, left_out=str(e))
        return ObjectVerdict(name, e)


def make_pod(job: Object) -> dict[str, Any]:
    """Return a pod as the cluster creates it from a Job, for rules that apply to pods alone."""
    template = job["spec"]["template"]
    metadata = {"name": f"{job['metadata']['name']}-0", "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def find_right(thing: Object) -> Right:
    """Return the right to create an object."""
    group = thing["apiVersion"].rpartition("/")[0]
    return Right("create", make_plural(thing["kind"]).lower(), group)


def name_object(thing: Object) -> str:
    return f"{thing['kind']} {thing['metadata']['name']}"


def _format(verdict: ObjectVerdict, out: TextIO, *, as_json: bool) -> str:
    data = verdict.make_data()
    if as_json:
        return json.dumps(data)
    text = f"{data['object']}: {data['answer']}"
    return clean(f"{text}: {data['text']}" if data["text"] else text, out.encoding or "utf-8")
