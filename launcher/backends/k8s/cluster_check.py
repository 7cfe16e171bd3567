"""`pslaunch check` of a Kubernetes cluster: checks everything that a job needs there, and creates nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TextIO, TypeVar

from ...errors import ClusterError, RightsError, SpecError
from ...options.spec import JobSpec
from ...plan import make_plan
from ...views.table import show
from . import manifests
from .api import AT_ONCE, EXEC, JOB, KUBECTL, KUBECTL_POLICY, LOOK, POLICY, Cluster, open_cluster
from .api_errors import Right
from .cluster_findings import (
    ClusterSeen,
    Needs,
    choose_exit_code,
    judge_cluster,
    make_data,
    make_lines,
    make_table,
)
from .spec import K8sReach
from .validate import ask_verdicts, find_right

T = TypeVar("T")


def check_cluster(
    spec: JobSpec, out: TextIO, *, as_json: bool, environ: Mapping[str, str] = os.environ
) -> int:
    """Check the cluster for a job, report the findings, and return the exit code."""
    reach: K8sReach = spec.site.reach
    plan = make_plan(spec, spec.draft.name)
    package = manifests.pack_package(plan, environ)
    brings = manifests.find_brought(plan, package) is not None
    *others, job = manifests.make_objects(plan, reach, package)
    needs = Needs([*others, manifests.make_secret(job), job], attached=not spec.detach, brings=brings)
    try:
        cluster = open_cluster(reach.access, environ)
        try:
            seen = examine(cluster, needs)
        finally:
            cluster.close()
    except ClusterError as e:
        seen = ClusterSeen(e.server, reach.access.namespace or "?", failed=e.cause)
    findings = judge_cluster(seen, needs)
    table, data = make_table(seen, findings, len(list_rights(needs))), make_data(seen, findings)
    show(table, make_lines(findings), [data], out, as_json=as_json, environ=environ)
    return choose_exit_code(findings)


def list_rights(needs: Needs) -> list[Right]:
    has_policy = any(thing["kind"] == "NetworkPolicy" for thing in needs.objects)
    of_policies = (*POLICY, *KUBECTL_POLICY) if has_policy else ()
    return [*JOB, *EXEC, *LOOK, *KUBECTL, *of_policies]


def examine(cluster: Cluster, needs: Needs) -> ClusterSeen:
    """Return the observations of this user. Raises ClusterError."""
    here, rights = cluster.namespace, list_rights(needs)
    version = cluster.get("read its version", "/version")["gitVersion"]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        has = list(pool.map(cluster.has_right, rights))
    seen = ClusterSeen(
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
    allowed = [thing for thing in needs.objects if find_right(thing) not in seen.missing]
    return seen._replace(verdicts=[*ask_verdicts(cluster, allowed)])


def _look(ask: Callable[[], T]) -> T | None:
    """Return an answer; None without the right to it."""
    with contextlib.suppress(RightsError):
        return ask()
    return None
