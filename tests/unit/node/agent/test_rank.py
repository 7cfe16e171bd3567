"""A rank process, as mpirun starts it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess

from pslaunch.backends.here import NODE
from pslaunch.node import codes
from support import leaks
from support.jobs import until_nothing_runs
from support.process import poll_until

ORDER = {"addrs": ["127.0.0.1"], "head": "launcher", "lost_after": 3.0, "grace": 0.0}


def start_rank(port: int, local_size: int) -> subprocess.Popen[str]:
    order = json.dumps({**ORDER, "name": os.urandom(8).hex(), "port": port})
    names = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
    ranks = {"OMPI_COMM_WORLD_RANK": "0", **dict.fromkeys(names, str(local_size))}
    environ = {**os.environ, **ranks, "PSLAUNCH_CARRIED_SECRET": "00" * 32}
    return subprocess.Popen([*NODE, "rank", order], env=environ, stderr=subprocess.PIPE, text=True)


def test_failure_of_an_agent_without_a_line_is_reported_by_a_rank_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unheard:
        port = unheard.getsockname()[1]  # refused from here on
    with start_rank(port, 1) as rank:
        said = rank.communicate(timeout=60)[1]
    assert rank.returncode == codes.NODE_LOST
    host = re.escape(socket.gethostname())
    expected = f"pslaunch: {host}: pslaunch agent: ConnectionRefusedError: .*refused\n"
    assert re.fullmatch(expected, said), said
    until_nothing_runs(3.0)


def test_keeper_does_not_wait_for_ranks_that_mpirun_has_ended() -> None:
    with start_rank(1, 2) as rank:
        poll_until(lambda: len(leaks.processes_of_the_test()) == 2, describe="no keeper")
        rank.kill()
    until_nothing_runs(3.0)
