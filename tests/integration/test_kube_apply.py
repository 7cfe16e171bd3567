"""Attached jobs on a real cluster: live, fetched, ended in order, and nothing of them left."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

from integration.test_contract import POLITE
from pslaunch.node import codes
from support.jobs import finished, running
from support.kube import Kube, KubePlace
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
if os.environ["PADDLE_TRAINER_ID"] == "0":
    signal.pause()
sys.exit(7)
"""


def test_results_come_here_and_nothing_is_left(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(SAY_AND_SAVE)
    code, job = finished(KubePlace(cluster, 2), workspace, *ALONE, "--worker_num=2")
    assert code == 0, job.launcher.output()
    assert job.lines("trainer/0") == ["rank 0"] and job.lines("trainer/1") == ["rank 1"]
    assert (workspace / "output/model").read_text() == "the model"
    logs = sorted(path.read_text() for path in (workspace / "log").glob("*/train.log"))
    assert logs == ["rank 0\n", "rank 1\n"]
    cluster.wait_until_gone(set())


def test_failed_program_gives_the_code_and_its_log(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(FAIL)
    code, job = finished(KubePlace(cluster, 2), workspace, *ALONE, "--worker_num=2")
    assert (code, job.end()["failure"]["what"]) == (7, "trainer/1"), job.launcher.output()
    assert len(list((workspace / "log").glob("*/train.log"))) == 2


def test_interrupt_ends_in_order_and_fetches(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(POLITE)
    with running(KubePlace(cluster, 2), workspace, "--server=script", *BOTH) as job:
        job.until_printed("ready", ["pserver/0", "pserver/1", "trainer/0", "trainer/1"])
        assert not list_deadlines(cluster)
        job.launcher.proc.send_signal(signal.SIGINT)
        assert job.launcher.wait() == codes.INT
        said = [e["text"] for e in job.events() if e["event"] == "line" and e["text"].startswith("leaving")]
        assert said == ["leaving trainer"] * 2 + ["leaving pserver"] * 2
    assert len(list((workspace / "log").glob("*/train.log"))) == 2
    assert cluster.list_names() == set()


def list_deadlines(cluster: Kube) -> list[int]:
    jobs = cluster.batch.list_namespaced_job(cluster.namespace).items
    return [job.spec.active_deadline_seconds for job in jobs if job.spec.active_deadline_seconds]


COUNT = """
import time
for i in range(400):
    print(i, flush=True)
    time.sleep(0.02)
"""


def test_lost_line_is_opened_again_and_no_line_of_output_comes_twice(
    cluster: Kube, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "train.py").write_text(COUNT)
    target = cluster.address
    proxy = CuttingProxy(socket.create_server((HOST, 0)), target, ())
    try:
        place = KubePlace(cluster, 1, kubeconfig=cluster.lead_through(proxy.endpoint, tmp_path / "config"))
        with running(place, workspace, *ALONE) as job:
            job.until_printed("5", ["trainer/0"])
            proxy.close()
            job.until(lambda events: any("opened again" in e.get("text", "") for e in events), "the loss")
            proxy = CuttingProxy(socket.create_server(proxy.endpoint), target, ())
            assert job.launcher.wait() == 0, job.launcher.output()
            assert job.lines("trainer/0") == [str(i) for i in range(400)]
        assert (workspace / "output").is_dir()
    finally:
        proxy.close()


def test_job_without_its_launcher_ends_after_the_lease(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(POLITE)
    with running(KubePlace(cluster, 2), workspace, *ALONE, "--worker_num=2", "--ttl=60") as job:
        job.until_printed("ready", ["trainer/0", "trainer/1"])
        name = job.events()[0]["job"]
        job.launcher.kill()
    try:
        cluster.wait_for_end(name, timeout_s=30.0)
        ended = cluster.list_pods(name)[0].status.container_statuses[0].state.terminated
        assert json.loads(ended.message)["reason"].startswith("the launcher is gone for 6 s")
        assert "leaving trainer" in cluster.read_log(cluster.list_pods(name)[0].metadata.name)
    finally:
        cluster.batch.delete_namespaced_job(name, cluster.namespace, propagation_policy="Background")


def test_eviction_of_a_pod_ends_the_job_with_the_reason(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(POLITE)
    with running(KubePlace(cluster, 2), workspace, *ALONE, "--worker_num=2") as job:
        job.until_printed("ready", ["trainer/0", "trainer/1"])
        second = cluster.list_pods(job.events()[0]["job"])[1].metadata.name
        cluster.core.delete_namespaced_pod(second, cluster.namespace)
        assert job.launcher.wait() == codes.NODE_LOST
        assert "asked to end (SIGTERM)" in job.end()["reason"]
        assert sorted(job.lines("trainer/0") + job.lines("trainer/1"))[:2] == ["leaving trainer"] * 2
