"""`pslaunch check` of a Kubernetes cluster, and `--validate`: questions about a job; nothing is created."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from ...check.findings import Finding, choose_check_code
from ...check.report import make_finding_lines
from ...errors import ClusterError, PreflightError, PslaunchError, RightsError, SpecError
from ...node import codes
from ...node.job import Plan
from ...node.line.wire import NONSENSE
from ...node.logs import clean
from ...options.spec import JobSpec
from ...plan import make_plan
from ...ship.wheel import make_wheel_name
from ...views.table import show
from ..face import CommandLine
from ..lines import News, Tell
from . import cluster_findings, manifests
from .api import AT_ONCE, EXEC, JOB, LOOK, POLICY, Cluster, open_cluster
from .api_errors import ConflictError, Right
from .job_records import Object
from .spec import K8sReach

T = TypeVar("T")


def check_cluster(line: CommandLine, spec: JobSpec) -> int:
    """Check the cluster for a job, report the findings, and return the exit code."""
    reach: K8sReach = spec.site.reach
    plan = make_plan(spec, spec.draft.name)
    package = manifests.pack_package(plan, line.environ)
    brings = plan.package is not None and not package
    objects = manifests.make_objects(plan, reach, package)
    needs = cluster_findings.Needs(objects, attached=not spec.detach, brings=brings)
    try:
        with contextlib.closing(open_cluster(reach.access, line.environ)) as cluster:
            seen = examine(cluster, needs)
            findings = [*cluster_findings.judge_cluster(seen, needs), *judge_processors(cluster, reach, plan)]
    except ClusterError as e:
        seen = cluster_findings.ClusterSeen(e.server, reach.access.namespace or "?", failed=e.cause)
        findings = cluster_findings.judge_cluster(seen, needs)
    except NONSENSE as e:
        raise ClusterError(
            "", f"the cluster's answers can't be right: {e!r}", "give another --context"
        ) from e
    table = cluster_findings.make_table(seen, findings, len(list_rights(needs)))
    data = cluster_findings.make_data(seen, findings)
    show(table, make_finding_lines(findings), [data], line.out, as_json=line.as_json)
    return choose_check_code(findings)


def list_rights(needs: cluster_findings.Needs) -> list[Right]:
    has_policy = any(thing["kind"] == "NetworkPolicy" for thing in needs.objects)
    return [*JOB, *EXEC, *LOOK, *(POLICY if has_policy else ())]


def examine(cluster: Cluster, needs: cluster_findings.Needs) -> cluster_findings.ClusterSeen:
    """Return the observations of this user. Raises ClusterError."""
    here, rights = cluster.namespace, list_rights(needs)
    version = cluster.get("read its version", "/version")["gitVersion"]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        has = list(pool.map(cluster.has_right, rights))
    seen = cluster_findings.ClusterSeen(
        cluster.place.server,
        here,
        version=str(version),
        missing=tuple(right for right, given in zip(rights, has, strict=True) if not given),
        quotas=_look(partial(cluster.list_objects, "ResourceQuota")),
        policies=_look(partial(cluster.list_objects, "NetworkPolicy")),
        secrets={name: _look(partial(cluster.has_object, "Secret", name)) for name in needs.name_secrets()},
    )
    try:
        found = _look(partial(cluster.get, f"get namespace {here}", f"/api/v1/namespaces/{here}"))
    except SpecError:  # it does not exist
        return seen._replace(there=False)
    if found:
        phase, labels = found["status"]["phase"], found["metadata"].get("labels", {})
        seen = seen._replace(there=True, phase=phase, labels=labels)
    if seen.phase == "Terminating":
        return seen
    allowed = [thing for thing in needs.objects if cluster_findings.find_right(thing) not in seen.missing]
    return seen._replace(verdicts=[*ask_verdicts(cluster, allowed)])


def judge_processors(cluster: Cluster, reach: K8sReach, plan: Plan) -> list[Finding]:
    """Compare the wheels that the job brings with the nodes' processors. Raises ClusterError."""
    if reach.has_pslaunch or plan.server != "bundled":
        return []
    wheels = [Path(path).name for path in reach.wheels] or [make_wheel_name()]
    return cluster_findings.judge_wheels(cluster.list_processors(reach.node_selector), wheels)


def refuse_processors(cluster: Cluster, reach: K8sReach, plan: Plan, tell: Tell) -> None:
    """Raise PreflightError if no node takes a wheel of the job, report if only some do."""
    for found in judge_processors(cluster, reach, plan):
        tell(News(text := f"{found.text}; {found.advice}"))
        if found.level == "problem":
            raise PreflightError(text)


def _look(ask: Callable[[], T]) -> T | None:
    """Return an answer; None without the right to it."""
    with contextlib.suppress(RightsError):
        return ask()
    return None


def validate(line: CommandLine, spec: JobSpec) -> int:
    """Print the verdict on each object; return 0, or the code of the first refusal. Raises ClusterError."""
    code, reach, plan = codes.OK, spec.site.reach, make_plan(spec, spec.site.job_id)
    with contextlib.closing(open_cluster(reach.access, line.environ)) as cluster:
        objects = manifests.make_objects(plan, reach, manifests.pack_package(plan, line.environ))
        for verdict in ask_verdicts(cluster, objects):
            data = verdict.make_data()
            text = ": ".join(filter(None, data.values()))
            shown = json.dumps(data) if line.as_json else clean(text, line.out.encoding or "utf-8")
            print(shown, file=line.out, flush=True)
            code = code or (verdict.error.exit_code if verdict.error else codes.OK)
    return code


def ask_verdicts(cluster: Cluster, objects: Sequence[Object]) -> Iterator[cluster_findings.ObjectVerdict]:
    """Return the verdict on each object, and on a pod of each Job where the user may ask for it."""
    for thing in objects:
        yield _ask_one(cluster, thing)
    for pod in (cluster_findings.make_pod(thing) for thing in objects if thing["kind"] == "Job"):
        if cluster.has_right(right := cluster_findings.find_right(pod)):
            yield _ask_one(cluster, pod)
        else:
            yield cluster_findings.ObjectVerdict(
                cluster_findings.name_object(pod), left_out=f"you have no right to {right}"
            )


def _ask_one(cluster: Cluster, thing: Object) -> cluster_findings.ObjectVerdict:
    name = cluster_findings.name_object(thing)
    try:
        return cluster_findings.ObjectVerdict(name, made=cluster.create(thing, dry_run=True))
    except ClusterError:
        raise
    except ConflictError:
        return cluster_findings.ObjectVerdict(name)  # other jobs share it
    except PslaunchError as e:
        if "does not support dry run" in str(e):  # a webhook, which may well accept it
            return cluster_findings.ObjectVerdict(name, left_out=str(e))
        return cluster_findings.ObjectVerdict(name, e)
