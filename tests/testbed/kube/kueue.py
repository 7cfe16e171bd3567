"""Kueue on a cluster: its controller, a process of the first node, without webhooks. By `make kube EXTRAS=1`.

Its webhooks set defaults and refuse; jobs of pslaunch are created suspended, and need neither.
"""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from testbed.kube.cluster import BUILT, Cluster, find_built

API = "kueue.x-k8s.io/v1beta2"
PARTS = ("kueue", "kueue-crds")
KINDS = {"clusterqueues", "localqueues", "resourceflavors", "workloads"}
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CONFIG = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
    "leaderElection": {"leaderElect": False}, "internalCertManagement": {"enable": False},
    "webhook": {"port": 9443, "certDir": "/certs"}, "integrations": {"frameworks": ["batch/job"]},
}  # fmt: skip


def why_not() -> str:
    """Return the reason why Kueue can't run here; empty if it can."""
    missing = [name for name in PARTS if not (BUILT / name).exists()]
    return f"no {', '.join(missing)} in {BUILT}: make kube EXTRAS=1 makes them" if missing else ""


def start(cluster: Cluster) -> None:
    """Start the controller. It is alone in its root, where it looks for its keys."""
    for crd in yaml.load_all(find_built("kueue-crds").read_bytes(), yaml.CSafeLoader):
        cluster.ask(CRDS, crd)
    served = f"/apis/{API}"
    cluster.wait("the kinds of Kueue", lambda: {r["name"] for r in cluster.ask(served)["resources"]} >= KINDS)
    first = cluster.nodes[0]
    keys, root = first.folder / "certs", first.folder / "kueue"
    for folder in ("certs", "etc/kueue/metrics/certs"):
        (root / folder).mkdir(parents=True)
        for name in ("crt", "key"):
            shutil.copy(keys / f"apiserver.{name}", root / folder / f"tls.{name}")
    shutil.copy(find_built("kueue"), root / "program")
    access: dict[str, Any] = yaml.safe_load(cluster.admin_config.read_text())
    there = access["clusters"][0]["cluster"]
    ca = Path(there.pop("certificate-authority")).read_bytes()
    there["certificate-authority-data"] = base64.b64encode(ca).decode()
    (root / "access").write_text(json.dumps(access))
    (root / "config").write_text(json.dumps(CONFIG))
    first.start("kueue", [
        "chroot", root, "/program", "--config=/config", "--kubeconfig=/access",
        "--feature-gates=VisibilityOnDemand=false",
    ])  # fmt: skip


def make_queue(cluster: Cluster, name: str, namespace: str, amounts: dict[str, str]) -> None:
    """Make a queue whose running jobs have at most these amounts of resources."""
    resources = [{"name": kind, "nominalQuota": amount} for kind, amount in amounts.items()]
    flavors = [{"name": "any", "resources": resources}]
    groups = [{"coveredResources": [*amounts], "flavors": flavors}]
    whole = {"namespaceSelector": {}, "resourceGroups": groups}
    for path, kind, named, spec in (
        ("resourceflavors", "ResourceFlavor", "any", {}),
        ("clusterqueues", "ClusterQueue", "all", whole),
        (f"namespaces/{namespace}/localqueues", "LocalQueue", name, {"clusterQueue": "all"}),
    ):
        body = {"apiVersion": API, "kind": kind, "metadata": {"name": named}, "spec": spec}
        cluster.ask(f"/apis/{API}/{path}", body)
