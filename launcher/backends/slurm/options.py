"""Options of `pslaunch slurm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...options import options
from ...options.kinds import Number, Text
from ...options.options import Option, join_rows

OPTIONS: Final = join_rows(
    (
        Option(name="nodes", metavar="N", kind=Number(1, options.MAX_PROCESSES), aliases=("-N",),
            says="those of the allocation, else 1", help="Number of nodes."),
        options.WORKER_NUM._replace(aliases=("-n", "--ntasks"), help="Total number of trainers.",
            says="one for each task of the allocation, else one on each node"),
        Option(name="partition", metavar="NAME", kind=Text(), aliases=("-p",), says="Slurm's",
            help="Partition of the nodes."),
        Option(name="time", metavar="TIME", kind=Text(), aliases=("-t",), says="the partition's",
            help="Time limit, as for sbatch: minutes, or D-HH:MM:SS."),
        Option(name="account", metavar="NAME", kind=Text(), aliases=("-A",), says="Slurm's",
            help="Account that pays for the nodes."),
        Option(name="slurm_args", metavar="TEXT", kind=Text(dashed=True),
            help="Further words for salloc, as in a shell: '--exclusive --mem=0'."),
        options.GPUS._replace(metavar="N", aliases=("--gpus-per-node",),
            help="GPUs of each node, asked of Slurm.",
            says="--gpus_per_trainer for each trainer of it, else none"),
        options.ROOT_DIR._replace(help="Folder on the nodes for the job's workspace."),
        options.CONF,
        options.PACKAGE._replace(help="Folder to send to the nodes, where the programs run in it."),
    ),
    options.ON_HOSTS,
    options.COMMON,
)  # fmt: skip

WHEN_MADE: Final = "ask sbatch or salloc for it when you make the allocation"
# Words of sbatch and srun, with the reason and the remedy. {}: as it was written.
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("c", "cpus_per_task", "mem", "mem_per_cpu", "gres", "exclusive", "qos", "q", "constraint",
         "C", "nodelist", "w", "exclude", "x", "reservation", "begin", "dependency", "d", "immediate"),
        "it is salloc's: --slurm_args '{}'; in an allocation, " + WHEN_MADE,
    ),
    **dict.fromkeys(
        ("ntasks_per_node", "mpi", "overlap", "exact"),
        "each node has one process of the step, which starts all others: -n is the number of trainers",
    ),
    **dict.fromkeys(("o", "output", "e", "error"), "each process has a log in log/ of its workspace"),
    **dict.fromkeys(("chdir", "D"), "programs run in the job's workspace: --root_dir or --job_workspace"),
}  # fmt: skip
