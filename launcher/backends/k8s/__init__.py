"""Pods of a Kubernetes cluster, which run a job without a launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import require_extra
from ..face import CHECK, CommandLine, Face

if TYPE_CHECKING:
    from ...node.job import Plan
    from ...options.spec import JobSpec
    from .spec import K8sReach
    from .way import PodsWay

APPLY, RENDER = "apply", "render"


class K8sFace(Face):
    name, extra, example = "k8s", "k8s", "--image registry/name --nodes 3"
    refused = "options:REFUSED"
    backend, reach = "backend:K8sBackend", "spec:K8sReach"
    help = "Run jobs on Kubernetes, or print their manifests."
    helps: ClassVar = {
        APPLY: """Run one job on Kubernetes, and wait for its end.

        Creates what `pslaunch k8s render` prints, under a new name, shows the job's output, fetches its
        output/ and logs and removes all of it. Needs a kubeconfig and the rights of templates/k8s/role.yaml.
        Words before and after PROGRAM are handled as by `pslaunch local`.
        """,
        RENDER: """Print the manifests of one job, for `kubectl apply -f -`.

        Each pod is a node with a pserver and a trainer, and the program's folder travels along. The cluster
        needs no operator. The same job gives the same text; its secret is in none of it: a command that makes
        it is printed on standard error. Words before and after PROGRAM are handled as by `pslaunch local`.
        """,
        CHECK: """Check the cluster for a job and report everything that would prevent it from running.

        Takes the command line of `pslaunch k8s apply` unchanged. Nothing is created. With --json: one object.
        The exit code is 0 if the job can run.
        """,
    }
    meant: ClassVar = {
        **dict.fromkeys(("", "create", "run", "start", "submit"), "pslaunch k8s apply"),
        "describe": "pslaunch status",
        "get": "pslaunch jobs",
    }
    place: ClassVar = {
        "namespace": ("NAME", "Ask the cluster for the jobs in this namespace. [default: the context's]"),
        "context": ("NAME", "Ask the cluster of this context. [default: the current one]"),
        "kubeconfig": (
            "FILE", "Ask the cluster of this kubeconfig. [default: KUBECONFIG, else ~/.kube/config]"
        ),
    }  # fmt: skip
    place_hint, places = "--namespace=NAME asks a cluster", "spec:find_cluster"

    def make_spec(self, line: CommandLine) -> JobSpec:
        from .spec import RUN_DIGITS, make_k8s_spec

        require_extra(self.extra)
        run = {APPLY: os.urandom(RUN_DIGITS // 2).hex(), CHECK: RUN_DIGITS * "0", RENDER: ""}[line.command]
        return make_k8s_spec(line, run)

    def act(self, line: CommandLine, spec: JobSpec) -> int | None:
        if line.command == RENDER:
            from .manifests import print_manifests

            return print_manifests(line, spec)
        if not line.given.is_set("validate"):
            return None
        from .cluster_check import validate

        return validate(line, spec)

    def check(self, line: CommandLine, spec: JobSpec) -> int:
        from .cluster_check import check_cluster

        return check_cluster(line, spec)

    def make_way(self, spec: JobSpec, plan: Plan) -> PodsWay:
        from .backend import K8sBackend
        from .way import PodsWay

        return PodsWay(K8sBackend(spec.site.reach), plan)

    def describe_start(self, reach: K8sReach, plan: Plan) -> Mapping[str, Any]:
        from . import manifests

        package = manifests.pack_package(plan, os.environ)
        return {"package": [manifests.describe_package(plan, reach, package)]}


FACE = K8sFace()
