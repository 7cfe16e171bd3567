"""A real Kubernetes cluster of two nodes on one machine, in namespaces of its own. Needs root, `.ci/kube`."""

from __future__ import annotations

from testbed.kube.cluster import NAMESPACE, USER, Cluster, why_not

__all__ = ["NAMESPACE", "USER", "Cluster", "why_not"]
