"""A rank process, as mpirun starts it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
from pathlib import Path

from pslaunch.backends.here import NODE
from pslaunch.node import codes
from support import leaks
from support.jobs import until_nothing_runs
from support.process import poll_until

SECRET = "00" * 32
ORDER = {"addrs": ["127.0.0.1"], "head": "launcher", "lost_after": 3.0, "grace": 0.0}


def start_rank(port: int, local_size: int, rank: int = 0, name: str = "") -> subprocess.Popen[str]:
    order = json.dumps({**ORDER, "name": name or os.urandom(8).hex(), "port": port})
    names = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
    ranks = {"OMPI_COMM_WORLD_RANK": str(rank), **dict.fromkeys(names, str(local_size))}
    environ = {**os.environ, **ranks, "PSLAUNCH_CARRIED_SECRET": SECRET}
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


def lend(name: str, loan: bytes) -> None:
    """Lend as a rank process of this node does; return once that is refused."""
    with socket.socket(socket.AF_UNIX) as sock:
        poll_until(lambda: sock.connect_ex(f"\0pslaunch-ranks-{name}") == 0, describe="no keeper")
        sock.sendall(loan + b"\n")
        sock.settimeout(30)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""


def test_false_ranks_are_refused_and_the_true_ones_go_on() -> None:
    name = os.urandom(8).hex()
    with contextlib.ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as launcher:
        launcher.settimeout(30)
        port = launcher.getsockname()[1]
        ranks = [stack.enter_context(start_rank(port, 2, 0, name))]
        sockets = Path("/proc/net/unix")  # one listens, one is connected
        poll_until(lambda: sockets.read_text().count(name) == 2, describe="rank 0 does not connect")
        for rank, secret in ((0, SECRET), (2, SECRET), (-1, SECRET), (2**70, SECRET), ("x", SECRET), (1, "")):
            lent = {"environ": {"OMPI_COMM_WORLD_RANK": rank}, "cpus": [0], "secret": secret}
            lend(name, json.dumps(lent).encode())
        for odd in (b"", b"{", b"[]", b"[" * 100_000, b"{}", b'{"environ": 7}'):
            lend(name, odd)
        ranks.append(stack.enter_context(start_rank(port, 2, 1, name)))
        with launcher.accept()[0] as agent:  # of both
            assert agent.recv(4) == b"PSHS"
        launcher.close()
        for true in ranks:
            assert true.wait(timeout=30) == codes.NODE_LOST
    until_nothing_runs(3.0)
