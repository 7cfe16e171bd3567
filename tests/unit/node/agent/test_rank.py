"""A rank process, as mpirun starts it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess

from pslaunch.backends.local import NODE
from pslaunch.node import codes
from support.jobs import until_nothing_runs


def test_failure_of_an_agent_without_a_line_is_reported_by_a_rank_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unheard:
        port = unheard.getsockname()[1]  # refused from here on
    order = {"name": os.urandom(8).hex(), "addrs": ["127.0.0.1"], "port": port, "head": "launcher"}
    words = [*NODE, "rank", json.dumps({**order, "lost_after": 3.0, "grace": 0.0})]
    ranks = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    environ = {**os.environ, **ranks, "PSLAUNCH_MPI_SECRET": "00" * 32}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == codes.NODE_LOST
    said = f"pslaunch: {re.escape(socket.gethostname())}: pslaunch agent: ConnectionRefusedError: .*refused\n"
    assert re.fullmatch(said, done.stderr), done.stderr
    until_nothing_runs(3.0)
