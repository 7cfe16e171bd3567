"""Every ending, on hosts by SSH: one loses its power or its cable, or hangs; the job ends on all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.jobs import Place, running
from support.process import poll_until
from testbed import Host, Hosts

GRACE_S, LOST_AFTER_S, EXTRA_S, SLACK_S = 1.0, 3.0, 2.0, 1.5
BOUND_S = LOST_AFTER_S + GRACE_S + EXTRA_S + SLACK_S
TIMES = (f"--grace={GRACE_S}", f"--lost_after={LOST_AFTER_S}")
# Ignores TERM, and hides a grandchild from everyone.
STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"hidden\\n")
    while True:
        signal.pause()
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""
FAULTS: dict[str, Callable[[Host], None]] = {
    "power": Host.crash,
    "cable": Host.link_down,
    "hang": Host.freeze,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("place", "node"), [("fabric", 2), ("fabric_led", 0), ("fabric_led", 2)], indirect=["place"]
)
def test_a_host_that_is_lost_ends_the_job(
    place: Place, hosts: Hosts, workspace: Path, fault: str, node: int
) -> None:
    (workspace / "train.py").write_text(STUBBORN)
    everyone = ["pserver/0", "trainer/0", "trainer/1", "trainer/2"]
    lost = hosts[node]
    with running(place, workspace, *TIMES, "--server=script", "--worker_num=3") as job:
        job.until_printed("ready", everyone)
        job.until_printed("hidden", everyone)
        FAULTS[fault](lost)
        struck_s = time.monotonic()
        reached = [host for host in hosts if host is not lost or fault == "cable"]

        def left() -> list[str]:
            return [f"{host.name}: {words}" for host in reached for words in host.processes().values()]

        poll_until(lambda: not left(), describe=lambda: f"alive on {left()}", timeout_s=BOUND_S)
        assert job.launcher.wait(timeout_s=BOUND_S + struck_s - time.monotonic() + 1) == codes.NODE_LOST
        assert lost.name in job.end()["reason"], job.end()
    lost.thaw()
    poll_until(lambda: not lost.processes(), describe=lambda: str(lost.processes()), timeout_s=BOUND_S)
