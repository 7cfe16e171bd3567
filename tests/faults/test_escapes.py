"""Every ending, seventh part: programs that try not to be found, and guards that are all killed at once."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from pslaunch.node import codes
from support import leaks
from support.faults import control
from support.jobs import FabricPlace, Place, finished, run_pslaunch, running
from support.process import poll_until, until_empty
from support.trainings import STUBBORN
from testbed import Hosts

GRACE_S, EXTRA_S = 1.0, 2.0
OPTIONS = ("--server_num=0", f"--grace={GRACE_S}", "--lost_after=60")

PROGRAMS = Path(__file__).parents[1] / "programs"
CHAIN = """
import os, signal, subprocess, sys
alive = os.open("alive", os.O_WRONLY)
subprocess.Popen(["./fork_chain", sys.argv[1]], pass_fds=[alive])
os.close(alive)
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture(scope="module")
def compile_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that compiles a program of tests/programs."""
    if not shutil.which("gcc"):
        pytest.skip("there is no gcc")

    @functools.cache
    def compile_named(name: str) -> Path:
        program = tmp_path_factory.mktemp(name) / name
        subprocess.run(["gcc", "-O1", "-o", program, PROGRAMS / f"{name}.c"], check=True)
        return program

    return compile_named


@pytest.mark.parametrize(
    ("hit", "member_lives_us"), [("launcher", "0"), ("launcher", "1000"), ("agent", "500")]
)
def test_a_chain_of_forks_ends_with_its_job(
    place: Place, workspace: Path, compile_program: Callable[[str], Path], hit: str, member_lives_us: str
) -> None:
    shutil.copy(compile_program("fork_chain"), workspace)
    os.mkfifo(workspace / "alive")
    reader = os.open(workspace / "alive", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with running(place, workspace, *OPTIONS, program=["train.py", member_lives_us], text=CHAIN) as job:
            job.until_printed("ready", ["trainer/0"])
            with pytest.raises(BlockingIOError):  # somebody has it open
                os.read(reader, 1)
            if hit == "launcher":
                job.launcher.proc.send_signal(signal.SIGINT)
            else:
                os.kill(job.guards("trainer/0")[1], signal.SIGKILL)
                poll_until(
                    lambda: is_closed(reader), describe="the chain goes on", timeout_s=GRACE_S + EXTRA_S
                )
            assert job.launcher.wait() == (codes.INT if hit == "launcher" else codes.NODE_LOST)
            assert is_closed(reader), "the chain goes on"
    finally:
        os.close(reader)


def is_closed(reader: int) -> bool:
    """Return True where nobody has the other end of a FIFO open."""
    try:
        return os.read(reader, 1) == b""
    except BlockingIOError:
        return False


def kill_all(pids: Iterable[int]) -> None:
    """Kill these at once: none of them gets a turn meanwhile."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


def test_killing_all_that_is_called_pslaunch_ends_the_job(place: Place, workspace: Path) -> None:
    (workspace / "train.py").write_text(STUBBORN.replace('os.write(1, b"told\\n")', "os.mkdir('told')"))
    with control() as ctl, running(place, workspace, *OPTIONS, env=ctl.env()) as job:
        job.until_printed("hidden", ["trainer/0"])
        found = [pid for pid, words in ctl.processes().items() if "pslaunch" in words]
        assert job.launcher.pid in found and job.guards("trainer/0")[1] in found
        kill_all(found)
        ctl.until_gone(GRACE_S + EXTRA_S)
        assert (workspace / "told").exists()  # TERM came before KILL


# Each TERM is a letter in a file of its role.
COUNTING = STUBBORN.replace(
    'os.write(1, b"told\\n")', "open('told-' + os.environ['PSLAUNCH_ROLE'], 'a').write('x')"
)
BOTH_ROLES = ("--server=script", "--server_num=1", *OPTIONS[1:])


def read_told(workspace: Path, role: str) -> str:
    path = workspace / f"told-{role}"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("by", ["advice", "job", "stop"])
def test_what_both_guards_leave_when_killed_is_ended_by_the_next_command(
    place: Place, workspace: Path, by: str
) -> None:
    before = leaks.our_files()
    with control() as ctl, running(place, workspace, *BOTH_ROLES, env=ctl.env(), text=COUNTING) as job:
        job.until_printed("hidden", ["trainer/0", "pserver/0"])
        kill_all(job.guards("trainer/0"))
        assert job.launcher.wait() == codes.NODE_LOST
        poll_until(lambda: read_told(workspace, "trainer"), describe="the kernel tells a trainer")
        assert not read_told(workspace, "pserver") and ctl.processes()  # nobody is left who would end them
        (run_dir,) = leaks.our_files() - before
        assert (Path(os.environ["TMPDIR"]) / run_dir / "secret").exists()
        (workspace / "train.py").write_text("")
        said = f"processes of job {job.get_job()['job']}, whose keepers were killed, were ended"
        if by == "advice":
            subprocess.run(["sh", "-c", job.end()["failure"]["advice"].partition("too: ")[2]], check=True)
        elif by == "stop":
            assert said in run_pslaunch("stop", "some").stderr
            assert read_told(workspace, "pserver") == "x"  # TERM came before KILL
        else:
            code, again = finished(place, workspace, *OPTIONS)
            assert code == codes.OK and said in again.launcher.output()
        ctl.until_gone(EXTRA_S)
    if by == "advice":
        assert finished(place, workspace, *OPTIONS)[0] == codes.OK
    assert leaks.our_files() == before


def test_trainer_of_a_killed_agent_is_told_once(place: Place, workspace: Path) -> None:
    with control() as ctl, running(place, workspace, *BOTH_ROLES, env=ctl.env(), text=COUNTING) as job:
        job.until_printed("hidden", ["trainer/0", "pserver/0"])
        os.kill(job.guards("trainer/0")[1], signal.SIGKILL)
        ctl.until_gone(GRACE_S + EXTRA_S)
        assert job.launcher.wait() == codes.NODE_LOST
    assert [read_told(workspace, role) for role in ("trainer", "pserver")] == ["x", "x"]


ALONE = ("--server_num=0", "--worker_num=1", f"--grace={GRACE_S}", "--lost_after=60")


def test_pkill_on_a_host_ends_the_job(hosts: Hosts, workspace: Path) -> None:
    (workspace / "train.py").write_text(STUBBORN.replace('os.write(1, b"told\\n")', "os.mkdir('told')"))
    host = hosts[0]
    place = FabricPlace(hosts, "--head=node", on=[host])
    with running(place, workspace, *ALONE) as job:
        job.until_printed("hidden", ["trainer/0"])
        agent = job.guards("trainer/0")[1]
        assert "pslaunch" in host.processes()[agent]
        host.run("pkill", "-9", "-f", "pslaunch")
        assert job.launcher.wait() == codes.NODE_LOST, job.launcher.output()
        until_empty(host.processes, GRACE_S + EXTRA_S)
        assert (host.root / workspace.name / "told").exists()  # TERM came before KILL


LEFT = "can't be ended: it waits in the kernel, is another user's, or forks faster than it can be killed"
OTHER_USER = """
import os, signal, subprocess
child = subprocess.Popen([os.environ["PROGRAM"]])
signal.pause()
"""


def test_process_that_can_not_be_ended_is_named_also_by_the_keeper_of_a_lost_host(
    hosts: Hosts, workspace: Path, compile_program: Callable[[str], Path], tmp_path: Path
) -> None:
    lost = hosts[1]
    user = {host.add_plain_user() for host in hosts}.pop()
    for host in hosts:
        program = shutil.copy(compile_program("other_user"), host.root)
        Path(program).chmod(0o4755)
    place = FabricPlace(hosts, "--head=node", on=[hosts[0], lost], user=user)
    options = (*OPTIONS, "--worker_num=2", f"--env=PROGRAM={hosts.root_dir}/other_user")
    with running(place, workspace, *options, text=OTHER_USER) as job:
        job.until_printed("started", ["trainer/0", "trainer/1"])
        os.kill(job.guards("trainer/1")[1], signal.SIGKILL)
        assert job.launcher.wait() == codes.NODE_LOST
    notes = [e["text"] for e in job.events() if e["event"] == "note"]
    assert [text for text in notes if re.fullmatch(rf"plain@node1: process \d+ {LEFT}", text)], (
        job.launcher.output()
    )
    log = lost.root / workspace.name / "log/guards.log"
    poll_until(log.exists, describe="no log of the guards", timeout_s=GRACE_S + EXTRA_S + 3.0)
    assert re.fullmatch(rf"keeper: process \d+ {LEFT}\n", log.read_text())
    for host in hosts:
        for pid, words in host.processes().items():
            assert "other_user" in words
            os.kill(pid, signal.SIGKILL)
    run_pslaunch("fetch", job.get_job()["job"], str(tmp_path / "fetched"), hosts=hosts, check=True)
    (fetched,) = (tmp_path / "fetched/log").glob(f"*{lost.name}*/guards.log")
    assert fetched.read_text() == log.read_text()
