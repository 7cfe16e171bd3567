"""Rights in a namespace that `pslaunch k8s` needs; templates/k8s/role.yaml gives them, as a test checks."""

from __future__ import annotations

from typing import Final

from .k8s_errors import Right


def _list(resource: str, *verbs: str, group: str = "") -> tuple[Right, ...]:
    return tuple(Right(verb, resource, group) for verb in verbs)


# Objects of a job, and the view of its pods.
JOB: Final = (
    *_list("jobs", "create", "get", "list", "watch", "patch", "delete", group="batch"),
    *_list("services", "create", "get", "list", "watch", "patch", "delete"),
    *_list("configmaps", "create", "get", "list", "watch", "patch", "delete"),
    *_list("secrets", "create", "delete"),
    *_list("pods", "get", "list", "watch", "delete"),
    *_list("pods/log", "get"),
    *_list("events", "get", "list", "watch"),
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
# For `--network_policy` in addition.
POLICY: Final = _list(
    "networkpolicies", "create", "get", "watch", "patch", "delete", group="networking.k8s.io"
)
