"""Failures of a cluster while a job runs: of memory, rights, the API server, a machine with its pods.

The last two disturb all jobs of a cluster, so their test has one of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import platform
import random
import re
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes import client

from pslaunch.backends.k8s.backend import GONE_EXTRA_S
from pslaunch.backends.k8s.manifests import ENDING_EXTRA_S
from pslaunch.node import codes
from pslaunch.node.line.wire import SILENCE
from support.jobs import QUICK, Event, Job, finished, running
from support.kube import Kube, KubePlace, open_own
from support.others import NO_BULLSEYE, bullseye_root
from support.process import poll_until
from testbed.kube import Cluster, of_run
from testbed.kube.cluster import make_binding

OOM_KILLED = 137
BOTH = ("--server_num=0", "--worker_num=2")
GREEDY = """
import os, signal
if os.environ["PADDLE_TRAINER_ID"] == "0":
    signal.pause()
{first}
held = []
while True:
    held.append(b"x" * (1 << 20))
"""
# The kernel takes the first process, and with it all others, as with memory.oom.group of cgroup 2.
WHOLE = 'open("/proc/1/oom_score_adj", "w").write("1000")'
LINES = 600
COUNT = """
import time
for i in range({lines}):
    print(i, flush=True)
    time.sleep(0.02)
"""
AWAY_S = 8.0
GRACE_S = 1.0  # as QUICK has it
LOST_AFTER_S, SLACK_S = 10.0, 45.0  # silence of a machine, and of a busy one of ours
NOT_READY_S = 60.0  # until the cluster tells it
LEASE_S = 300.0  # longer than all these
OLD = "pslaunch.test/python39:1"
HOST = "kubernetes.io/hostname"
INDEX = "batch.kubernetes.io/job-completion-index"
WAIT = """
import signal
print("ready", flush=True)
signal.pause()
"""
# Of a busy machine: a cluster is made, or waited for while another test has its own.
LONG_S = 1200
HELD = "kind: Job\nspec: {template: {spec: {schedulingGates: [{name: pslaunch.test/placed}]}}}\n"


def test_trainer_without_enough_memory_gives_137(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(GREEDY.format(first=""))
    amounts = ("--cpu=500m", "--memory=150Mi")
    code, job = finished(KubePlace(cluster, 2), workspace, *BOTH, *amounts, *QUICK)
    assert code == job.end()["code"] == OOM_KILLED, job.launcher.output()
    assert job.end()["reason"] == "trainer/1 was killed for memory (SIGKILL by the kernel)"


def test_container_without_enough_memory_gives_137(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(GREEDY.format(first=WHOLE))
    amounts = ("--cpu=500m", "--memory=150Mi")
    code, job = finished(KubePlace(cluster, 2), workspace, *BOTH, *amounts, *QUICK)
    assert code == OOM_KILLED, job.launcher.output()
    # The kernel may take the program too, which the agent tells before it goes with the first process.
    reasons = r"pod \S+-1 on node\d: its memory was not enough.*; raise|trainer/1 was killed for memory"
    assert re.search(reasons, job.launcher.output())


def place(cluster: Kube, number: int, machine: str = "") -> None:
    """Let a pod of the only job whose pods are held find its place, or that machine."""

    def find() -> list[str]:
        pods = cluster.admin.list_namespaced_pod(cluster.namespace).items
        held = [pod for pod in pods if pod.spec.scheduling_gates]
        return [pod.metadata.name for pod in held if pod.metadata.labels[INDEX] == str(number)]

    (name,) = poll_until(find, describe=f"no pod {number}")
    selector = {"nodeSelector": {HOST: machine}} if machine else {}
    cluster.admin.patch_namespaced_pod(
        name, cluster.namespace, {"spec": {"schedulingGates": None, **selector}}
    )


@pytest.fixture
def bind(cluster: Kube) -> Iterator[Callable[[bool], None]]:
    """Takes the user's rights away, and gives them back."""
    rights = client.RbacAuthorizationV1Api(cluster.admin.api_client)

    def do(given: bool) -> None:
        if given:
            rights.create_namespaced_role_binding(cluster.namespace, make_binding("pslaunch"))
        else:
            rights.delete_namespaced_role_binding("pslaunch", cluster.namespace)

    yield do
    with contextlib.suppress(client.ApiException):  # given back already
        do(True)


def test_rights_that_an_api_server_knows_only_later_are_waited_for(
    cluster: Kube, bind: Callable[[bool], None], workspace: Path
) -> None:
    (workspace / "train.py").write_text(COUNT.format(lines=150))
    (workspace / "held.yaml").write_text(HELD)
    with running(KubePlace(cluster, 2), workspace, *BOTH, f"--patch={workspace}/held.yaml") as job:
        place(cluster, 0)
        job.until(lambda events: any(e["event"] == "job" for e in events), "the job")
        bind(False)
        place(cluster, 1)
        job.until_printed("99", ["trainer/0", "trainer/1"])  # the launcher has asked meanwhile
        bind(True)
        assert job.launcher.wait() == 0, job.launcher.output()
        assert job.lines("trainer/0") == [str(i) for i in range(150)]


@pytest.fixture
def machines(check_leftovers: None) -> Iterator[Cluster]:
    """A cluster for this test alone."""
    with open_own() as made:
        yield made


@pytest.fixture
def own(machines: Cluster) -> Iterator[Kube]:
    """The cluster of these machines, for its user and its administrator."""
    kube = Kube(machines.folder)
    yield kube
    kube.close()


def count_connected(events: list[Event]) -> int:
    return sum(e["event"] == "node" and e["state"] == "connected" for e in events)


def write_image(root: Path, path: Path) -> None:
    """Write an image of one layer, the folder `root`, as programs for containers save it."""
    layer = path.with_suffix(".layer")
    left_out = [f"--exclude=./{name}" for name in ("dev/*", "proc/*", "tmp/*", "var/*", "usr/share/*")]
    subprocess.run(["tar", "-C", root, "-cf", layer, *left_out, "."], check=True)
    with layer.open("rb") as f:
        hashed = hashlib.file_digest(f, "sha256").hexdigest()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    config = {"architecture": machine, "os": "linux", "config": {"Env": ["PATH=/usr/bin:/bin"]},
              "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashed}"]}}  # fmt: skip
    manifest = [{"Config": "config.json", "RepoTags": [OLD], "Layers": [layer.name]}]
    with tarfile.open(path, "w") as image:
        for name, data in (("config.json", config), ("manifest.json", manifest)):
            text = json.dumps(data).encode()
            info = tarfile.TarInfo(name)
            info.size = len(text)
            image.addfile(info, io.BytesIO(text))
        image.add(layer, layer.name)
    layer.unlink()


@pytest.mark.timeout(LONG_S)
@pytest.mark.may_skip(NO_BULLSEYE)
def test_image_of_python_3_9_runs_as_any_user(cluster: Kube, workspace: Path) -> None:
    image = cluster.kubeconfig.with_name("old.tar")  # nodes have another /tmp
    user = random.randrange(10**5, 2**31)
    try:
        write_image(bullseye_root(), image)
        of_run.load(OLD, image)
    finally:
        image.unlink(missing_ok=True)
    (workspace / "train.py").write_text("import os, sys; print(*sys.version_info[:2], os.getuid())")
    spec = {"securityContext": {"runAsUser": user}}
    (workspace / "patch.json").write_text(json.dumps({"kind": "Job", "spec": {"template": {"spec": spec}}}))
    options = (*BOTH, f"--patch={workspace}/patch.json", f"--image={OLD}")
    code, job = finished(KubePlace(cluster, 2), workspace, *options)
    assert code == 0, job.launcher.output()
    assert {*job.lines("trainer/0"), *job.lines("trainer/1")} == {f"3 9 {user}"}
    assert len(list((workspace / "log").glob("*/train.log"))) == 2


@pytest.mark.timeout(LONG_S)
def test_job_bears_the_loss_of_the_api_server_and_ends_with_that_of_a_machine(
    machines: Cluster, own: Kube, workspace: Path
) -> None:
    folders = [workspace / name for name in ("away", "cut", "first")]
    for folder in folders:
        folder.mkdir()
    check_api_server_that_is_away(machines, own, folders[0])
    second = running_on_both(own, folders[1], "node1", "node2")
    first = running_on_both(own, folders[2], "node2", "node1", "--linger=0")
    with second as of_second, first as of_first, machines.nodes[1].cut_off():
        lost_s = time.time()
        check_lost(of_second, lost_s)
        check_first_lost(of_first, lost_s)
        lost = (f"pod {of_second.get_job()['job']}-1-", f"pod {of_first.get_job()['job']}-0-")
        poll_until(lambda: len(own.list_names()) == 2, describe=lambda: str(own.list_names()))
        assert all(name.startswith(lost) for name in own.list_names()), own.list_names()


def check_api_server_that_is_away(machines: Cluster, own: Kube, workspace: Path) -> None:
    """Check that a job and its launcher go on."""
    (workspace / "train.py").write_text(COUNT.format(lines=LINES))
    pods = KubePlace(own, 2)
    pods.lease_s = LEASE_S
    with running(pods, workspace, *BOTH) as job:
        job.until(lambda events: count_connected(events) == 2, "both nodes")  # before a program runs
        machines.stop_api()
        try:
            back_s = time.monotonic() + AWAY_S
            job.until(lambda events: any("opened again" in e.get("text", "") for e in events), "the loss")
            poll_until(lambda: time.monotonic() > back_s, describe="time stands", timeout_s=2 * AWAY_S)
        finally:
            machines.start_api()
        assert job.launcher.wait(timeout_s=240.0) == 0, job.launcher.output()
        for trainer in ("trainer/0", "trainer/1"):
            assert job.lines(trainer) == [str(i) for i in range(LINES)]
    own.wait_until_gone()


def check_lost(job: Job, lost_s: float) -> None:
    """Check the end of a job that lost the machine of its pod 1."""
    assert job.launcher.wait(timeout_s=200.0) == codes.NODE_LOST, job.launcher.output()
    lost = f"{job.get_job()['job']}-1"
    assert job.end()["reason"].startswith(f"node 1 ({lost}) was lost"), job.launcher.output()
    silent = re.search(rf"{SILENCE} (\d+) s", job.end()["reason"])  # by the head's own clock, busy or not
    assert silent and LOST_AFTER_S <= int(silent[1]) < 2 * LOST_AFTER_S, job.end()["reason"]
    assert job.end()["time"] - lost_s < LOST_AFTER_S + SLACK_S, job.launcher.output()
    assert re.search(rf"Pod {lost}-\w+ on node2", job.launcher.output()), job.launcher.output()
    gone_s = GRACE_S + ENDING_EXTRA_S + GONE_EXTRA_S  # for the pod on the machine that answers
    assert time.time() - job.end()["time"] < 2 * gone_s, job.launcher.output()
    said = [e["text"] for e in job.events() if "not fetched" in e.get("text", "")]
    assert len(said) == 1 and f"{lost}: its machine does not answer" in said[0], said


def check_first_lost(job: Job, lost_s: float) -> None:
    """Check the end of a job that lost the machine of its pod 0: once the cluster gives the pod up."""
    assert job.launcher.wait(timeout_s=200.0) == codes.NODE_LOST, job.launcher.output()
    first = f"{job.get_job()['job']}-0"
    why = f"node 0 ({first}) was lost: its agent: pod {first} on node2 and its machine do not answer"
    assert job.end()["reason"].startswith(why), job.launcher.output()
    assert job.end()["time"] - lost_s < NOT_READY_S + SLACK_S, job.launcher.output()
    assert re.search(rf"Pod {first}-\w+ on node2", job.launcher.output()), job.launcher.output()


@contextlib.contextmanager
def running_on_both(own: Kube, workspace: Path, *words: str) -> Iterator[Job]:
    """Run a job with one pod on each machine. words: the machines of pods 0 and 1, and options."""
    (workspace / "train.py").write_text(WAIT)
    (workspace / "held.yaml").write_text(HELD)
    options = (*BOTH, *QUICK, f"--patch={workspace}/held.yaml", f"--lost_after={LOST_AFTER_S:g}", *words[2:])
    pods = KubePlace(own, 2)
    pods.lease_s = LEASE_S
    with running(pods, workspace, *options) as job:
        for number, machine in enumerate(words[:2]):
            place(own, number, machine)
        job.until_printed("ready", ["trainer/0", "trainer/1"])
        yield job
