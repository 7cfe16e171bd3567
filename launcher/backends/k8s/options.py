"""Options of `pslaunch k8s`, and words that it can't take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...options import options
from ...options.kinds import Number, Seconds, Text
from ...options.options import Need, Option, join_rows, make_flag, pick_rows

FOLLOWED: Final = (*options.ATTACHED, Need("linger", 0.0, "with --linger=0"))
MANY: Final = Text(repeatable=True)
_SEPARATE: Final = (Need("separate", False),)

OPTIONS: Final = join_rows(
    (
        options.SERVER_NUM._replace(says="one in each pod, if the program needs any"),
        options.WORKER_NUM._replace(says="one in each pod"),
        Option("nodes", Number(1, options.MAX_PROCESSES), "Number of pods.", "N",
            says="the larger of --server_num and --worker_num, else 1",
            needs=(Need("separate", True, "with --separate, where each process has a pod of its own"),)),
        Option("kubeconfig", Text(), "The cluster's address and your credentials.", "FILE",
            says="KUBECONFIG, else ~/.kube/config, else the account of this pod"),
        Option("context", Text(), "Context of the kubeconfig.", "NAME", says="the current one"),
        Option("namespace", Text(), "Namespace of the job.", "NAME", says="the context's", aliases=("-n",)),
        Option("image", Text(), "Image of the pods, with Python 3.9 or later.", "NAME",
            says="PSLAUNCH_IMAGE"),
        make_flag("image_has_pslaunch", "The image has this version of pslaunch: no copy of it is sent."),
        Option("wheel", MANY, "Wheel of pslaunch for pods on such processors; may be repeated.", "FILE",
            says="made from this pslaunch", needs=(Need("image_has_pslaunch", True),)),
        Option("cpu", Text(), "Processors of each pod, such as 2 or 500m.", "QUANTITY",
            says="none asked for"),
        Option("memory", Text(), "Memory of each pod, such as 4Gi.", "QUANTITY", says="none asked for"),
        make_flag("separate", "Give each process a pod of its own; pservers get a Job of their own.",
            needs=options.SERVED),
        Option("server_cpu", Text(), "With --separate: processors of each pserver's pod.", "QUANTITY",
            says="as --cpu", needs=_SEPARATE),
        Option("server_memory", Text(), "With --separate: memory of each pserver's pod.", "QUANTITY",
            says="as --memory", needs=_SEPARATE),
        options.GPUS._replace(metavar="N", aliases=(), help="GPUs of each trainer's pod (nvidia.com/gpu).",
            says="--gpus_per_trainer for each trainer of it, else none"),
        Option("node_selector", MANY, "Label of the cluster's nodes for the pods; may be repeated.",
            "NAME=VALUE", says="any nodes"),
        Option("pvc", MANY, "Volume claim, and the path at which each pod has it; may be repeated.",
            "NAME:PATH", says="none"),
        Option("image_pull_secret", Text(), "Secret for pulling the image.", "NAME", says="none"),
        Option("service_account", Text(), "Service account of the pods, which get none of its tokens.",
            "NAME", says="the namespace's"),
        Option("queue", Text(), "Queue of Kueue that releases the job, which is created suspended.", "NAME",
            says="none"),
        Option("deadline", Seconds(1.0), "Seconds that the job may take; the cluster then ends it.",
            "SECONDS", says="none"),
        make_flag("network_policy", "Let only the job's own pods reach its ports."),
        Option("patch", Text(), "Strategic merge patches in YAML, one a kind, for what has no option.",
            "FILE", says="none"),
        Option("ttl", Seconds(1.0), "Seconds until a finished job is removed.", "SECONDS", default=3600.0),
        Option("wait_timeout", Seconds(1.0), "Seconds for all pods to be running.", "SECONDS", default=600.0),
        options.PACKAGE._replace(
            help="Folder to send to the pods, where the programs run in it; rendered, at most 900 KiB packed."
        ),
        Option("job_workspace", Text(),
            "Working folder of the programs in the image or a volume claim; nothing is sent.", "DIR"),
        Option("link", MANY,
            "Link in the workspace to a path in the image or a volume claim; may be repeated.", "NAME=PATH",
            needs=options.SENT),
        Option("fetch_output", Text(), "Local folder for output/ of node 0, fetched at the end.", "DIR",
            says="output/ of the folder", needs=FOLLOWED),
        Option("fetch_logs", Text(), "Local folder for the logs of all pods, fetched at the end.", "DIR",
            says="log/ of the folder", needs=FOLLOWED),
        Option("lease", Seconds(3.0), "Seconds after which a job whose launcher is gone ends.", "SECONDS",
            default=120.0, needs=options.ATTACHED),
        Option("linger", Seconds(0.0),
            "Seconds for which a job's files can be fetched after its end; 0: nothing is fetched.", "SECONDS",
            says="120; 600 with --detach, or 0 with --pvc too"),
        make_flag("validate", "Let the cluster judge every object of the job, and create nothing."),
        Option("output_dir", Text(), "Folder for the manifests, in several files.", "DIR",
            says="standard output", aliases=("-o",)),
    ),
    pick_rows(options.ON_HOSTS, "shard", "python", "agent_python"),
    options.COMMON,
)  # fmt: skip

K8S_DEFAULTS: Final = {option.name: option.default for option in OPTIONS}

# Words of kubectl, with reason and remedy for each; {}: as it was written.
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
}
