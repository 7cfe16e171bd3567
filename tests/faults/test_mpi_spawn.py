"""What ranks spawn (MPI_Comm_spawn) is no child of ours, but belongs to the job: it is shown, and it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.jobs import Event, Job, running, succeeded, until_nothing_runs
from support.openmpi import MpiPlace, share_mpi4py
from testbed import Hosts

GRACE_S, SLACK_S = 1.0, 3.5
OPTIONS = ("--server_num=0", "--worker_num=2", f"--grace={GRACE_S:g}", "--lost_after=60")
# Both ranks together spawn three more, for which the second host has slots: by the daemon of that host, since
# one of Open MPI 5 sometimes crashes that has none of them.
PARENT = """
import os, signal, sys
from mpi4py import MPI
child = MPI.COMM_WORLD.Spawn(sys.executable, ["child.py", os.environ["PYTHONPATH"]], maxprocs=3, root=1)
child.Disconnect()
if os.environ["HOW"] != "end":
    signal.pause()
"""
# Each leaves a process in a session of its own, and can be ended only by KILL.
CHILD = """
import os, signal, subprocess, sys
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
parent = MPI.Comm.Get_parent()
def tell(*_):
    os.write(1, b"told\\n")
signal.signal(signal.SIGTERM, tell)
hidden = "trap 'echo told > hidden-told' TERM; echo ready; while :; do sleep 1000 & wait; done"
subprocess.Popen(["setsid", "sh", "-c", hidden])
print("spawned", MPI.COMM_WORLD.rank, "of", MPI.COMM_WORLD.allreduce(1), flush=True)
parent.Disconnect()
while True:
    signal.pause()
"""


def until_spawned(job: Job) -> None:
    """Wait until all that is spawned runs, and has been shown."""
    words = {"ready", *(f"spawned {rank} of 3" for rank in range(3))}

    def shown(events: list[Event]) -> bool:
        said = [e["text"] for e in events if e["event"] == "note" and e.get("who", "").startswith("spawn/")]
        return words <= {*said} and said.count("ready") == 3

    job.until(shown, "what is spawned")


@pytest.mark.parametrize(("major", "how"), [(4, "INT"), (5, "TERM"), (5, "end"), (5, "agent"), (4, "guards")])
def test_what_ranks_spawn_is_shown_and_ends_with_the_job(
    hosts: Hosts, workspace: Path, tmp_path: Path, major: int, how: str
) -> None:
    (workspace / "child.py").write_text(CHILD)
    place = MpiPlace(hosts, major)
    fetched = (f"--fetch_logs={tmp_path / 'logs'}",) if how == "end" else ()
    env = (share_mpi4py(hosts), f"--env=HOW={how}", *fetched)
    # With parents on two hosts Open MPI 5 sometimes hangs in a disconnect or loses a daemon: docs/mpi.md.
    on, where = ("node1:5", hosts[0]) if major == 5 else ("node1:1,node2:4", hosts[1])
    with running(place, workspace, *OPTIONS, *env, "-H", on, text=PARENT) as job:
        until_spawned(job)
        if how in ("INT", "TERM"):
            job.launcher.proc.send_signal(signal.Signals[f"SIG{how}"])
        if how in ("agent", "guards"):
            for pid in reversed(job.guards("trainer/1")[how == "agent" :]):
                os.kill(pid, signal.SIGKILL)
        expected = {"end": codes.OK, "INT": codes.INT, "TERM": codes.TERM}.get(how, codes.NODE_LOST)
        bound_s = 20.0 if fetched else GRACE_S + SLACK_S
        assert job.launcher.wait(timeout_s=bound_s) == expected, job.launcher.output()
        if how == "guards":  # nobody is left who would end a process in another session
            (workspace / "train.py").write_text("")
            again = succeeded(place, workspace, *OPTIONS, "-H", "node1,node2")
            assert (
                "processes of a job of MPI, whose keepers were killed, were ended" in again.launcher.output()
            )
        until_nothing_runs(GRACE_S + SLACK_S)
    if expected == codes.OK:
        assert "spawned 2 of 3\n" in (tmp_path / "logs/spawn.log").read_text()
    assert (where.root / workspace.name / "hidden-told").exists()  # TERM came before KILL
