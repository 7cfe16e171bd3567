"""Rights in a namespace that `pslaunch k8s` needs; templates/k8s/role.yaml gives them, as a test checks."""

from __future__ import annotations

from typing import Final

from .k8s_errors import Right


def _list(resource: str, *verbs: str, group: str = "") -> tuple[Right, ...]:
    return tuple(Right(verb, resource, group) for verb in verbs)


# Objects of a job, and the view of its pods.
JOB: Final = (
    *_list("jobs", "create", "list", "patch", "delete", group="batch"),
    *_list("services", "create", "list", "delete"),
    *_list("configmaps", "create", "list", "delete"),
    *_list("secrets", "create", "delete"),
    *_list("pods", "list", "delete"),
    *_list("events", "list"),
)
# For the steps of docs/kubernetes.md with kubectl: `apply --server-side`, `get`, `logs`, `describe`.
KUBECTL: Final = (
    *_list("jobs", "get", "watch", group="batch"),
    *_list("services", "get", "watch", "patch"),
    *_list("configmaps", "get", "watch", "patch"),
    *_list("pods", "get", "watch"),
    *_list("pods/log", "get"),
    *_list("events", "get", "watch"),
)
# The line to a running job. The library asks for it by GET; later servers want to see `create` too.
EXEC: Final = _list("pods/exec", "get", "create")
# For `pslaunch check` in addition.
LOOK: Final = (
    *_list("namespaces", "get"),
    *_list("resourcequotas", "list"),
    *_list("limitranges", "list"),
    *_list("networkpolicies", "list", group="networking.k8s.io"),
)
# For `--network_policy` in addition, and for kubectl with it.
POLICY: Final = _list("networkpolicies", "create", "delete", group="networking.k8s.io")
KUBECTL_POLICY: Final = _list("networkpolicies", "get", "watch", "patch", group="networking.k8s.io")
