"""Restarts on every backend: all programs start again, and nothing of the epoch before is left."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from integration.test_contract_training import TRAIN
from pslaunch.node import codes
from support.jobs import (
    QUICK,
    Event,
    Job,
    LocalPlace,
    Place,
    finished,
    hash_model,
    run_pslaunch,
    running,
    succeeded,
    until_nothing_runs,
)
from support.kube import Kube, KubePlace
from support.trainings import REPORTING
from testbed import Hosts

BEGIN = f"""{REPORTING}
folder = os.environ["PSLAUNCH_SNAPSHOT_DIR"]
"""
# Reports a step in each epoch. In the first one, each process leaves a hidden one behind, then waits.
ONCE = (
    BEGIN
    + r"""
names = ("TORCHELASTIC_RESTART_COUNT", "PADDLE_PSERVERS_IP_PORT_LIST", "MASTER_PORT", "PSLAUNCH_JOB_ID")
print(json.dumps([int(epoch), *(os.environ.get(name) for name in names)]), flush=True)
os.makedirs(folder, exist_ok=True)
kept = os.path.join(folder, f"{role}-{rank}")
if epoch == "0":
    hidden = os.fork()
    if hidden == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while True:
            signal.pause()
    with open(kept, "w") as f:
        f.write(str(hidden))
    report("pass=0 batch=7")
    os.write(1, b"ready\n")
    while True:
        signal.pause()
with open(kept) as f:
    try:
        os.kill(int(f.read()), 0)
        sys.exit("a process of the last epoch is alive")
    except ProcessLookupError:
        pass
host, _, port = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].rpartition(":")
if role == "pserver":
    with socket.create_server(("", int(port))) as server:
        while True:
            server.accept()[0].sendall(b"here")
here = b""
while not here:  # a pserver whose trainers end at once may not even begin; until it does, its agent listens
    try:
        with socket.create_connection((host, int(port))) as connection:
            here = connection.recv(4)
    except OSError:
        time.sleep(0.02)
"""
)
ALL = ("pserver/0", "trainer/0", "trainer/1")


def check_restart(place: Place, workspace: Path, killed: str) -> None:
    """Check that all programs of a job start again after one was killed."""
    options = ("--server=script", "--worker_num=2", "--max_restarts=1", *QUICK)
    with running(place, workspace, *options, text=ONCE) as job:
        job.until_printed("ready", ALL)
        os.kill(job.pid(killed), signal.SIGKILL)
        assert job.launcher.wait() == codes.OK, job.launcher.output()
    (ending,), (restart,) = job.restarts("ending"), job.restarts()
    assert ending["failure"]["what"] == killed and ending["failure"]["signal"] == "SIGKILL"
    assert (restart["epoch"], restart["restart"], restart["of"]) == (1, 1, 1) and restart["lost_s"] < 60
    for process in ALL:
        first, ready, second = job.log_of(process).read_text().splitlines()
        assert ready == "ready"
        (zero, *said), (one, *again) = json.loads(first), json.loads(second)
        assert (zero, one) == (0, 1) and said[1:] == again[1:]
        if process != "pserver/0":
            assert (said[0], again[0]) == ("0", "1")
            assert job.lines(process) == [first, ready, second]
    until_nothing_runs(5.0)


HERE = pytest.mark.parametrize("place", ["local"], indirect=True)


@pytest.mark.seam
def test_a_killed_trainer_restarts_all(place: Place, workspace: Path) -> None:
    check_restart(place, workspace, "trainer/1")


@HERE
def test_a_killed_pserver_restarts_all(place: Place, workspace: Path) -> None:
    check_restart(place, workspace, "pserver/0")


ALONE = ("--server_num=0", *QUICK)


@HERE
def test_a_failure_at_the_same_step_ends_the_job_the_third_time(place: Place, workspace: Path) -> None:
    (workspace / "train.py").write_text(BEGIN + "report('pass=0 batch=7'); print('begun'); sys.exit(3)")
    code, job = finished(place, workspace, *ALONE, "--max_restarts=9")
    assert code == 3 == job.end()["code"], job.launcher.output()
    assert [e["epoch"] for e in job.restarts()] == [1, 2]
    assert "no restart: it is the same failure at the same step for the 3rd time" in job.launcher.output()
    assert job.end()["failure"]["tail"] == ["begun"]  # not those of epochs before


@HERE
@pytest.mark.parametrize(
    ("program", "options", "count", "code", "why"),
    [
        ("sys.exit(3)", (), 0, 3, "no step was made"),
        ("report('state=connected'); sys.exit(3)", (), 0, 3, "no step was made"),
        ("sys.exit(4 + int(epoch))", ("--restart_after=0",), 2, 6, "--max_restarts=2 are used up"),
        ("report(f'batch={epoch}'); sys.exit(4 + int(epoch))", (), 2, 6, "--max_restarts=2 are used up"),
    ],
)
def test_the_last_failure_gives_the_code(
    place: Place, workspace: Path, program: str, options: tuple[str, ...], count: int, code: int, why: str
) -> None:
    got, job = finished(place, workspace, *ALONE, "--max_restarts=2", *options, text=BEGIN + program)
    assert got == code and len(job.restarts()) == count, job.launcher.output()
    assert f"no restart: {why}" in job.launcher.output()


@HERE
def test_a_program_that_can_not_be_started_again_ends_the_job(place: Place, workspace: Path) -> None:
    run = workspace / "run"
    run.write_text(f"#!/usr/bin/env python3\n{BEGIN}report('batch=1'); os.remove('run'); sys.exit(3)")
    run.chmod(0o755)
    code, job = finished(place, workspace, *ALONE, "--max_restarts=9", program=["./run"])
    assert code == 127 and len(job.restarts()) == 1, job.launcher.output()


SLOW_TO_END = (
    BEGIN
    + """
signal.signal(signal.SIGTERM, lambda *_: print("told", flush=True))
os.makedirs(folder, exist_ok=True)
open(os.path.join(folder, rank), "w").close()
report("batch=1")
while not os.path.exists(os.path.join(folder, "0")):
    time.sleep(0.01)
if rank == "1":
    sys.exit(3)
while True:
    signal.pause()
"""
)


@HERE
@pytest.mark.held
def test_ctrl_c_is_heard_while_an_epoch_ends(place: Place, workspace: Path) -> None:
    options = ("--server_num=0", "--worker_num=2", "--grace=60", "--max_restarts=9")
    with running(place, workspace, *options, text=SLOW_TO_END) as job:
        job.until_printed("told", ["trainer/0"])
        for _ in range(2):
            job.launcher.proc.send_signal(signal.SIGINT)
        assert job.launcher.wait() == codes.INT, job.launcher.output()
    assert not job.restarts() and job.lines("trainer/0") == ["told"]
    until_nothing_runs(5.0)


@HERE
def test_a_time_limit_is_heard_while_an_epoch_ends(place: Place, workspace: Path) -> None:
    options = ("--server_num=0", "--worker_num=2", "--grace=3", "--max_restarts=9", "--timeout=2")
    code, job = finished(place, workspace, *options, text=SLOW_TO_END)
    assert code == codes.TIMEOUT and not job.restarts(), job.launcher.output()


@HERE
def test_later_shells_and_pages_tell_of_restarts(place: Place, workspace: Path) -> None:
    (workspace / "train.py").write_text(BEGIN + "report(f'batch={epoch}'); sys.exit(epoch != '1')")
    job = succeeded(place, workspace, *ALONE, "--max_restarts=2")
    name = job.get_job()["job"]
    told = json.loads(run_pslaunch("status", name, "--json").stdout)["restarts"]
    (event,) = job.restarts()
    assert told == [{key: event[key] for key in told[0]}] and told[0]["why"] == "trainer/0 ended with 1"
    row = f"  restart 1: trainer/0 ended with 1; epoch 1, {told[0]['lost_s']:.1f} s lost\n"
    assert row in run_pslaunch("status", name).stdout
    page = run_pslaunch("report", name, cwd=workspace).stdout.strip()
    assert "trainer/0 ended with 1</td><td>epoch 1, " in (workspace / page).read_text()


LOSES = (
    BEGIN
    + """
print("epoch", epoch, flush=True)
report("batch=1")
if epoch == "0":
    signal.pause()
"""
)
THREE = ("trainer/0", "trainer/1", "trainer/2")


def until_progress(job: Job, trainers: Sequence[str] = THREE) -> None:
    """Wait until the head knows of a step of each trainer: its report comes later than its output."""

    def told(events: list[Event]) -> bool:
        return {e["process"] for e in events if e["event"] == "progress" and "batch" in e} >= {*trainers}

    job.until(told, "a step of each trainer")


def check_both_epochs(job: Job) -> None:
    for process in THREE:
        assert job.lines(process) == ["epoch 0", "epoch 1"]
        assert job.log_of(process).read_text().splitlines() == ["epoch 0", "epoch 1"]
    until_nothing_runs(5.0)


LEFT = ["local", "local_cluster", "local_led_cluster", "fabric", "fabric_led", "mpi", "slurm"]


@pytest.mark.parametrize("place", LEFT, indirect=True)
@pytest.mark.parametrize("guard", ["keeper", "agent"])
def test_a_lost_agent_is_started_again(place: Place, workspace: Path, guard: str) -> None:
    with running(place, workspace, *ALONE, "--worker_num=3", "--max_restarts=1", text=LOSES) as job:
        until_progress(job)
        os.kill(job.guards("trainer/2")[guard == "agent"], signal.SIGKILL)
        assert job.launcher.wait() == codes.OK, job.launcher.output()
    (ending,) = job.restarts("ending")
    assert ending["failure"]["code"] == codes.NODE_LOST and len(job.restarts()) == 1
    check_both_epochs(job)


@pytest.mark.parametrize("place", ["local_led_cluster"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_loss_of_the_node_of_the_head_ends_the_job(place: Place, workspace: Path, number: int) -> None:
    with running(place, workspace, *ALONE, "--worker_num=3", "--max_restarts=1", text=LOSES) as job:
        until_progress(job)
        os.kill(job.guards("trainer/0")[0], number)
        assert job.launcher.wait() == codes.NODE_LOST, job.launcher.output()
    assert not job.restarts("ending") and job.end()["failure"]["what"].startswith("node 0 ")
    until_nothing_runs(5.0)


@pytest.mark.parametrize("place", ["local_cluster", "local_led_cluster"], indirect=True)
def test_a_node_may_be_lost_between_two_epochs(place: Place, workspace: Path) -> None:
    """While another agent waits for the end of a program that the lost one has left on its node."""
    stays = "\nif (epoch, rank) == ('0', '2'):\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    options = ("--server_num=0", "--worker_num=3", "--grace=60", "--max_restarts=2")
    with running(place, workspace, *options, text=LOSES.replace(BEGIN, BEGIN + stays)) as job:
        until_progress(job)
        (_, first), (_, second) = job.guards("trainer/2"), job.guards("trainer/1")
        os.kill(first, signal.SIGKILL)

        def list_connected(events: list[Event]) -> list[int]:
            return sorted(e["node"] for e in events if e["event"] == "node" and e["state"] == "connected")

        job.until(lambda events: list_connected(events) == [0, 1, 2, 2], "another agent of node 2")
        os.kill(second, signal.SIGKILL)
        job.until(lambda _: len(job.restarts("ending")) == 2, "the end of a restart")
        os.kill(job.pid("trainer/2"), signal.SIGKILL)
        assert job.launcher.wait() == codes.OK, job.launcher.output()
    assert [e["epoch"] for e in job.restarts()] == [2]
    assert list_connected(job.events()) == [0, 1, 1, 2, 2, 2]  # the one that waited ends too
    assert [job.lines(process) for process in THREE] == [["epoch 0", "epoch 2"]] * 3
    until_nothing_runs(5.0)


@pytest.mark.parametrize(
    ("place", "returns"), [("fabric", True), ("fabric", False), ("mpi", False)], indirect=["place"]
)
def test_a_host_that_was_away_is_used_again_and_one_that_stays_away_is_named(
    place: Place, hosts: Hosts, workspace: Path, returns: bool
) -> None:
    options = (*ALONE, "--lost_after=4", "--worker_num=3", "--max_restarts=1", "--connect_timeout=2")
    with running(place, workspace, *options, text=LOSES) as job:
        until_progress(job)
        hosts[1].cut_link()
        job.until(lambda _: job.restarts("ending"), "the end of the epoch")
        if returns:
            hosts[1].restore_link()
        assert job.launcher.wait() == (codes.OK if returns else codes.NODE_LOST), job.launcher.output()
        if returns:
            check_both_epochs(job)
            return
        said = job.end()["reason"]
        lost = rf"mpirun was lost|node 1 \({hosts[1].name}\) was lost: no other agent can be started there"
        assert re.search(lost, said) and f"{hosts[1].name}: " in said
        hosts[1].restore_link()


TAKES_A_SNAPSHOT = (
    BEGIN
    + """
print("epoch", epoch, flush=True)
report("state=connected cut=0 batch=1")
if epoch == "0":
    while not os.path.exists(os.environ["PSLAUNCH_PROGRESS"] + ".cut"):
        time.sleep(0.01)
    report("cut=7")
    signal.pause()
report("state=finished")
"""
)


def test_an_evicted_pod_takes_a_snapshot_and_comes_again_with_the_package(
    cluster: Kube, workspace: Path
) -> None:
    program = f"{TAKES_A_SNAPSHOT}time.sleep(3)"  # until the API says that the new pod runs
    (workspace / "train.py").write_text(program)
    with running(KubePlace(cluster, 2), workspace, *ALONE, "--worker_num=2", "--max_restarts=1") as job:
        until_progress(job, THREE[:2])
        pod = cluster.list_pods(job.get_job()["job"])[1].metadata.name
        cluster.admin.create_namespaced_pod_eviction(pod, cluster.namespace, {"metadata": {"name": pod}})
        assert job.launcher.wait() == codes.OK, job.launcher.output()
    (ending,), (restart,) = job.restarts("ending"), job.restarts()
    assert ending["failure"]["code"] == codes.NODE_LOST and restart["epoch"] == 1
    assert restart["step"] == 7 and "after a snapshot of step 7" in ending["failure"]["text"]
    for process in THREE[:2]:
        assert job.lines(process) == ["epoch 0", "epoch 1"]


@pytest.mark.timeout(300)
def test_an_evicted_pod_0_comes_again_with_another_head_that_counts_on_and_no_bit_changes(
    cluster: Kube, workspace: Path
) -> None:
    slow = "time.sleep(0.3)"  # so that there is a snapshot before the end
    program = TRAIN.replace("and event.batch_id == 2", "").replace("HOOK", slow)
    both = ("--server_num=2", "--worker_num=2", *QUICK)
    succeeded(LocalPlace(1), workspace, *both, text=program.replace(slow, "pass"))
    plain = hash_model(workspace)
    shutil.rmtree(workspace / "output")
    options = (*both, "--snapshot_steps=2", "--snapshot_copies=2", "--max_restarts=2")
    with running(KubePlace(cluster, 2), workspace, *options, text=program) as job:
        job.until(lambda events: any(e.get("cut", 0) > 0 for e in events), "a snapshot")
        pod = cluster.list_pods(job.get_job()["job"])[0].metadata.name
        cluster.admin.create_namespaced_pod_eviction(pod, cluster.namespace, {"metadata": {"name": pod}})
        assert job.launcher.wait(timeout_s=200.0) == codes.OK, job.launcher.output()
    (ending,), (restart,) = job.restarts("ending"), job.restarts()
    assert (restart["epoch"], restart["restart"], restart["of"]) == (1, 1, 2) and restart["step"] >= 2
    first = f"{job.get_job()['job']}-0"
    assert ending["why"].startswith(f"node 0 ({first}) was lost: the agent was asked to end (SIGTERM), after")
    assert ending["failure"]["code"] == codes.NODE_LOST and 1.0 < restart["lost_s"] < 150.0
    assert [e["n"] for e in job.events() if "n" in e] == [*range(job.end()["n"] + 1)]
    assert hash_model(workspace) == plain
