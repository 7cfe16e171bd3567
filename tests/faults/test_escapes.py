"""Every ending, seventh part: programs that try not to be found, and guards that are all killed at once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.jobs import Place, running
from support.process import poll_until

GRACE_S, EXTRA_S = 1.0, 2.0
OPTIONS = ("--server_num=0", f"--grace={GRACE_S}", "--lost_after=60")

FORK_CHAIN = Path(__file__).parents[1] / "programs/fork_chain.c"
CHAIN = """
import os, signal, subprocess, sys
alive = os.open("alive", os.O_WRONLY)
subprocess.Popen(["./fork_chain", sys.argv[1]], pass_fds=[alive])
os.close(alive)
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture(scope="module")
def fork_chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of tests/programs."""
    if not shutil.which("gcc"):
        pytest.skip("there is no gcc")
    program = tmp_path_factory.mktemp("fork_chain") / "fork_chain"
    subprocess.run(["gcc", "-O1", "-o", program, FORK_CHAIN], check=True)
    return program


@pytest.mark.parametrize("hit", ["launcher", "agent"])
@pytest.mark.parametrize("member_lives_us", ["0", "500", "1000"])
def test_a_chain_of_forks_ends_with_its_job(
    place: Place, workspace: Path, fork_chain: Path, hit: str, member_lives_us: str
) -> None:
    shutil.copy(fork_chain, workspace)
    (workspace / "train.py").write_text(CHAIN)
    os.mkfifo(workspace / "alive")
    reader = os.open(workspace / "alive", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with running(place, workspace, *OPTIONS, program=["train.py", member_lives_us]) as job:
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
