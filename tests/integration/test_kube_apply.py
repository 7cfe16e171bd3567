"""Attached jobs on a real cluster: live, fetched, ended in order, and nothing of them left."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import random
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from integration.test_contract import POLITE
from pslaunch.backends.k8s.manifests import MAX_PACKAGE_BYTES
from pslaunch.node import codes
from support.jobs import PSLAUNCH, QUICK, Job, finished, running
from support.kube import Kube, KubePlace
from support.packages import fill_package
from support.process import poll_until, started
from support.proxy import CuttingProxy
from support.pservers import HOST

ALONE = ("--server_num=0",)


def list_deadlines(cluster: Kube) -> list[int]:
    jobs = cluster.batch.list_namespaced_job(cluster.namespace).items
    return [job.spec.active_deadline_seconds for job in jobs if job.spec.active_deadline_seconds]


def test_own_time_limit_of_a_job_returns_once_its_programs_run(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(POLITE)
    (workspace / "patch.yaml").write_text("kind: Job\nspec: {activeDeadlineSeconds: 900}\n")
    options = (*ALONE, *QUICK, f"--patch={workspace}/patch.yaml")
    with running(KubePlace(cluster, 1), workspace, *options) as job:
        job.until_printed("ready", ["trainer/0"])
        poll_until(lambda: list_deadlines(cluster) == [900], describe=lambda: str(list_deadlines(cluster)))
        job.launcher.proc.send_signal(signal.SIGINT)
        assert job.launcher.wait() == codes.INT


def test_shorter_time_limit_of_a_job_holds_from_its_beginning(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text("")
    code, job = finished(KubePlace(cluster, 1), workspace, *ALONE, "--cpu=1000", "--deadline=3")
    assert (code, "the job's time is over" in job.launcher.output()) == (codes.NODE_LOST, True)


def list_owners(cluster: Kube) -> list[set[str]]:
    """Name the jobs that own each of the ConfigMaps that jobs share."""
    return [{owner.name for owner in shared.owner_references} for shared in cluster.list_shared()]


def test_jobs_at_the_same_time_share_one_program_which_goes_with_the_last(
    cluster: Kube, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "train.py").write_text(POLITE)
    with contextlib.ExitStack() as stack:
        both: list[Job] = []
        for number in range(2):  # a folder for results is one job's
            options = [f"--fetch_{what}={tmp_path}/{what}-{number}" for what in ("output", "logs")]
            begun = running(KubePlace(cluster, 1), workspace, *ALONE, *QUICK, *options)
            both.append(stack.enter_context(begun))
        for job in both:
            job.until_printed("ready", ["trainer/0"])
        names = [job.get_job()["job"] for job in both]
        owners = list_owners(cluster)
        assert owners and all(each == set(names) for each in owners)
        for job in both:
            job.launcher.proc.send_signal(signal.SIGINT)
            assert job.launcher.wait() == codes.INT, job.launcher.output()
            assert job is both[1] or len(list_owners(cluster)) == len(owners)
    cluster.wait_until_gone()


COUNT = """
import time
for i in range(400):
    print(i, flush=True)
    time.sleep(0.02)
"""
SAVE_MUCH = f"""
import random
with open("output/model", "wb") as f:
    f.write(random.Random(1).randbytes(700_000))
{POLITE}
"""


@pytest.fixture
def make_proxy(cluster: Kube, tmp_path: Path) -> Iterator[Callable[..., CuttingProxy]]:
    """Return a way to the API server that can be cut."""
    made: list[CuttingProxy] = []

    def make(*cuts: int, port: int = 0) -> CuttingProxy:
        made.append(CuttingProxy(socket.create_server((HOST, port)), cluster.address, cuts))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


def make_place(cluster: Kube, proxy: CuttingProxy, tmp_path: Path) -> KubePlace:
    return KubePlace(cluster, 1, kubeconfig=cluster.lead_through(proxy.endpoint, tmp_path / "config"))


def await_loss(job: Job) -> None:
    """Wait until the launcher notices that its line is lost."""
    job.until(lambda events: any("opened again" in e.get("text", "") for e in events), "the loss")


def test_lost_line_is_opened_again_and_no_line_of_output_comes_twice(
    cluster: Kube, make_proxy: Callable[..., CuttingProxy], workspace: Path, tmp_path: Path
) -> None:
    (workspace / "train.py").write_text(COUNT)
    proxy = make_proxy()
    with running(make_place(cluster, proxy, tmp_path), workspace, *ALONE) as job:
        job.until_printed("5", ["trainer/0"])
        proxy.close()
        await_loss(job)
        make_proxy(port=proxy.endpoint[1])
        assert job.launcher.wait() == 0, job.launcher.output()
        assert job.lines("trainer/0") == [str(i) for i in range(400)]


def test_launcher_that_is_away_for_longer_than_the_lease_learns_of_the_end(
    cluster: Kube, make_proxy: Callable[..., CuttingProxy], workspace: Path, tmp_path: Path
) -> None:
    (workspace / "train.py").write_text(POLITE)
    proxy = make_proxy()
    with running(make_place(cluster, proxy, tmp_path), workspace, *ALONE, "--ttl=60") as job:
        job.until_printed("ready", ["trainer/0"])
        poll_until(lambda: not list_deadlines(cluster), describe="the deadline stays")
        proxy.close()
        await_loss(job)
        cluster.wait_for_end(job.get_job()["job"])
        make_proxy(port=proxy.endpoint[1])
        assert job.launcher.wait() == codes.HUP, job.launcher.output()
        assert job.end()["reason"].startswith(f"the launcher is gone for {KubePlace.lease_s:g} s")


def test_files_come_whole_though_their_execs_are_cut(
    cluster: Kube, make_proxy: Callable[..., CuttingProxy], workspace: Path, tmp_path: Path
) -> None:
    (workspace / "train.py").write_text(SAVE_MUCH)
    proxy = make_proxy()
    with running(make_place(cluster, proxy, tmp_path), workspace, *ALONE) as job:
        job.until_printed("ready", ["trainer/0"])
        proxy.cuts[:] = [-65536 * n for n in range(1, 12)]  # each once, also past the end
        job.launcher.proc.send_signal(signal.SIGINT)
        assert job.launcher.wait() == codes.INT, job.launcher.output()
        assert not any("not fetched" in e.get("text", "") for e in job.events())
    assert proxy.cut >= 5
    assert (workspace / "output/model").read_bytes() == random.Random(1).randbytes(700_000)


def test_pending_job_without_its_launcher_ends_after_the_wait_timeout(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text("")
    with running(KubePlace(cluster, 1), workspace, *ALONE, "--cpu=1000", "--wait_timeout=2") as job:
        pods = functools.partial(cluster.core.list_namespaced_pod, cluster.namespace)
        poll_until(lambda: pods().items, describe="no pod")
        job.launcher.kill()
    cluster.wait_until_gone()


FAILING_SERVER = """
import os, signal, sys, time
if os.uname().nodename.endswith("-server-1"):
    time.sleep(2)
    sys.exit(9)
print("ready", flush=True)
signal.pause()
"""


def test_failed_pserver_ends_both_jobs(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(FAILING_SERVER)
    apart = ("--separate", "--server_num=2", "--worker_num=2", "--grace=1", "--server=script")
    with started([*PSLAUNCH, *cluster.apply, *apart], cwd=workspace) as launcher:
        launcher.expect(r"\| ready")
        jobs = cluster.batch.list_namespaced_job(cluster.namespace).items
        owner, servers = sorted(jobs, key=lambda job: str(job.metadata.name))
        assert servers.metadata.owner_references[0].name == owner.metadata.name
        assert launcher.wait() == 9, launcher.output()
        assert "FAILED: pserver/1 on node 3" in launcher.output()
        cluster.wait_until_gone()


MIB = 1024 * 1024
LARGE_BYTES = 64 * MIB
TRAINERS = ("--server_num=0", "--worker_num=2")
HASH = """
import hashlib
with open("data", "rb") as f:
    print(hashlib.sha256(f.read()).hexdigest(), flush=True)
"""
SEE = """
import glob, os
print(*sorted(glob.glob("part-*")), os.path.realpath("lib"), flush=True)
"""


def write_package(workspace: Path, data_bytes: int) -> None:
    (workspace / "train.py").write_text(HASH)
    piece = random.Random(1).randbytes(min(data_bytes, MIB))  # which no packing makes smaller
    (workspace / "data").write_bytes(piece * (data_bytes // len(piece)))


def hash_data(workspace: Path) -> str:
    return hashlib.sha256((workspace / "data").read_bytes()).hexdigest()


def test_package_of_just_the_limit_reaches_all_pods_in_config_maps(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(HASH)
    fill_package(workspace, MAX_PACKAGE_BYTES)
    code, job = finished(KubePlace(cluster, 2), workspace, *TRAINERS, "--network_policy")
    assert code == 0, job.launcher.output()
    (way,) = (e["text"] for e in job.events() if e.get("text", "").startswith("the package goes"))
    assert way == "the package goes into ConfigMaps: 921,600 bytes when compressed"
    assert job.lines("trainer/0") == job.lines("trainer/1") == [hash_data(workspace)]


def test_large_package_reaches_all_pods_with_links_and_own_shards(cluster: Kube, workspace: Path) -> None:
    write_package(workspace, LARGE_BYTES)
    (workspace / "train.py").write_text(HASH + SEE)
    for i in range(3):
        (workspace / f"part-{i}").write_text(str(i))
    lib = "/usr/lib/python3.11"  # of the image
    options = (*TRAINERS, "--shard=part-{}", f"--link=lib={lib}")
    code, job = finished(KubePlace(cluster, 2), workspace, *options)
    assert code == 0, job.launcher.output()
    hashed = hash_data(workspace)
    (workspace / "data").unlink()  # pytest keeps folders of earlier runs
    assert job.lines("trainer/0") == [hashed, f"part-0 part-2 {lib}"]
    assert job.lines("trainer/1") == [hashed, f"part-1 {lib}"]


def test_interrupt_during_the_transfer_leaves_nothing(cluster: Kube, workspace: Path) -> None:
    write_package(workspace, MIB)
    with (workspace / "zeros").open("wb") as f:
        f.truncate(256 * MIB)  # for longer than the signal takes
    with running(KubePlace(cluster, 2), workspace, *TRAINERS) as job:
        job.until(lambda events: any(e["event"] == "dispatch" for e in events), "the transfer")
        job.launcher.proc.send_signal(signal.SIGINT)
        assert job.launcher.wait() == codes.INT, job.launcher.output()
    kinds = {e["event"] for e in job.events()}
    assert "process" not in kinds and not any((workspace / "output").iterdir())
    assert cluster.list_names() == set()


SHARE = """
import os, time
rank = os.environ["PADDLE_TRAINER_ID"]
open(f"seen-{rank}", "w").close()
while not all(os.path.exists(f"seen-{other}") for other in "01"):
    time.sleep(0.05)
print(f"trainer {rank} sees both in", os.getcwd())
"""


@pytest.fixture
def claim(cluster: Kube) -> Iterator[tuple[str, Path]]:
    """A claim whose volume is a folder of this machine, which both nodes have: its name, and the folder."""
    folder = cluster.kubeconfig.with_name(f"shared-{cluster.namespace}")
    name = f"shared-{os.urandom(3).hex()}"
    folder.mkdir()
    folder.chmod(0o777)  # for the user of the pods
    common: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        **common,
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": str(folder), "type": "Directory"},
        "claimRef": {"name": name, "namespace": cluster.namespace},
        "persistentVolumeReclaimPolicy": "Retain",
    }
    demand = {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
    cluster.admin.create_persistent_volume({"metadata": {"name": name}, "spec": volume})
    try:
        cluster.admin.create_namespaced_persistent_volume_claim(
            cluster.namespace, {"metadata": {"name": name}, "spec": demand}
        )
        yield name, folder
    finally:
        cluster.empty()  # of pods that use it
        with contextlib.suppress(client.ApiException):
            cluster.admin.delete_namespaced_persistent_volume_claim(name, cluster.namespace)
        cluster.admin.delete_persistent_volume(name)
        poll_until(
            lambda: name not in {v.metadata.name for v in cluster.admin.list_persistent_volume().items},
            describe=f"volume {name} stays",
        )
        shutil.rmtree(folder)


def test_pods_share_the_workspace_on_a_claim(cluster: Kube, claim: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = claim
    (folder / "ws").mkdir()
    (folder / "ws").chmod(0o777)
    (folder / "ws/train.py").write_text(SHARE)
    what = (f"--pvc={name}:/data", "--job_workspace=/data/ws", "--nodes=2", "--server_num=0")
    done = cluster.run(*cluster.apply, *what, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"nothing is sent: /data/ws is in the volume claim {name}" in done.stdout
    for rank in range(2):
        assert f"trainer/{rank} | trainer {rank} sees both in /data/ws\n" in done.stdout, done.stdout
    assert {path.name for path in (folder / "ws").glob("seen-*")} == {"seen-0", "seen-1"}
