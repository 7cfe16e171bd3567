"""What is Slurm's own: allocations, the queue, batch jobs, and the ends that Slurm brings."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pslaunch.node import codes
from support import leaks
from support.jobs import (
    Job,
    LocalPlace,
    finished,
    hash_model,
    run_pslaunch,
    running,
    succeeded,
    until_nothing_runs,
)
from support.process import poll_until, until_empty
from support.slurm import JOB_S, Slurm, SlurmPlace
from support.trainings import REPORTING, SAVING, STUBBORN
from support.word2vec import make_workspace

ALONE = ("--server_num=0", "--worker_num=3")
TRAINERS = ("trainer/0", "trainer/1", "trainer/2")
SLURM = (sys.executable, "-P", "-m", "pslaunch", "slurm")
SHORT = ("--grace=1", "--lost_after=3")


@pytest.fixture
def place(slurm: Slurm) -> SlurmPlace:
    return SlurmPlace(slurm)


@pytest.fixture
def folder(slurm: Slurm, tmp_path: Path) -> Path:
    """Return a new folder that all hosts see."""
    return slurm.make_folder(tmp_path.name)


def call(slurm: Slurm, *argv: str) -> subprocess.CompletedProcess[str]:
    return run_pslaunch(*argv, env=slurm.environ, timeout_s=JOB_S)


def list_queue(slurm: Slurm, what: str = "%i") -> list[str]:
    return slurm.run("squeue", "--noheader", f"--format={what}", check=True).stdout.split()


def find_words(job: Job) -> str:
    return " ".join(e["text"] for e in job.events() if e["event"] == "note")


# --- An allocation of the job's own. ---


def test_allocation_is_held_until_results_are_fetched(place: SlurmPlace, workspace: Path) -> None:
    (workspace / "train.py").write_text(
        "import os\nopen(os.environ['PSLAUNCH_OUTPUT_DIR'] + '/model', 'w').write('42')\n"
        "assert 'SLURM_JOB_ID' in os.environ and 'SLURM_PROCID' not in os.environ"
    )
    succeeded(place, workspace, *ALONE, f"--fetch_output={workspace / 'got'}", "--time=5")
    assert (workspace / "got/model").read_text() == "42"


@contextlib.contextmanager
def all_nodes_taken(slurm: Slurm) -> Iterator[None]:
    said = slurm.run("sbatch", "--parsable", "-N3", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    poll_until(lambda: list_queue(slurm, "%T") == ["RUNNING"], describe="the nodes are not taken")
    yield
    slurm.run("scancel", said.stdout.strip(), check=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_job_that_waits_in_the_queue_says_so_and_leaves_it_with_its_launcher(
    slurm: Slurm, place: SlurmPlace, workspace: Path, number: signal.Signals
) -> None:
    with all_nodes_taken(slurm), running(place, workspace, *ALONE, *SHORT, text="") as job:
        job.launcher.until(lambda text: re.search(r"job \d+ of Slurm waits in the queue: \w+", text), "waits")
        job.launcher.proc.send_signal(number)
        code = job.launcher.wait()
        assert code == 128 + number
        poll_until(lambda: len(list_queue(slurm)) == 1, describe=lambda: str(list_queue(slurm)), timeout_s=5)


@pytest.mark.parametrize("of", ["srun", "leash of salloc", "launcher"])
def test_killing_one_of_ours_leaves_no_process_and_no_allocation(
    slurm: Slurm, place: SlurmPlace, workspace: Path, of: str
) -> None:
    with running(place, workspace, *ALONE, *SHORT, text=STUBBORN) as job:
        job.until_printed("ready", TRAINERS)
        os.kill(find_pid(job, of), signal.SIGKILL)
        code = job.launcher.wait()
        # Slurm may tell the agents to end before srun's loss is noticed.
        assert code in ((128 + signal.SIGKILL,) if of == "launcher" else (codes.NODE_LOST, codes.TERM))
        until_nothing_runs(1 + 2)
        until_empty(lambda: list_queue(slurm), JOB_S)


def find_pid(job: Job, of: str) -> int:
    if of == "launcher":
        return job.launcher.pid
    name = of.removeprefix("leash of ")
    found = [
        pid
        for pid, words in leaks.marked_processes().items()
        if (".leash " in words) == (of != name) and (f" {name} --" in words or words.startswith(f"{name} --"))
    ]
    return min(found)


@pytest.mark.parametrize(
    ("option", "words"),
    [("--partition=nope", "no partition nope; sinfo"), ("--slurm_args=--nonsense", "nonsense")],
)
def test_refusal_of_slurm_ends_at_once_with_its_cause(
    slurm: Slurm, place: SlurmPlace, workspace: Path, option: str, words: str
) -> None:
    got, job = finished(place, workspace, *ALONE, option, text="")
    assert (got, words in job.end()["reason"]) == (codes.USAGE, True), job.launcher.output()
    assert not list_queue(slurm)


def test_silent_controller_is_named_at_once(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    text = Path(slurm.environ["SLURM_CONF"]).read_text()
    (tmp_path / "slurm.conf").write_text(f"SlurmctldPort=1\n{text}")
    environ = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    for argv in (["slurm"], ["check", "slurm"]):
        done = run_pslaunch(*argv, str(tmp_path / "train.py"), env=environ, timeout_s=8)
        assert done.returncode == codes.SERVICE and "does not answer" in done.stdout + done.stderr


# --- Ends that Slurm brings. ---


def test_scancel_ends_the_job_in_order(slurm: Slurm, place: SlurmPlace, workspace: Path) -> None:
    with running(place, workspace, *ALONE[1:], "--server=script", "--grace=16", text=SAVING) as job:
        job.until_printed("ready", TRAINERS)
        slurm.run("scancel", list_queue(slurm)[0], check=True)
        assert job.launcher.wait() == codes.TERM, job.launcher.output()
        assert re.search(r"Slurm cancelled step \d+\.0 at \S+ by scancel", find_words(job))
    assert (slurm.hosts[0].root / workspace.name / "output/saved").exists()
    until_empty(lambda: list_queue(slurm), JOB_S)


def test_host_that_is_cut_off_is_lost_in_time(slurm: Slurm, place: SlurmPlace, workspace: Path) -> None:
    with running(place, workspace, *ALONE, *SHORT, text=STUBBORN) as job:
        job.until_printed("ready", TRAINERS)
        slurm.hosts[2].cut_link()
        try:
            assert job.launcher.wait(timeout_s=3 + 1 + 2 + 5) == codes.NODE_LOST
            assert "node3" in job.end()["reason"]
        finally:
            slurm.hosts[2].restore_link()
        until_empty(lambda: list_queue(slurm), JOB_S)


# --- Batch jobs. ---


def submit(slurm: Slurm, folder: Path, program: str, *options: str, name: str = "train.py") -> str:
    """Submit a script that runs this program of the folder on all nodes; return the job's number."""
    (folder / name).write_text(program)
    return slurm.submit(folder, [*SLURM, "--grace=8", f"--job_workspace={folder}", *options, name])


def test_exit_code_of_a_script_is_that_of_the_first_failure(slurm: Slurm, folder: Path) -> None:
    program = "import os, signal\nraise SystemExit(5) if os.environ['RANK'] == '1' else signal.pause()"
    ended = slurm.wait(submit(slurm, folder, program, "--server_num=0"))
    said = (folder / "said").read_text()
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "5:0"), said
    assert f"nodes: node1, node2, node3; workspace: {folder}" in said


def test_time_limit_ends_a_batch_job_in_order(slurm: Slurm, folder: Path) -> None:
    job = submit(slurm, folder, SAVING, "--server=script", "--server_num=1")
    slurm.until_said(folder, job, "ready", 4)
    slurm.run("scontrol", "update", f"JobId={job}", "EndTime=now", check=True)
    assert slurm.wait(job)["JobState"] == "TIMEOUT"
    assert (folder / "output/saved").exists(), (folder / "said").read_text()
    assert f"exit code {codes.TERM}" in (folder / "said").read_text()


TAKES_A_SNAPSHOT = f"""{REPORTING}
report("state=connected cut=0")
while not os.path.exists(os.environ["PSLAUNCH_PROGRESS"] + ".cut"):
    time.sleep(0.01)
print("asked", flush=True)
if rank == "0":
    report("cut=7")
signal.pause()
"""


def test_notice_before_the_time_limit_takes_a_snapshot(slurm: Slurm, folder: Path) -> None:
    job = submit(slurm, folder, TAKES_A_SNAPSHOT, "--server_num=0", "--json")
    slurm.until_said(folder, job, '"state":"connected","cut":0', 3)
    slurm.run("scancel", "--batch", "--signal=TERM", job, check=True)  # as by #SBATCH --signal=B:TERM@60
    assert slurm.wait(job)["ExitCode"] == f"{codes.TERM}:0"
    said = (folder / "said").read_text()
    assert '"asked"' in said and ", after a snapshot of step 7" in said


def test_requeued_job_runs_anew_in_its_folder(slurm: Slurm, folder: Path) -> None:
    program = (
        "import os, signal\nprint('ready', flush=True)\n'SLURM_RESTART_COUNT' in os.environ or signal.pause()"
    )
    job = submit(slurm, folder, program, "--server_num=0")
    slurm.until_said(folder, job, "| ready", 3)
    said = requeue(slurm, folder, job)
    assert said.count("done after") == 1 and "requeued: " not in said, said


def requeue(slurm: Slurm, folder: Path, job: str) -> str:
    """Let a job run anew to its end; return what all its runs have said."""
    slurm.run("scontrol", "requeue", job, check=True)
    poll_until(lambda: slurm.get_job(job)["JobState"] == "PENDING", describe="not requeued", timeout_s=JOB_S)
    # A credential of the second in which the first run's was revoked would be taken for revoked.
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+2seconds", check=True)
    ended = slurm.wait(job)
    said = (folder / "said").read_text()
    assert ended["ExitCode"] == "0:0", f"{ended}\n{said}\n{slurm.describe()}"
    return said


WAITS = """
import os, signal
import pslaunch.runtime as paddle
import train

whole, steps = paddle.trainer.SGD.train, 0

def train_and_wait(self, *args, event_handler, **named):
    def handle(event):
        global steps
        event_handler(event)
        steps += isinstance(event, paddle.event.EndIteration)
        if steps == 13 and os.environ["PSLAUNCH_RANK"] == "1":
            print("ready", flush=True)
            signal.pause()
    return whole(self, *args, event_handler=handle, **named)

if "SLURM_RESTART_COUNT" not in os.environ:
    paddle.trainer.SGD.train = train_and_wait
train.main()
"""


def test_requeued_training_goes_on_from_its_newest_snapshot(
    slurm: Slurm, folder: Path, tmp_path: Path
) -> None:
    numbers = ("--server_num=2", "--worker_num=2")
    for place in (tmp_path / "alone", folder / "ws"):
        make_workspace(place)
    succeeded(LocalPlace(1), tmp_path / "alone", *numbers, "--snapshot_steps=5")
    here, kept = folder / "ws", folder / "ws/.pslaunch/snapshots"
    shutil.copytree(tmp_path / "alone/.pslaunch/snapshots", kept)  # of another job
    options = (*numbers, "--snapshot_steps=5", f"--python={sys.executable}")
    job = submit(slurm, here, WAITS, *options, name="waits.py")
    slurm.until_said(here, job, "| ready", 1)

    def has_own_snapshot() -> bool:
        return any("-slurm" in path.read_text() for path in kept.glob("cut-*/manifest.json"))

    poll_until(has_own_snapshot, describe="no snapshot", timeout_s=JOB_S)
    said = requeue(slurm, here, job)
    # Of step 5 or 10, or later where the one of 5 took longer than 5 steps; trainer 1 waits after 13.
    from_step = r"the training goes on from step ([5-9]|1[0-3]): "
    assert re.search(r"requeued: .*\n(.*\n)*.*" + from_step, said), said
    assert hash_model(here) == hash_model(tmp_path / "alone")


# --- Later shells. ---


def test_detached_job_keeps_its_allocation_and_gives_it_back(slurm: Slurm, folder: Path) -> None:
    (folder / "train.py").write_text(STUBBORN)
    numbers = ("--nodes=3", *ALONE, *SHORT)
    done = call(
        slurm, "slurm", "--detach", *numbers, f"--root_dir={slurm.hosts.root_dir}", str(folder / "train.py")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = set(re.findall(r"take its id: (\S+)", done.stdout))
    assert "running" in call(slurm, "status", job).stdout
    assert call(slurm, "logs", job, "trainer/2").stdout.count("ready") == 1
    assert call(slurm, "stop", job).returncode == 0
    until_empty(lambda: list_queue(slurm), JOB_S)


# --- Before the start. ---


def test_check_reports_on_the_cluster_and_on_nodes_that_are_asked_for(slurm: Slurm, tmp_path: Path) -> None:
    program = str(tmp_path / "train.py")
    Path(program).write_text("")
    alone = call(slurm, "check", "slurm", program)
    assert alone.returncode == 0 and "all" in alone.stdout and "node1" not in alone.stdout
    nodes = call(slurm, "check", "slurm", "--nodes=2", "--server_num=0", program)
    assert nodes.returncode == 0 and "node1" in nodes.stdout, nodes.stdout + nodes.stderr
    closed = call(slurm, "check", "slurm", "--partition=closed", program)
    assert closed.returncode == codes.SERVICE and "partition closed is not up" in closed.stdout
    many = call(slurm, "check", "slurm", "--nodes=9", program)
    assert (
        many.returncode == codes.USAGE
        and "has 3 nodes, and the job needs 9; what to do: give --nodes N, at most 3" in many.stdout
    )
    assert not list_queue(slurm)
