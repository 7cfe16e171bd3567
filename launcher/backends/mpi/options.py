"""Options of `pslaunch mpi`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...options import options
from ...options.kinds import Text
from ...options.options import Need, Option, join_rows, make_flag

OPTIONS: Final = join_rows(
    (
        Option(name="hostfile", metavar="FILE", kind=Text(),
            says="an allocation of Slurm or PBS, else this machine",
            aliases=("-hostfile", "--machinefile", "-machinefile"),
            help="Hosts, one a line: user@node1 slots=2 max_slots=4. A line without slots is one trainer."),
        Option(name="host", metavar="LIST", kind=Text(), aliases=("-H", "-host", "--hosts"),
            help="Hosts in place of a hostfile, or those of it to use: user@node1:2,node2."),
        Option(name="mpirun", metavar="PATH", kind=Text(), default="mpirun",
            help="mpirun of Open MPI 4 or 5; pslaunch detects its version."),
        Option(name="prefix", metavar="DIR", kind=Text(), says="that of mpirun, if --mpirun is a path",
            aliases=("-prefix",), help="Folder of Open MPI on the hosts; --install makes an absent one."),
        Option(name="mca", metavar="KEY VALUE", kind=Text(repeatable=True, values=2),
            aliases=("-mca", "--gmca", "-gmca"), help="Setting of Open MPI; may be repeated."),
        Option(name="prtemca", metavar="KEY VALUE", kind=Text(repeatable=True, values=2),
            aliases=("-prtemca",), help="Setting of the daemons of Open MPI 5; may be repeated."),
        Option(name="map_by", metavar="HOW", kind=Text(), aliases=("-map-by",),
            help="Order of mpirun's ranks on the hosts: slot, node, ..."),
        Option(name="rank_by", metavar="HOW", kind=Text(), aliases=("-rank-by",),
            help="Numbering of mpirun's ranks."),
        Option(name="bind_to", metavar="HOW", kind=Text(), default="none", aliases=("-bind-to",),
            help="Processors of each trainer: none, core, numa, ..."),
        make_flag("oversubscribe", "Allow more trainers than slots.", ("-oversubscribe",)),
        make_flag("allow_run_as_root", "Let mpirun run as root.", ("-allow-run-as-root",)),
        make_flag("script", "Print a script that mpirun runs without pslaunch; start nothing."),
        Option(name="output", metavar="FILE", kind=Text(), says="standard output", aliases=("-o",),
            help="File for --script.",
            needs=(Need("script", False),)),
        Option(name="rankfile", metavar="FILE", kind=Text(), aliases=("-rankfile", "-rf", "--rf"),
            help="Host and processors of each rank, one a line: rank 0=node1 slot=0-3.",
            needs=(Need("map_by", options.GIVEN), Need("rank_by", options.GIVEN))),
        Option(name="mpirun_args", metavar="TEXT", kind=Text(dashed=True),
            help="Further words for mpirun, as in a shell."),
        options.ROOT_DIR,
        options.WORKER_NUM._replace(says="one for each slot of the hosts",
            aliases=("-n", "-np", "--np", "-c"),
            help="Number of trainers: ranks of MPI. More than the lines of a hostfile are dealt in turn."),
        options.ENV._replace(aliases=("-x",)),
        options.CONF,
        options.PACKAGE,
    ),
    options.ON_HOSTS,
    options.COMMON,
)  # fmt: skip

# Options of mpirun that are none of ours, but have no other meaning either: `--mpirun_args` takes them.
FOR_MPIRUN: Final = frozenset(
    {
        *("report_bindings", "display", "display_map", "display_devel_map", "display_allocation"),
        *("use_hwthread_cpus", "cpu_set", "cpu_list", "cpus_per_proc", "cpus_per_rank"),
        *("nolocal", "nooversubscribe", "leave_session_attached", "debug_daemons", "v", "q"),
        *("npernode", "pernode", "npersocket", "N"),
    }
)

# Options of mpirun that we can't take, with the reason and the remedy. {}: as it was written.
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
}
