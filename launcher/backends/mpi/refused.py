"""Options of the tools below a command that it can't take: the reason and the remedy for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Options of mpirun that are none of ours, but have no other meaning either: `--mpirun_args` takes them.
FOR_MPIRUN: Final = frozenset(
    {
        *("report_bindings", "display", "display_map", "display_devel_map", "display_allocation"),
        *("use_hwthread_cpus", "cpu_set", "cpu_list", "cpus_per_proc", "cpus_per_rank", "rankfile", "rf"),
        *("nolocal", "nooversubscribe", "leave_session_attached", "debug_daemons", "v", "q"),
        *("npernode", "pernode", "npersocket", "N"),
    }
)

# Options of the same tools that a backend can't take, with the reason and the remedy. {}: as it was written.
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(FOR_MPIRUN, "it is mpirun's: --mpirun_args '{}'"),
    **dict.fromkeys(
        ("npernode", "pernode", "npersocket", "N"),
        "give -n for all hosts and --map-by ppr:N:node, with N for each host",
    ),
    "app": "pslaunch runs one program in all trainers; start a job for each program, with a --job_name",
    **dict.fromkeys(
        ("wdir", "wd"), "programs run in the job's workspace; choose it by --root_dir or --job_workspace"
    ),
    "stdin": "programs have an empty standard input; let them read a file of the workspace",
    **dict.fromkeys(
        ("output_filename", "tag_output", "xterm"),
        "each process has a log file in log/ of its workspace, and its name before each line; "
        "--fetch_logs brings the files",
    ),
    **dict.fromkeys(
        ("preload_binary", "preload_files", "s"), "--job_dispatch_package sends a folder to the hosts"
    ),
    "timeout": "it would end the agents, which end programs in order; use timeout N pslaunch mpi ...",
}
