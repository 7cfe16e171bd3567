"""The script of `pslaunch mpi --script` under signals, in both usual shells."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jinja2 import Environment, PackageLoader

# Waits until the trainer is collected, and ends well at SIGTERM, as a pserver that saves.
SAVES = """
import os, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
children = f"/proc/{os.getppid()}/task/{os.getppid()}/children"
while open(children).read().split() != [str(os.getpid())]:
    time.sleep(0.01)
open("up", "w").close()
signal.sigwait([signal.SIGTERM])
open("asked", "w").close()
open("saved", "w").close()
"""
WAITS = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
open("up", "w").close()
signal.sigwait([signal.SIGTERM])
raise SystemExit(9)
"""


def start(folder: Path, shell: str, *, trainer: str, pserver: str, rank: int = 0) -> subprocess.Popen[bytes]:
    """Start the script with two programs, and with two pipes that they open when they are ready or asked."""
    templates = Environment(loader=PackageLoader("pslaunch.templates", "mpi"), trim_blocks=True)
    templates.filters["sh"] = shlex.quote
    text = templates.get_template("plain.sh.j2").render(
        hostfile="machines",
        ranks=1,
        variables=[],
        pserver=shlex.join([sys.executable, "-c", pserver]),
        trainer=shlex.join([sys.executable, "-c", trainer]),
    )
    (folder / "start.sh").write_text(text)
    for pipe in ("up", "asked"):
        os.mkfifo(folder / pipe)
    environ = {**os.environ, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "1"}
    return subprocess.Popen([shell, "start.sh"], cwd=folder, env=environ)


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_pserver_that_saves_is_waited_for(tmp_path: Path, shell: str) -> None:
    with start(tmp_path, shell, trainer="", pserver=SAVES) as script:
        (tmp_path / "up").read_bytes()
        script.send_signal(signal.SIGTERM)
        (tmp_path / "asked").read_bytes()
        assert script.wait(60) == 0
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_exit_code_is_that_of_the_trainer_after_a_signal(tmp_path: Path, shell: str) -> None:
    with start(tmp_path, shell, trainer=WAITS, pserver="", rank=1) as script:
        (tmp_path / "up").read_bytes()
        script.send_signal(signal.SIGTERM)
        assert script.wait(60) == 9
