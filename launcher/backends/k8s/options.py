"""Options of `pslaunch k8s`, and words that it can't take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...options.kinds import Number, Seconds, Text
from ...options.options import (
    ATTACHED,
    COMMON,
    MAX_PROCESSES,
    MAX_THREADS,
    ON_HOSTS,
    SENT,
    SERVED,
    SERVER_NUM,
    WORKER_NUM,
    Need,
    Option,
    join_rows,
    make_flag,
    pick_rows,
)

FOLLOWED: Final = (*ATTACHED, Need("linger", 0.0, "with --linger=0"))
ONE, MANY = Text(), Text(repeatable=True)
_SEPARATE: Final = (Need("separate", False),)
_GPU: Final = (Need("gpu", 0, "in pods without a GPU; --gpu=1 asks for one"),)


def _make_text(name: str, metavar: str, help: str, kind: Text = ONE, **more: Any) -> Option:
    return Option(name=name, metavar=metavar, help=help, kind=kind, **more)


OPTIONS: Final = join_rows(
    (
        SERVER_NUM._replace(says="one in each pod"),
        WORKER_NUM._replace(says="one in each pod"),
        Option(
            name="nodes", metavar="N", kind=Number(1, MAX_PROCESSES),
            says="the larger of --server_num and --worker_num, else 1", help="Number of pods.",
            needs=(Need("separate", True, "with --separate, where each process has a pod of its own"),),
        ),
        _make_text(
            "kubeconfig", "FILE", "The cluster's address and your credentials.",
            says="KUBECONFIG, else ~/.kube/config, else the account of this pod",
        ),
        _make_text("context", "NAME", "Context of the kubeconfig.", says="the current one"),
        _make_text("namespace", "NAME", "Namespace of the job.", says="the context's", aliases=("-n",)),
        _make_text("image", "NAME", "Image of the pods, with Python 3.9 or later.", says="PSLAUNCH_IMAGE"),
        _make_text("cpu", "QUANTITY", "Processors of each pod, such as 2 or 500m.", says="none asked for"),
        _make_text("memory", "QUANTITY", "Memory of each pod, such as 4Gi.", says="none asked for"),
        make_flag(
            "separate", "Give each process a pod of its own; pservers get a Job of their own.", needs=SERVED
        ),
        _make_text(
            "server_cpu", "QUANTITY", "With --separate: processors of each pserver's pod.", says="as --cpu",
            needs=_SEPARATE,
        ),
        _make_text(
            "server_memory", "QUANTITY", "With --separate: memory of each pserver's pod.",
            says="as --memory", needs=_SEPARATE,
        ),
        Option(
            name="gpu", metavar="N", kind=Number(0, MAX_THREADS), default=0,
            help="GPUs of each trainer's pod (nvidia.com/gpu).",
        ),
        _make_text(
            "node_selector", "NAME=VALUE", "Label of the cluster's nodes for the pods; may be repeated.",
            kind=MANY, says="any nodes",
        ),
        _make_text(
            "pvc", "NAME:PATH", "Volume claim, and the path at which each pod has it; may be repeated.",
            kind=MANY, says="none",
        ),
        _make_text("image_pull_secret", "NAME", "Secret for pulling the image.", says="none"),
        _make_text(
            "service_account", "NAME", "Service account of the pods, which get none of its tokens.",
            says="the namespace's",
        ),
        _make_text(
            "queue", "NAME", "Queue of Kueue that releases the job, which is created suspended.",
            says="none",
        ),
        Option(
            name="deadline", metavar="SECONDS", kind=Seconds(1.0), says="none",
            help="Seconds that the job may take; the cluster then ends it.",
        ),
        make_flag("network_policy", "Let only the job's own pods reach its ports."),
        _make_text(
            "patch", "FILE", "Strategic merge patches in YAML, one a kind, for what has no option.",
            says="none",
        ),
        Option(
            name="ttl", metavar="SECONDS", kind=Seconds(1.0), default=3600.0,
            help="Seconds until a finished job is removed.",
        ),
        Option(
            name="wait_timeout", metavar="SECONDS", kind=Seconds(1.0), default=600.0,
            help="Seconds for all pods to be running.",
        ),
        _make_text(
            "job_dispatch_package", "DIR",
            "Folder to send to the pods, where the programs run in it; rendered, at most 900 KiB packed.",
            says="the program's folder",
        ),
        _make_text(
            "job_workspace", "DIR",
            "Working folder of the programs in the image or a volume claim; nothing is sent.",
        ),
        _make_text(
            "link", "NAME=PATH",
            "Link in the workspace to a path in the image or a volume claim; may be repeated.", kind=MANY,
            needs=SENT,
        ),
        _make_text(
            "fetch_output", "DIR", "Local folder for output/ of node 0, fetched at the end.",
            says="output/ of the folder", needs=FOLLOWED,
        ),
        _make_text(
            "fetch_logs", "DIR", "Local folder for the logs of all pods, fetched at the end.",
            says="log/ of the folder", needs=FOLLOWED,
        ),
        Option(
            name="lease", metavar="SECONDS", kind=Seconds(3.0), default=120.0,
            help="Seconds after which a job whose launcher is gone ends.",
            needs=ATTACHED,
        ),
        Option(
            name="linger", metavar="SECONDS", kind=Seconds(0.0),
            says="120; 600 with --detach, or 0 with --pvc too",
            help="Seconds for which a job's files can be fetched after its end; 0: nothing is fetched.",
        ),
        make_flag("validate", "Let the cluster judge every object of the job, and create nothing."),
        _make_text(
            "output_dir", "DIR", "Folder for the manifests, in several files.", says="standard output",
            aliases=("-o",),
        ),
    ),
    [row._replace(needs=_GPU) for row in pick_rows(COMMON, "use_gpu")],
    pick_rows(ON_HOSTS, "shard", "python", "agent_python"),
    COMMON,
)  # fmt: skip

DEFAULT: Final = {option.name: option.default for option in OPTIONS}


def _write_patch(of_pod: str) -> str:
    """Return the remedy for a former option, which --patch replaces."""
    text = f"write into a file for --patch: {{kind: Job, spec: {{template: {{spec: {{{of_pod}}}}}}}}}"
    return text.replace("{", "{{").replace("}", "}}")


# Words of kubectl and former options, with reason and remedy for each; {}: as it was written.
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
