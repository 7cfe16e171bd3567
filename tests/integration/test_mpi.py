"""`pslaunch mpi` on hosts: what only mpirun's ranks have, and what comes back from their hosts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pslaunch.node import codes
from pslaunch.node.agent.brought import SECRET_VARIABLE
from support import leaks
from support.jobs import parse_events, running, succeeded
from support.openmpi import MpiPlace
from support.process import poll_until
from testbed import Hosts

THREE = ("--server_num=0", "--worker_num=3", "--grace=1")
TRAINERS = ("trainer/0", "trainer/1", "trainer/2")
LOADER_BYTES = 8 * 1024  # with all addresses of the launcher
RANK_BYTES = 12 * 1024 * 1024
WAIT = "import os, signal\nos.write(1, b'ready\\n')\nsignal.pause()"
CPUS = """
import os
print(os.uname().nodename, *(len(os.sched_getaffinity(pid)) for pid in (0, os.getppid())))
"""


def list_ranks() -> list[int]:
    """Return rank processes, and keepers and agents that they have forked."""
    return [pid for pid, words in leaks.marked_processes().items() if " rank {" in words]


def test_output_and_logs_come_back(hosts: Hosts, workspace: Path, tmp_path: Path, major: int) -> None:
    (workspace / "train.py").write_text(
        "import os\nprint('rank', os.environ['RANK'])\n"
        "open(os.environ['PSLAUNCH_OUTPUT_DIR'] + '/model', 'wb').write(bytes(range(256)) * 1000)\n"
    )
    fetch = (f"--fetch_output={tmp_path / 'output'}", f"--fetch_logs={tmp_path / 'logs'}")
    succeeded(MpiPlace(hosts, major), workspace, *THREE, *fetch)
    assert (tmp_path / "output/model").read_bytes() == bytes(range(256)) * 1000
    for i, host in enumerate(hosts):
        assert (tmp_path / f"logs/{i}-{host.name}/train.log").read_text() == f"rank {i}\n"


def test_interrupted_fetch_ends_soon(hosts: Hosts, workspace: Path, tmp_path: Path) -> None:
    (workspace / "train.py").write_text(
        "import os\nwith open(os.environ['PSLAUNCH_OUTPUT_DIR'] + '/model', 'wb') as f:\n"
        "    f.truncate(8 << 30)\n"
    )
    fetch = f"--fetch_output={tmp_path / 'output'}"
    with running(MpiPlace(hosts, 5), workspace, *THREE, fetch) as job:
        job.launcher.until(lambda text: any(e["event"] == "end" for e in parse_events(text)), "no end")

        def is_sent() -> bool:
            return any(" results " in words for words in leaks.marked_processes().values())

        poll_until(is_sent, describe="nothing is fetched")
        job.launcher.proc.send_signal(signal.SIGINT)
        assert job.launcher.wait(timeout_s=3.5) == codes.INT


def test_rank_processes_are_small_and_keep_the_secret(hosts: Hosts, workspace: Path, major: int) -> None:
    with running(MpiPlace(hosts, major), workspace, *THREE, text=WAIT) as job:
        job.until_printed("ready", TRAINERS)
        environ = Path(f"/proc/{list_ranks()[0]}/environ").read_bytes().split(b"\0")
        ours = f"{SECRET_VARIABLE}=".encode()
        (secret,) = (word.removeprefix(ours) for word in environ if word.startswith(ours))
        assert len(secret) == 64
        assert not [words for words in leaks.marked_processes().values() if secret.decode() in words]
        for trainer in TRAINERS:
            assert secret not in Path(f"/proc/{job.pid(trainer)}/environ").read_bytes()
        (argv,) = (word for word in environ if word.startswith(b"OMPI_ARGV="))
        assert len(argv) < LOADER_BYTES
        ranks = set(list_ranks()) - {pid for trainer in TRAINERS for pid in job.guards(trainer)}
        assert len(ranks) == 3
        for pid in ranks:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
            assert int(rollup[rollup.index("Pss:") + 1]) * 1024 <= RANK_BYTES


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="a binding shows on several processors alone")
def test_only_trainers_are_bound_to_processors(
    hosts: Hosts, workspace: Path, tmp_path: Path, major: int
) -> None:
    (tmp_path / "places").write_text("".join(f"rank {i}=node{3 - i} slot=0\n" for i in range(3)))
    cpus, place, by_file = len(os.sched_getaffinity(0)), MpiPlace(hosts, major), f"-rf {tmp_path / 'places'}"
    for options, bound, first in (("", cpus, 1), ("--bind-to core", 1, 1), (by_file, 1, 3)):
        job = succeeded(place, workspace, *THREE, *options.split(), text=CPUS)
        names = ("node1", "node2", "node3")[:: 1 if first == 1 else -1]
        assert [job.lines(trainer) for trainer in TRAINERS] == [[f"{name} {bound} {cpus}"] for name in names]


def test_trainers_follow_the_mapping_of_mpirun(
    hosts: Hosts, workspace: Path, tmp_path: Path, major: int
) -> None:
    (workspace / "train.py").write_text(
        "import os, signal\n"
        "print(os.environ['PSLAUNCH_NODE_ID'], os.environ['PSLAUNCH_LOCAL_RANK'], flush=True)\n"
        "if os.environ['TRAINING_ROLE'] == 'PSERVER':\n"
        "    signal.pause()\n"
    )
    numbers = ("--server=script", "--server_num=2", "--worker_num=4", "--grace=1")
    place = MpiPlace(hosts, major)
    shown = ("--mpirun_args", "--display-map", f"--fetch_logs={tmp_path / 'logs'}")
    job = succeeded(place, workspace, *numbers, "-H", "node1:2,node2:2", "--map-by", "node", *shown)
    assert any("JOB MAP" in e["text"] for e in job.events() if e.get("who") == "mpirun")
    said = [job.lines(f"trainer/{rank}") for rank in range(4)]
    assert said == [["0 0"], ["1 0"], ["0 1"], ["1 1"]]
    assert [job.node_of(f"pserver/{i}") for i in (0, 1)] == [0, 1]
