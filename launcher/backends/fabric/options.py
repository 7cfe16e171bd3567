"""Options of `pslaunch fabric`."""

from __future__ import annotations

from typing import Final

from ...options import options
from ...options.kinds import Choice, Number, Text
from ...options.options import Need, Option, join_rows, make_flag

OPTIONS: Final = join_rows(
    (
        Option(name="conf", metavar="FILE", kind=Text(), says="./conf.py if it is there",
            default="conf.py",
            help="The cluster: HOSTS, ROOT_DIR, PADDLE_NIC, PADDLE_PORT and so on, as Python."),
        Option(name="hosts", metavar="LIST", kind=Text(repeatable=True), says="HOSTS of conf.py",
            help="Hosts: user@host:PORT,node[01-64],...; a host named k times, or host:k outside conf.py, "
            "gets k pairs of processes."),
        Option(name="hostfile", metavar="FILE", kind=Text(), aliases=("-hostfile",),
            help="Hosts in place of --hosts, one a line: user@node1:PORT slots=2."),
        Option(name="include", metavar="LIST", kind=Text(repeatable=True), says="all hosts",
            help="Use only these hosts: node1@node[3-5]."),
        Option(name="exclude", metavar="LIST", kind=Text(repeatable=True), says="none",
            help="Do not use these hosts."),
        options.ROOT_DIR._replace(says="ROOT_DIR of conf.py, else ~/pslaunch", default="~/pslaunch"),
        options.PACKAGE._replace(says=""),
        Option(name="max_connections", metavar="N", kind=Number(1, options.MAX_PROCESSES), default=32,
            help="Largest number of connections opened at once."),
        Option(name="host_key_policy", metavar="HOW", kind=Choice(("ask", "accept_new", "reject")),
            says="ask on a terminal, else reject",
            help="Policy for host keys missing from known_hosts: ask, accept_new or reject."),
        make_flag("connect", "With --dry_run: contact the hosts to complete the plan.",
            needs=(Need("dry_run", False),)),
    ),
    options.ON_HOSTS,
    options.COMMON,
)  # fmt: skip
