"""Attached jobs on a real cluster: live, fetched, ended in order, and nothing of them left."""

from __future__ import annotations

import functools
import json
import random
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.test_contract import POLITE
from pslaunch.node import codes
from support.jobs import QUICK, Job, finished, running
from support.kube import Kube, KubePlace
from support.process import poll_until
from support.proxy import CuttingProxy
from support.pservers import HOST

ALONE = ("--server_num=0",)
BOTH = ("--server_num=2", "--worker_num=2")
SAY_AND_SAVE = """
import os
print("rank", os.environ["PADDLE_TRAINER_ID"], flush=True)
with open("output/model", "w") as f:
    f.write("the model")
"""
FAIL = """
import os, signal, sys
if os.environ["PADDLE_TRAINER_ID"] == "1":
    signal.pause()
with open("output/model", "w") as f:
    f.write("of the last pass")
sys.exit(7)
"""


def test_results_come_here_and_nothing_is_left(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(SAY_AND_SAVE)
    options = (*ALONE, "--worker_num=2", "--network_policy")
    code, job = finished(KubePlace(cluster, 2), workspace, *options)
    assert code == 0, job.launcher.output()
    assert job.lines("trainer/0") == ["rank 0"] and job.lines("trainer/1") == ["rank 1"]
    assert (workspace / "output/model").read_text() == "the model"
    logs = sorted(path.read_text() for path in (workspace / "log").glob("*/train.log"))
    assert logs == ["rank 0\n", "rank 1\n"]
    cluster.wait_until_gone()


def test_failed_program_gives_its_code_its_log_and_its_saved_files(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(FAIL)
    code, job = finished(KubePlace(cluster, 2), workspace, *ALONE, "--worker_num=2")
    assert (code, job.end()["failure"]["what"]) == (7, "trainer/0"), job.launcher.output()
    assert len(list((workspace / "log").glob("*/train.log"))) == 2
    assert (workspace / "output/model").read_text() == "of the last pass"


def test_interrupt_ends_in_order_and_fetches(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(POLITE)
    with running(KubePlace(cluster, 2), workspace, "--server=script", *BOTH) as job:
        job.until_printed("ready", ["pserver/0", "pserver/1", "trainer/0", "trainer/1"])
        poll_until(lambda: not list_deadlines(cluster), describe="the deadline stays")
        job.launcher.proc.send_signal(signal.SIGINT)
        assert job.launcher.wait() == codes.INT
        said = [e["text"] for e in job.events() if e["event"] == "line" and e["text"].startswith("leaving")]
        assert said == ["leaving trainer"] * 2 + ["leaving pserver"] * 2
    assert len(list((workspace / "log").glob("*/train.log"))) == 2
    assert cluster.list_names() == set()


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


def test_pod_that_stays_is_named_with_its_machine(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(POLITE)
    with running(KubePlace(cluster, 1), workspace, *ALONE, *QUICK) as job:
        job.until_printed("ready", ["trainer/0"])
        (pod,) = cluster.list_pods(job.get_job()["job"])
        hold = {"metadata": {"finalizers": ["pslaunch.test/held"]}}
        cluster.admin.patch_namespaced_pod(pod.metadata.name, cluster.namespace, hold)
        try:
            job.launcher.proc.send_signal(signal.SIGINT)
            assert job.launcher.wait() == codes.INT
            words = f"Pod {pod.metadata.name} on {pod.spec.node_name}"
            assert any(words in e.get("text", "") for e in job.events()), job.launcher.output()
        finally:
            free = {"metadata": {"finalizers": None}}
            cluster.admin.patch_namespaced_pod(pod.metadata.name, cluster.namespace, free)


def test_pending_job_without_its_launcher_ends_after_the_wait_timeout(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text("")
    with running(KubePlace(cluster, 1), workspace, *ALONE, "--cpu=1000", "--wait_timeout=2") as job:
        pods = functools.partial(cluster.core.list_namespaced_pod, cluster.namespace)
        poll_until(lambda: pods().items, describe="no pod")
        job.launcher.kill()
    cluster.wait_until_gone()


def test_job_without_its_launcher_ends_after_the_lease(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(POLITE)
    with running(KubePlace(cluster, 2), workspace, *ALONE, "--worker_num=2", "--ttl=60") as job:
        job.until_printed("ready", ["trainer/0", "trainer/1"])
        name = job.get_job()["job"]
        job.launcher.kill()
    try:
        cluster.wait_for_end(name)
        ended = cluster.list_pods(name)[0].status.container_statuses[0].state.terminated
        assert json.loads(ended.message)["reason"].startswith(
            f"the launcher is gone for {KubePlace.lease_s:g} s"
        )
        assert "leaving trainer" in cluster.read_log(cluster.list_pods(name)[0].metadata.name)
    finally:
        cluster.batch.delete_namespaced_job(name, cluster.namespace, propagation_policy="Background")


def test_eviction_of_a_pod_ends_the_job_with_the_reason(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(POLITE)
    with running(KubePlace(cluster, 2), workspace, *ALONE, "--worker_num=2") as job:
        job.until_printed("ready", ["trainer/0", "trainer/1"])
        second = cluster.list_pods(job.get_job()["job"])[1].metadata.name
        cluster.core.delete_namespaced_pod(second, cluster.namespace)
        assert job.launcher.wait() == codes.NODE_LOST
        assert "asked to end (SIGTERM)" in job.end()["reason"]
        assert sorted(job.lines("trainer/0") + job.lines("trainer/1"))[:2] == ["leaving trainer"] * 2
