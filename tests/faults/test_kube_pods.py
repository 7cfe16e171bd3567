"""Pods that do not come, are taken away or do not reach each other, on the run's cluster."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.test_kube import BOTH, HELD, WAIT, place
from pslaunch.node import codes
from support.jobs import QUICK, running, until_nothing_runs
from support.kube import Kube, KubePlace
from testbed.kube.node import make_entry

SAVE = """
import os, signal, sys
def leave(*_):
    with open("output/model", "w") as f:
        f.write("the model")
    print("leaving", os.environ["PSLAUNCH_ROLE"], flush=True)
    sys.exit(0)
here, there = os.pipe()
os.set_blocking(there, False)
signal.set_wakeup_fd(there)
signal.signal(signal.SIGTERM, leave)
os.write(1, b"ready\\n")
while True:
    os.read(here, 1)
"""


def hold(workspace: Path) -> str:
    """Write a job whose pods wait for `place`; return the option for them."""
    (workspace / "train.py").write_text(WAIT)
    (workspace / "held.yaml").write_text(HELD)
    return f"--patch={workspace}/held.yaml"


def test_second_pod_without_a_machine_gives_the_reason_of_the_scheduler(
    cluster: Kube, workspace: Path
) -> None:
    options = (*BOTH, *QUICK, hold(workspace), "--wait_timeout=8")
    with running(KubePlace(cluster, 2), workspace, *options) as job:
        place(cluster, 1, "node9")
        place(cluster, 0)
        assert job.launcher.wait() == codes.PREFLIGHT, job.launcher.output()
        assert "no machine suits it: 0/2 nodes" in job.end()["reason"], job.launcher.output()


def test_death_of_pod_0_ends_the_other_pods(cluster: Kube, workspace: Path) -> None:
    """A pod that is deleted comes not again: its Job fails."""
    (workspace / "train.py").write_text(WAIT)
    options = (*BOTH, *QUICK, "--lost_after=10", "--max_restarts=1", "--restart_after=0")
    with running(KubePlace(cluster, 2), workspace, *options) as job:
        job.until_printed("ready", ["trainer/0", "trainer/1"])
        first = cluster.list_pods(job.get_job()["job"])[0].metadata.name
        cluster.admin.delete_namespaced_pod(first, cluster.namespace, grace_period_seconds=0)
        assert job.launcher.wait() == codes.NODE_LOST, job.launcher.output()
        # Either its agent still hears TERM, and the files can be fetched, or it does not.
        said = r"-0(-\w+)?: the pod is gone, and with it all|-0 on node\d: it was deleted or evicted"
        assert re.search(said, job.launcher.output()), job.launcher.output()
        assert "they are in" not in job.launcher.output()
    cluster.wait_until_gone()
    until_nothing_runs(60.0)


def test_job_that_others_delete_ends_in_order(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(SAVE)
    options = ("--server=script", "--server_num=2", "--worker_num=2")
    with running(KubePlace(cluster, 2), workspace, *options) as job:
        job.until_printed("ready", ["pserver/0", "pserver/1", "trainer/0", "trainer/1"])
        name = job.get_job()["job"]
        cluster.batch.delete_namespaced_job(name, cluster.namespace, propagation_policy="Background")
        assert job.launcher.wait() == codes.NODE_LOST, job.launcher.output()
        assert "asked to end (SIGTERM)" in job.end()["reason"]
        said = [e["text"] for e in job.events() if e["event"] == "line" and e["text"].startswith("leaving")]
        assert said == ["leaving trainer"] * 2 + ["leaving pserver"] * 2


@pytest.fixture
def drop(cluster: Kube) -> Iterator[Callable[..., None]]:
    """Drops packets that fit, on both nodes, until the end of the test."""
    rules: list[tuple[str, ...]] = []

    def change(how: str, rule: tuple[str, ...]) -> None:
        for init in cluster.kubeconfig.with_name("nodes").read_text().split():
            argv = make_entry(int(init), ["iptables", "-w", "60", how, "FORWARD", *rule, "-j", "DROP"])
            subprocess.run(argv, check=True, capture_output=True)

    def do(*rule: str) -> None:
        rules.append(rule)
        change("-I", rule)

    yield do
    for rule in rules:
        change("-D", rule)


def test_network_that_is_cut_between_pods_is_named(
    cluster: Kube, drop: Callable[..., None], workspace: Path
) -> None:
    """All but the way to the head."""
    options = (*BOTH[1:], "--server_num=2", "--server=script", *QUICK, hold(workspace), "--wait_timeout=15")
    with running(KubePlace(cluster, 2), workspace, *options) as job:
        place(cluster, 0, "node1")
        job.until(lambda events: any(e["event"] == "job" for e in events), "the job")
        name = job.get_job()["job"]
        (port,) = cluster.core.read_namespaced_service(f"{name}-head", cluster.namespace).spec.ports
        but = ("-p", "tcp", "!", "--dport", str(port.port))
        drop("-s", "10.244.2.0/24", "-d", cluster.list_pods(name)[0].status.pod_ip, *but)
        place(cluster, 1, "node2")
        assert job.launcher.wait() == codes.PREFLIGHT, job.launcher.output()
        words = rf"{name}-0 .*can't be reached from {name}-1|{name}-1 on node2 reach pod {name}-0 on node1"
        assert re.search(words, job.end()["reason"]), job.launcher.output()
