"""Words of kubectl, and former options, that `pslaunch k8s` can't take: reason and remedy for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


def _write_patch(of_pod: str) -> str:
    """Return the remedy for a former option, which --patch replaces."""
    text = f"write into a file for --patch: {{kind: Job, spec: {{template: {{spec: {{{of_pod}}}}}}}}}"
    return text.replace("{", "{{").replace("}", "}}")


# {}: as it was written.
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("f", "filename"), "the manifests come from the options; kubectl apply takes what render prints"
    ),
    "replicas": "--nodes is the number of pods",
    **dict.fromkeys(("requests", "limits"), "--cpu and --memory are requests and limits"),
    "restart": "pods are never restarted, since the head of the job decides on failures",
    **dict.fromkeys(("overrides", "labels", "l", "annotations", "image_pull_policy"), "--patch FILE adds it"),
    **dict.fromkeys(
        ("volume", "v"), "--pvc=NAME:PATH mounts a volume claim, and --patch FILE adds other volumes"
    ),
    **dict.fromkeys(("stdin", "i", "it", "tty"), "programs have an empty standard input"),
    "toleration": _write_patch("tolerations: [{key: KEY, value: VALUE, effect: EFFECT}]"),
    "priority_class": _write_patch("priorityClassName: NAME"),
    "shm": _write_patch(
        "volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: QUANTITY}}], "
        "containers: [{name: node, volumeMounts: [{name: shm, mountPath: /dev/shm}]}]"
    ),
    "env_secret": _write_patch(
        "containers: [{name: node, env: [{name: NAME, valueFrom: {secretKeyRef: {name: SECRET, key: KEY}}}]}]"
    ),
}
