"""Every ending under mpirun: whoever is hit, the job ends with its code in time, and leaves nothing.

mpirun, its daemons and the rank processes only bring the agents, so a job does not notice that one of them
was stopped. KILL and STOP hit guards, and all signals the launcher, in the contract suite.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pslaunch.node import codes
from support import leaks, others
from support.jobs import (
    Event,
    Job,
    finished,
    parent_of,
    running,
    succeeded,
    until_nothing_runs,
)
from support.openmpi import MpiPlace, get_prefix, share_mpi4py
from support.trainings import REPORTING, SAVING, STUBBORN
from testbed import Host, Hosts

GRACE_S, LOST_AFTER_S, EXTRA_S, SLACK_S = 1.0, 3.0, 2.0, 1.5
SECONDARY_S = 1.0  # in which a program's own end explains the loss
TIMES = (f"--grace={GRACE_S:g}", f"--lost_after={LOST_AFTER_S:g}")
ALONE = ("--server_num=0", "--worker_num=3")
TRAINERS = ("trainer/0", "trainer/1", "trainer/2")


def list_children(pid: int) -> list[int]:
    return [child for child in leaks.marked_processes() if parent_of(child) == pid]


def find_host(pid: int) -> Path:
    """Return the namespace of processes that is a host of the tests."""
    return Path(f"/proc/{pid}/ns/pid").readlink()


def find_cast(job: Job, of: str = "trainer/1") -> dict[str, int]:
    """Return the pids of all who brought this trainer: launcher, leash, mpirun, daemon, rank."""
    launcher = job.launcher.proc.pid
    (leash,) = (pid for pid in list_children(launcher))
    (mpirun,) = list_children(leash)
    _, agent = job.guards(of)
    host = find_host(agent)
    (rank,) = (
        pid
        for pid, words in leaks.marked_processes().items()
        if " rank {" in words and pid != agent and find_host(pid) == host
    )
    return {"launcher": launcher, "leash": leash, "mpirun": mpirun, "daemon": parent_of(rank), "rank": rank}


def list_sessions(hosts: Hosts, mpirun: int) -> list[Path]:
    """Return the folders of Open MPI: all on the hosts, and that of this mpirun, beside which others run."""
    found = [
        path for host in hosts for name in ("ompi*", "prte*") for path in host.get_folder("tmp").glob(name)
    ]
    environ = Path(f"/proc/{mpirun}/environ").read_text().split("\0")
    own = re.compile(r"(TMPDIR|.*local_tmpdir_base)=(.*-sessions)")
    return [*found, *(Path(match[2]) for line in environ if (match := own.fullmatch(line)))]


LOST = {
    "mpirun": "mpirun was lost: it was killed by SIGKILL",
    "leash": "mpirun was lost: its leash was killed",
    # mpirun ends the others when one has ended: their loss may be reported first.
    "rank": "trainer/. lost its rank process",
    "daemon": "trainer/. lost its rank process|mpirun was lost: it ended with",
}


@pytest.mark.parametrize(
    ("major", "who", "how"),
    [
        *((4, who, "KILL") for who in ("mpirun", "rank")),
        *((5, who, "KILL") for who in ("leash", "rank", "daemon")),
        (5, "mpirun", "TERM"),
    ],
)
def test_job_ends_without_those_who_brought_its_agents(
    hosts: Hosts, workspace: Path, major: int, who: str, how: str
) -> None:
    with running(MpiPlace(hosts, major), workspace, *ALONE, *TIMES, text=STUBBORN) as job:
        for words in ("ready", "hidden"):
            job.until_printed(words, TRAINERS)
        cast = find_cast(job)
        folders = list_sessions(hosts, cast["mpirun"])
        assert len(folders) == len(hosts) + 1 and all(folder.exists() for folder in folders)
        os.kill(cast[who], signal.Signals[f"SIG{how}"])
        bound_s = SECONDARY_S + GRACE_S + EXTRA_S + SLACK_S
        until_nothing_runs(bound_s)
        assert job.launcher.wait() == codes.NODE_LOST == job.end()["code"]
        assert not [folder for folder in folders if folder.exists()]
        words = LOST[who] if how == "KILL" or who != "mpirun" else "lost"
        assert re.search(words, job.end()["reason"]), job.launcher.output()


LIVES_ON = f"""{REPORTING}
print("epoch", epoch, os.environ["OMPI_COMM_WORLD_RANK"], flush=True)
report("batch=1")
while epoch == "0":
    signal.pause()
"""


@pytest.mark.parametrize(("major", "who"), [(4, "agent"), (4, "mpirun"), (5, "rank"), (5, "daemon")])
def test_ranks_are_started_again_by_another_mpirun(
    hosts: Hosts, workspace: Path, major: int, who: str
) -> None:
    with running(MpiPlace(hosts, major), workspace, *ALONE, *TIMES, "--max_restarts=1", text=LIVES_ON) as job:
        job.until(
            lambda found: {e["process"] for e in found if "batch" in e} >= {*TRAINERS}, "a step of each"
        )
        cast = {**find_cast(job), "agent": job.guards("trainer/1")[1]}
        folders = list_sessions(hosts, cast["mpirun"])
        os.kill(cast[who], signal.SIGKILL)
        assert job.launcher.wait() == codes.OK, job.launcher.output()
    (restart,) = job.restarts()
    for rank, process in enumerate(TRAINERS):
        assert job.lines(process) == [f"epoch {epoch} {rank}" for epoch in (0, 1)]
        assert job.log_of(process).read_text().splitlines() == job.lines(process)
    assert re.search(r"^node 1 " if who == "agent" else LOST[who], restart["why"])
    until_nothing_runs(5.0)
    assert not [folder for folder in folders if folder.exists()]


def test_guard_that_is_asked_to_end_ends_the_job(hosts: Hosts, workspace: Path) -> None:
    with running(MpiPlace(hosts, 5), workspace, *ALONE, *TIMES, text=STUBBORN) as job:
        for words in ("ready", "hidden"):
            job.until_printed(words, TRAINERS)
        os.kill(job.guards("trainer/1")[0], signal.SIGTERM)
        assert job.launcher.wait() == codes.NODE_LOST == job.end()["code"]
        assert re.search(r"node 1 \(node2\) was lost: .* \(SIGTERM\)", job.end()["reason"])
        until_nothing_runs(45.0)


@pytest.mark.parametrize("who", ["mpirun", "rank"])
def test_job_ends_in_order_although_one_who_brought_its_agents_was_stopped(
    hosts: Hosts, workspace: Path, who: str
) -> None:
    with running(MpiPlace(hosts, 5), workspace, *ALONE, *TIMES, text=STUBBORN) as job:
        for words in ("ready", "hidden"):
            job.until_printed(words, TRAINERS)
        os.kill(find_cast(job)[who], signal.SIGSTOP)
        job.launcher.proc.send_signal(signal.SIGINT)
        until_nothing_runs(GRACE_S + EXTRA_S + SLACK_S)
        assert job.launcher.wait() == codes.INT == job.end()["code"]


@pytest.mark.parametrize(("major", "lose"), [(4, Host.crash), (5, Host.cut_link)])
def test_lost_host_ends_the_job(
    hosts: Hosts, workspace: Path, major: int, lose: Callable[[Host], None]
) -> None:
    with running(MpiPlace(hosts, major), workspace, *ALONE, *TIMES, text=STUBBORN) as job:
        job.until_printed("ready", TRAINERS)
        lose(hosts[2])
        assert job.launcher.wait(timeout_s=LOST_AFTER_S + GRACE_S + EXTRA_S + SLACK_S) == codes.NODE_LOST
        assert "node 2 (node3) was lost" in job.end()["reason"]
        until_nothing_runs(LOST_AFTER_S + GRACE_S + EXTRA_S + SLACK_S)


@pytest.mark.parametrize(("major", "how", "code"), [(4, "KILL", 137), (5, "TERM", codes.TERM)])
def test_ended_launcher_ends_an_mpirun_that_waits_for_a_hanging_host(
    hosts: Hosts, workspace: Path, major: int, how: str, code: int
) -> None:
    place = MpiPlace(
        hosts, major, on=[hosts[1]]
    )  # daemons on others may go on for a minute, without a rank yet
    hosts[1].freeze()
    numbers = ("--server_num=0", f"--worker_num={place.nodes}")
    with running(place, workspace, *numbers, *TIMES, "--connect_timeout=60", text="") as job:

        def find_client() -> list[int]:
            return [pid for pid, words in leaks.marked_processes().items() if re.match("ssh .*node2", words)]

        while not find_client():
            assert job.launcher.proc.poll() is None, job.launcher.output()
        job.launcher.proc.send_signal(signal.Signals[f"SIG{how}"])
        assert job.launcher.wait(timeout_s=EXTRA_S + SLACK_S) == code
        until_nothing_runs((GRACE_S if how == "KILL" else 0.0) + EXTRA_S + SLACK_S)


# --- programs of MPI ---


def find_library(hosts: Hosts, major: int) -> str:
    """Return the library of MPI on the hosts."""
    if major == 5:
        return str(get_prefix(hosts) / "lib/libmpi.so.40")
    return str(next(others.mpirun(4).resolve().parents[1].glob("lib/*/libmpi.so.40")))


@pytest.mark.parametrize(
    ("major", "words", "code"), [(4, "end", 0), (5, "end", 0), (4, "abort", 7), (5, "raise", 1)]
)
def test_trainers_are_ranks_of_one_mpi_job(
    hosts: Hosts, workspace: Path, major: int, words: str, code: int
) -> None:
    """Beside a pserver, which must see nothing of mpirun."""
    shutil.copy(Path(__file__).parents[1] / "programs/mpi_train.py", workspace)
    place = MpiPlace(hosts, major)
    program = ["both.py", "mpi_train.py", words, find_library(hosts, major)]
    (workspace / "both.py").write_text(
        "import os, runpy, signal, sys\n"
        "if os.environ['TRAINING_ROLE'] == 'PSERVER':\n"
        "    print(*[name for name in os.environ if name.startswith(('OMPI_', 'PMIX_', 'PRTE_'))])\n"
        "    sys.stdout.flush()\n"
        "    signal.pause()\n"
        "sys.argv[:] = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    numbers = ("--server=script", "--server_num=1", "--worker_num=3")
    found, job = finished(place, workspace, *numbers, *TIMES, program=program)
    assert found == code, job.launcher.output()
    finished_first = TRAINERS if code == 0 else TRAINERS[1:2]
    assert all("sum 6" in job.lines(trainer) for trainer in finished_first)
    if code:
        assert job.end()["failure"]["what"] == "trainer/1"
    assert job.lines("pserver/0") == [""]


# As the rules of a container: nobody reads another process's memory.
CONTAINER = """#!/usr/bin/python3
import ctypes, os, platform, struct, sys
number = {"x86_64": 310, "aarch64": 270}[platform.machine()]
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
order = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(program)))
prctl, none = ctypes.CDLL(None).prctl, ctypes.c_ulong(0)
assert prctl(38, ctypes.c_ulong(1), none, none, none) == prctl(22, ctypes.c_ulong(2), order) == 0
os.execv("/bin/sh", ["sh", *sys.argv[1:]])
"""


ENDS = """
import sys
from mpi4py import MPI
world = MPI.COMM_WORLD
if world.rank == 0:
    world.send("late", dest=2)  # which is on its way when this rank has ended
if world.rank == 1:
    %s
if world.rank == 2:
    world.recv(source=%d)
"""


@pytest.mark.parametrize(
    ("major", "end", "code"), [(4, "sys.exit(3)", 3), (5, "raise RuntimeError", 1), (5, "pass", 0)]
)
def test_end_of_one_rank_of_mpi4py(hosts: Hosts, workspace: Path, major: int, end: str, code: int) -> None:
    """Others don't wait for a rank that failed, nor lose what one that ended well has sent."""
    (workspace / "train.py").write_text(ENDS % (end, 1 if code else 0))
    found, job = finished(MpiPlace(hosts, major), workspace, *ALONE, *TIMES, share_mpi4py(hosts))
    assert found == code, job.launcher.output()
    if code:
        assert job.end()["failure"]["what"] == "trainer/1"


def test_trainers_in_a_container_do_not_read_each_others_memory(hosts: Hosts, workspace: Path) -> None:
    shutil.copy(Path(__file__).parents[1] / "programs/mpi_train.py", workspace)
    shell = hosts[1].home / "shell"
    shell.write_text(CONTAINER)
    shell.chmod(0o755)
    hosts[1].set_login_shell(f"{hosts[1].site.home}/shell")
    program = ["mpi_train.py", "long", find_library(hosts, 4)]
    job = succeeded(MpiPlace(hosts, 4), workspace, *ALONE, "-H", "node2:3", program=program)
    assert "Read -1, expected" not in job.launcher.output()  # Open MPI itself only complains


def test_exception_explains_ranks_that_end_before_it_is_reported(hosts: Hosts, workspace: Path) -> None:
    """Under Open MPI 4 the others go on waiting for a rank that they miss, and do not end."""
    shutil.copy(Path(__file__).parents[1] / "programs/mpi_train.py", workspace)
    place = MpiPlace(hosts, 5)
    program = ["mpi_train.py", "raise-unseen", find_library(hosts, 5)]
    env = {"OMPI_MCA_mpi_abort_delay": "60"}  # the others stay until the report has come
    with running(place, workspace, *ALONE, f"--grace={GRACE_S:g}", program=program, env=env) as job:

        def is_missed(events: list[Event]) -> bool:
            return any("before aborting" in e["text"] for e in events if e["event"] == "line")

        job.until(is_missed, "another rank misses it")
        hosts[1].thaw()
        assert job.launcher.wait() == 1, job.launcher.output()
        assert job.end()["failure"]["what"] == "trainer/1"


@pytest.mark.parametrize(("major", "how"), [(4, "INT"), (5, "mpirun")])
def test_pserver_has_its_time_to_save(hosts: Hosts, workspace: Path, major: int, how: str) -> None:
    numbers = ("--server=script", "--server_num=1", "--worker_num=3", "--grace=8")
    with running(MpiPlace(hosts, major), workspace, *numbers, text=SAVING) as job:
        job.until_printed("ready", [*TRAINERS, "pserver/0"])
        if how == "mpirun":
            os.kill(find_cast(job)["mpirun"], signal.SIGKILL)
        else:
            job.launcher.proc.send_signal(signal.Signals[f"SIG{how}"])
        expected = {"INT": codes.INT, "mpirun": codes.NODE_LOST}
        assert job.launcher.wait(timeout_s=8 + EXTRA_S + SLACK_S) == expected[how]
    assert (hosts[0].root / workspace.name / "output/saved").exists()


def test_arguments_and_variables_may_be_long(hosts: Hosts, workspace: Path, major: int) -> None:
    (workspace / "train.py").write_text("import os, sys\nprint(len(sys.argv[1]), len(os.environ['LONG']))")
    program = ["train.py", "a" * 100_000]
    place = MpiPlace(hosts, major)
    job = succeeded(place, workspace, *ALONE, f"--env=LONG={'b' * 100_000}", program=program)
    assert [job.lines(trainer) for trainer in TRAINERS] == [["100000 100000"]] * 3
