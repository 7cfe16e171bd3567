"""Jobs in allocations: of Slurm, whose daemons run on test hosts, and of PBS, with its variables alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.jobs import parse_events, run_pslaunch
from support.openmpi import make_options
from support.slurm import Slurm
from support.trainings import SAVING
from testbed import Hosts

MPI = (sys.executable, "-P", "-m", "pslaunch", "mpi")


@pytest.fixture
def folder(slurm: Slurm, tmp_path: Path) -> Path:
    """Return a new folder that all hosts see."""
    return slurm.make_folder(tmp_path.name)


def test_allocation_needs_no_hostfile(slurm: Slurm, folder: Path, major: int) -> None:
    (folder / "train.py").write_text("import os\nraise SystemExit(3 if os.environ['RANK'] == '2' else 0)")
    own = ["--json", "--server_num=0", *make_options(slurm.hosts, major), str(folder / "train.py")]
    done = slurm.run("salloc", "-N3", "-n3", *MPI, *own)
    assert done.returncode == 3, done.stdout + done.stderr
    (job,) = (e for e in parse_events(done.stdout) if e["event"] == "job")  # notes may come before it
    assert [node["name"] for node in job["nodes"]] == [host.name for host in slurm.hosts]


def test_cancelled_job_saves_within_kill_wait(slurm: Slurm, folder: Path) -> None:
    (folder / "train.py").write_text(SAVING)
    options = ("--server=script", "--server_num=1", "--grace=20", *make_options(slurm.hosts, 5))
    job = slurm.submit(folder, [*MPI, *options, "train.py"])
    slurm.until_said(folder, job, "ready", 4)
    slurm.run("scancel", job, check=True)
    assert slurm.wait(job)["JobState"] == "CANCELLED"
    assert (slurm.hosts[0].root / folder.name / "output/saved").exists(), (folder / "said").read_text()


def test_nodes_of_pbs_are_a_hostfile(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("node1\nnode2\nnode2\n")
    (tmp_path / "train.py").write_text("")
    variables = {
        "PBS_JOBID": "7.node1", "PBS_JOBNAME": "ws", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_QUEUE": "workq",
        "PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_O_WORKDIR": str(tmp_path), "PBS_NODENUM": "0",
    }  # fmt: skip
    words = ("--json", "--server_num=0", *make_options(hosts, 4), str(tmp_path / "train.py"))
    done = run_pslaunch("mpi", *words, hosts=hosts, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = (e for e in parse_events(done.stdout) if e["event"] == "job")  # notes may come before it
    assert [node["name"] for node in job["nodes"]] == ["node1", "node2"]
    assert [program["node"] for program in job["processes"]] == [0, 1, 1]
