"""The job of `pslaunch slurm`: nodes, words for salloc, and values that are refused with a remedy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pslaunch.backends.slurm import FACE
from pslaunch.backends.slurm.spec import COMMANDS, SlurmReach
from pslaunch.errors import PreflightError, PslaunchError, SpecError
from pslaunch.node.job import to_data
from pslaunch.options.spec import JobSpec
from pslaunch.plan import make_plan
from pslaunch.run.session import make_job_id
from support.command_line import make_spec
from support.process import make_script

IN_JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program, and in bin/ the commands of Slurm."""
    (tmp_path / "train.py").touch()
    (tmp_path / "bin").mkdir()
    for name in COMMANDS:
        make_script(tmp_path / "bin" / name, "")
    return tmp_path


def make(folder: Path, *argv: str, **environ: str) -> JobSpec:
    environ = {"PATH": f"{folder}/bin:{os.environ['PATH']}", **environ}
    return make_spec("slurm", [*argv, "train.py"], folder, environ)


def make_reach(folder: Path, *argv: str, **environ: str) -> SlurmReach:
    reach = make(folder, *argv, **environ).site.reach
    assert isinstance(reach, SlurmReach)
    return reach


def test_allocation_of_its_own_has_the_words_of_the_user(folder: Path) -> None:
    words = ("--nodes=3", "-n", "6", "-p", "gpu", "-t", "1:00", "-A", "me")
    reach = make_reach(folder, *words, "--slurm_args=--mem=0 --comment='a b'")
    limits = ("--partition=gpu", "--time=1:00", "--account=me")
    assert reach.args == ("--nodes=3", "--ntasks=6", *limits, "--mem=0", "--comment=a b")
    gpus = ("--server=script", "-N", "2", "-n", "3")
    for word, n in (("--gpus_per_trainer=2", 4), ("--gpus-per-node=3", 3), ("--gpus=5", 5)):
        args = ("--nodes=2", "--ntasks=3", f"--gpus-per-node={n}")
        assert make_reach(folder, *gpus, word).args == args
    assert make_reach(folder).args == ("--nodes=1", "--ntasks=1")
    assert make_reach(folder, "-N", "2", "-n", "1").args == ("--nodes=2", "--ntasks=2")


def test_a_requeued_job_that_takes_snapshots_finds_its_own_again(folder: Path) -> None:
    snapshots = ("--server=bundled", "--snapshot_steps=9")
    first = make(folder, *snapshots, **IN_JOB)
    again = make(folder, *snapshots, **IN_JOB, SLURM_RESTART_COUNT="1")
    of = first.site.of
    assert of.startswith("slurm7-") and again.site.of == of
    assert make(folder, *snapshots, "train.py", **IN_JOB).site.of != of  # it has an argument
    assert make_job_id(again).startswith(f"{again.draft.name}-{of}-2")
    asked = [spec.draft.added_env.get("PADDLE_INIT_RESUME") for spec in (first, again)]
    assert asked == [None, f"of:{of}"]
    for options, environ, resume in (
        ((), {**IN_JOB, "SLURM_RESTART_COUNT": "1"}, None),  # it takes none
        ((*snapshots, "--resume"), {**IN_JOB, "SLURM_RESTART_COUNT": "1"}, "1"),
        (snapshots, {"SLURM_RESTART_COUNT": "1"}, None),  # in no allocation
    ):
        assert make(folder, *options, **environ).draft.added_env.get("PADDLE_INIT_RESUME") == resume


def test_allocation_that_is_there_gives_nodes_and_trainers(folder: Path) -> None:
    spec = make(folder, **IN_JOB, SLURM_NTASKS="5")
    assert (spec.site.reach.agents.ranks, spec.site.reach.job, spec.site.reach.args) == (3, "7", ())
    assert spec.worker_num == 5
    assert make_reach(folder, "--nodes=2", **IN_JOB).agents.ranks == 2
    assert make(folder, "-n", "4", **IN_JOB, SLURM_NTASKS="5").worker_num == 4


@pytest.mark.parametrize(
    ("argv", "environ", "said"),
    [
        (["--partition=gpu"], IN_JOB, r"has no effect in an allocation \(SLURM_JOB_ID=7\): ask sbatch"),
        (["--nodes=4"], IN_JOB, "has 3 nodes"),
        ([], {"SLURM_JOB_ID": "7"}, "does not tell its number of nodes; give --nodes N"),
        (["--slurm_args='"], {}, "--slurm_args=.*No closing quotation"),
        (["--gres=gpu:1"], IN_JOB, "it is salloc's: --slurm_args '--gres'; in an allocation, ask sbatch or"),
        (["--slurm_args=--mem=0 --nodes=9"], {}, "give --nodes=9 as an option of pslaunch slurm, --nodes"),
        (["--slurm_args=-J mine"], {}, "give -J as an option of pslaunch slurm, --job_name"),
        (["--slurm_args=-N9"], {}, "give -N9 as an option of pslaunch slurm, --nodes"),
        ([], {**IN_JOB, "SLURM_NTASKS": "9999"}, "4096 at most"),
    ],
)
def test_rejected_values_name_the_remedy(
    folder: Path, argv: list[str], environ: dict[str, str], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        make(folder, *argv, **environ)


def test_step_of_srun_with_several_tasks_is_refused(folder: Path) -> None:
    environ = {**IN_JOB, "SLURM_STEP_ID": "0"}
    with pytest.raises(SpecError, match=r"this is step 0 of srun, each .*: leave srun out .*pslaunch slurm"):
        make(folder, **environ, SLURM_STEP_NUM_TASKS="3")
    make(folder, **environ, SLURM_STEP_NUM_TASKS="1")


def test_missing_commands_of_slurm_are_named(folder: Path) -> None:
    with pytest.raises(PreflightError, match=r"no salloc in PATH: run pslaunch slurm on a login node"):
        make(folder, PATH="/nowhere")


def test_dry_run_shows_allocation_and_step(folder: Path) -> None:
    spec = make(folder, "--nodes=2")
    start = FACE.describe_start(spec.site.reach, make_plan(spec, "JOB")) or {}
    assert start["allocation"][0].startswith("salloc --kill-command '--job-name={name}' --nodes=2")
    assert {"srun", "--jobid={job}", "--nodes=2", "--overlap"} <= {*start["argv"]}
    inside = FACE.describe_start(make_reach(folder, **IN_JOB), make_plan(spec, "JOB")) or {}
    assert inside["allocation"] == []


def test_reach_survives_its_record(folder: Path) -> None:
    reach = make_reach(folder, "--nodes=2")
    assert FACE.from_data(json.loads(json.dumps(to_data(reach)))) == reach
    with pytest.raises(PslaunchError):
        FACE.from_data({"ranks": 1})
