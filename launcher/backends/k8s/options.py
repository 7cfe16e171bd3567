"""Options of `pslaunch k8s`."""

from __future__ import annotations

from typing import Final

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
_GPU: Final = (Need("gpu", 0, "in pods without a GPU; --gpu=1 asks for one"),)

OPTIONS: Final = join_rows(
    (
        SERVER_NUM._replace(says="one in each pod"),
        WORKER_NUM._replace(says="one in each pod"),
        Option(
            name="nodes", metavar="N", kind=Number(1, MAX_PROCESSES),
            says="the larger of --server_num and --worker_num, else 1", help="Number of pods.",
            needs=(Need("separate", True, "with --separate, where each process has a pod of its own"),),
        ),
        Option(
            name="kubeconfig", metavar="FILE", kind=Text(),
            says="KUBECONFIG, else ~/.kube/config, else the account of this pod",
            help="The cluster's address and your credentials.",
        ),
        Option(
            name="context", metavar="NAME", kind=Text(), says="the current one",
            help="Context of the kubeconfig.",
        ),
        Option(
            name="namespace", metavar="NAME", kind=Text(), says="the context's", aliases=("-n",),
            help="Namespace of the job.",
        ),
        Option(
            name="image", metavar="NAME", kind=Text(), says="PSLAUNCH_IMAGE",
            help="Image of the pods, with Python 3.9 or later.",
        ),
        Option(
            name="cpu", metavar="QUANTITY", kind=Text(), says="none asked for",
            help="Processors of each pod, such as 2 or 500m.",
        ),
        Option(
            name="memory", metavar="QUANTITY", kind=Text(), says="none asked for",
            help="Memory of each pod, such as 4Gi.",
        ),
        make_flag(
            "separate", "Give each process a pod of its own; pservers get a Job of their own.", needs=SERVED
        ),
        Option(
            name="server_cpu", metavar="QUANTITY", kind=Text(), says="as --cpu",
            help="With --separate: processors of each pserver's pod.",
            needs=(Need("separate", False),),
        ),
        Option(
            name="server_memory", metavar="QUANTITY", kind=Text(), says="as --memory",
            help="With --separate: memory of each pserver's pod.",
            needs=(Need("separate", False),),
        ),
        Option(
            name="gpu", metavar="N", kind=Number(0, MAX_THREADS), default=0,
            help="GPUs of each trainer's pod (nvidia.com/gpu).",
        ),
        Option(
            name="node_selector", metavar="NAME=VALUE", kind=Text(repeatable=True), says="any nodes",
            help="Label of the cluster's nodes for the pods; may be repeated.",
        ),
        Option(
            name="pvc", metavar="NAME:PATH", kind=Text(repeatable=True), says="none",
            help="Volume claim, and the path at which each pod has it; may be repeated.",
        ),
        Option(
            name="image_pull_secret", metavar="NAME", kind=Text(), says="none",
            help="Secret for pulling the image.",
        ),
        Option(
            name="service_account", metavar="NAME", kind=Text(), says="the namespace's",
            help="Service account of the pods, which get none of its tokens.",
        ),
        Option(
            name="queue", metavar="NAME", kind=Text(), says="none",
            help="Queue of Kueue that releases the job, which is created suspended.",
        ),
        Option(
            name="deadline", metavar="SECONDS", kind=Seconds(1.0), says="none",
            help="Seconds that the job may take; the cluster then ends it.",
        ),
        make_flag("network_policy", "Let only the job's own pods reach its ports."),
        Option(
            name="patch", metavar="FILE", kind=Text(), says="none",
            help="Strategic merge patches in YAML, one a kind, for what has no option.",
        ),
        Option(
            name="ttl", metavar="SECONDS", kind=Seconds(1.0), default=3600.0,
            help="Seconds until a finished job is removed.",
        ),
        Option(
            name="wait_timeout", metavar="SECONDS", kind=Seconds(1.0), default=600.0,
            help="Seconds for all pods to be running.",
        ),
        Option(
            name="job_dispatch_package", metavar="DIR", kind=Text(), says="the program's folder",
            help="Folder to send to the pods, where the programs run in it; rendered, at most 900 KiB "
            "packed.",
        ),
        Option(
            name="job_workspace", metavar="DIR", kind=Text(),
            help="Working folder of the programs in the image or a volume claim; nothing is sent.",
        ),
        Option(
            name="link", metavar="NAME=PATH", kind=Text(repeatable=True),
            help="Link in the workspace to a path in the image or a volume claim; may be repeated.",
            needs=SENT,
        ),
        Option(
            name="fetch_output", metavar="DIR", kind=Text(), says="output/ of the folder",
            help="Local folder for output/ of node 0, fetched at the end.",
            needs=FOLLOWED,
        ),
        Option(
            name="fetch_logs", metavar="DIR", kind=Text(), says="log/ of the folder",
            help="Local folder for the logs of all pods, fetched at the end.",
            needs=FOLLOWED,
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
        Option(
            name="output_dir", metavar="DIR", kind=Text(), says="standard output", aliases=("-o",),
            help="Folder for the manifests, in several files.",
        ),
    ),
    [row._replace(needs=_GPU) for row in pick_rows(COMMON, "use_gpu")],
    pick_rows(ON_HOSTS, "shard", "python", "agent_python"),
    COMMON,
)  # fmt: skip

DEFAULT: Final = {option.name: option.default for option in OPTIONS}
