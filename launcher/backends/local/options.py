"""Options of `pslaunch local`."""

from __future__ import annotations

from typing import Final

from ...options import options
from ...options.kinds import Number, Text
from ...options.options import Option, join_rows, pick_rows

OPTIONS: Final = join_rows(
    (
        options.SERVER_NUM._replace(says="one on each node, if the program needs any"),
        options.WORKER_NUM._replace(says="one on each node"),
        Option(name="job_workspace", metavar="DIR", kind=Text(), says="the program's folder",
            help="Working folder of the programs."),
        options.PACKAGE._replace(says="",
            help="Folder to send to the nodes; on this machine it is used in place."),
        Option(name="python", metavar="FILE", kind=Text(), says="that of pslaunch",
            help="Interpreter of .py programs."),
        Option(name="nodes", metavar="N", kind=Number(1, options.MAX_PROCESSES), default=1,
            help="Simulate a cluster: N nodes, all but node 0 with a copy of the workspace."),
        options.CONF,
    ),
    pick_rows(options.ON_HOSTS, "log_dir", "head"),
    options.COMMON,
)  # fmt: skip
