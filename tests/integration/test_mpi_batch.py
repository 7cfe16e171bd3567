"""Jobs in allocations: of Slurm, whose daemons run on test hosts, and of PBS, with its variables alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.openmpi import make_options
from support.process import poll_until
from support.slurm import JOB_S, Slurm
from support.trainings import SAVING
from testbed import Hosts

MPI = (sys.executable, "-P", "-m", "pslaunch", "mpi")
WARNED_S = 60.0  # to the warning of a time limit: Slurm looks every 30 s


@pytest.fixture
def folder(slurm: Slurm, tmp_path: Path) -> Path:
    """Return a new folder that all hosts see."""
    folder = slurm.folder / tmp_path.name
    folder.mkdir()
    return folder


@pytest.mark.parametrize("major", [4, 5])
def test_allocation_needs_no_hostfile(slurm: Slurm, folder: Path, major: int) -> None:
    (folder / "train.py").write_text("import os\nraise SystemExit(3 if os.environ['RANK'] == '2' else 0)")
    own = ["--json", "--server_num=0", *make_options(slurm.hosts, major), str(folder / "train.py")]
    done = slurm.run("salloc", "-n3", *MPI, *own)
    assert done.returncode == 3, done.stdout + done.stderr
    job = json.loads(done.stdout.splitlines()[0])
    assert [node["name"] for node in job["nodes"]] == [host.name for host in slurm.hosts]


def submit(slurm: Slurm, folder: Path, *options: str) -> str:
    """Submit the printed script of a job of a program in the folder; return its number."""
    numbers = ("--server=script", "--server_num=1", "-n", "3", "--grace=20")
    print_ = ["--script=slurm", "-o", "job.sh", "--directive=output=said", *numbers]
    own = [*print_, *make_options(slurm.hosts, 5), *options, "train.py"]
    slurm.run("env", f"--chdir={folder}", *MPI, *own, check=True)
    said = slurm.run("sbatch", f"--chdir={folder}", "--parsable", str(folder / "job.sh"), check=True)
    return said.stdout.strip()


def submit_saving(slurm: Slurm, folder: Path, *options: str) -> str:
    """Submit a job whose pserver takes its time to save; return its number once all programs run."""
    (folder / "train.py").write_text(SAVING)
    job = submit(slurm, folder, *options)
    said = folder / "said"
    poll_until(
        lambda: said.exists() and said.read_text().count("ready") >= 4,
        describe=lambda: f"{slurm.get_job(job)}: {said.exists() and said.read_text()}",
        timeout_s=JOB_S,
    )
    return job


def has_saved(slurm: Slurm, folder: Path) -> bool:
    return (slurm.hosts[0].root / folder.name / "output/saved").exists()


def test_exit_code_of_the_script_is_that_of_the_first_failure(slurm: Slurm, folder: Path) -> None:
    (folder / "train.py").write_text(
        "import os, signal\nraise SystemExit(5) if os.environ.get('RANK') == '1' else signal.pause()"
    )
    ended = slurm.wait(submit(slurm, folder))
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "5:0"), (folder / "said").read_text()


def test_term_to_the_script_ends_the_job_in_order(slurm: Slurm, folder: Path) -> None:
    job = submit_saving(slurm, folder)
    slurm.run("scancel", "--batch", "--signal=TERM", job, check=True)
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", f"{codes.TERM}:0")
    assert has_saved(slurm, folder), (folder / "said").read_text()


def test_time_limit_ends_the_job_in_order_before_it_comes(slurm: Slurm, folder: Path) -> None:
    job = submit_saving(slurm, folder)
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=1", check=True)
    ended = slurm.wait(job, timeout_s=WARNED_S + JOB_S)
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", f"{codes.TERM}:0")
    assert has_saved(slurm, folder), (folder / "said").read_text()


def test_cancelled_job_saves_within_kill_wait(slurm: Slurm, folder: Path) -> None:
    job = submit_saving(slurm, folder)
    slurm.run("scancel", job, check=True)
    assert slurm.wait(job)["JobState"] == "CANCELLED"
    assert has_saved(slurm, folder), (folder / "said").read_text()


def test_waiting_for_a_job_that_is_not_shown_ends_with_its_limit(slurm: Slurm) -> None:
    with pytest.raises(AssertionError, match="not within 0 s"):
        slurm.wait("999", timeout_s=0.0)


def test_job_that_was_left_pending_is_cancelled(slurm: Slurm) -> None:
    job = slurm.run("sbatch", "--hold", "--parsable", "--wrap=true", check=True).stdout.strip()
    slurm.end_jobs()
    assert slurm.get_job(job)["JobState"] == "CANCELLED"


@pytest.mark.parametrize("major", [4, 5])
def test_nodes_of_pbs_are_a_hostfile(hosts: Hosts, tmp_path: Path, major: int) -> None:
    (tmp_path / "nodes").write_text("node1\nnode2\nnode2\n")
    (tmp_path / "train.py").write_text("")
    variables = {
        "PBS_JOBID": "7.node1", "PBS_JOBNAME": "ws", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_QUEUE": "workq",
        "PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_O_WORKDIR": str(tmp_path), "PBS_NODENUM": "0",
    }  # fmt: skip
    argv = [*MPI, "--json", "--server_num=0", *make_options(hosts, major), str(tmp_path / "train.py")]
    environ = {**os.environ, **variables}
    done = subprocess.run(hosts.as_user(argv), env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    job = json.loads(done.stdout.splitlines()[0])
    assert [node["name"] for node in job["nodes"]] == ["node1", "node2"]
    assert [program["node"] for program in job["processes"]] == [0, 1, 1]
