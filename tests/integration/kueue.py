"""A job in a queue of a real Kueue. No part of a run of all tests, since its program takes minutes to build:

sudo make kube EXTRAS=1
sudo .venv/bin/python -m pytest tests/integration/kueue.py
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.jobs import QUICK, Event, running
from support.kube import Kube, KubePlace, open_own
from testbed.kube import kueue

QUEUE = "team"
# As much as one of the jobs asks for.
QUOTA = {"cpu": "500m", "memory": "300Mi"}
AMOUNTS = (f"--queue={QUEUE}", f"--cpu={QUOTA['cpu']}", f"--memory={QUOTA['memory']}", "--server_num=0")
HOLD = """
import signal
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def own(check_leftovers: None) -> Iterator[Kube]:
    """A cluster with Kueue, and a queue for one job at a time."""
    if reason := kueue.why_not():
        pytest.fail(reason)
    with open_own() as made:
        kueue.start(made)
        kube = Kube(made.folder)
        try:
            kueue.make_queue(made, QUEUE, kube.namespace, QUOTA)
            yield kube
        finally:
            print(made.nodes[0].read_log("kueue")[-5000:])
            kube.close()


def say_waits(events: list[Event]) -> int:
    return sum("the queue team has not released it" in e.get("text", "") for e in events)


@pytest.mark.timeout(900)
def test_job_waits_until_another_gives_the_quota_back(own: Kube, workspace: Path) -> None:
    first, second = workspace / "first", workspace / "second"
    for folder, program in ((first, HOLD), (second, "print('done')")):
        folder.mkdir()
        (folder / "train.py").write_text(program)
    place = KubePlace(own, 1)
    with running(place, first, *AMOUNTS, *QUICK) as holding:
        holding.until_printed("ready", ["trainer/0"])
        with running(KubePlace(own, 1), second, *AMOUNTS, "--wait_timeout=60") as waiting:
            waiting.until(lambda events: bool(say_waits(events)), "the wait")
            assert not any(e["event"] == "process" for e in waiting.events())
            os.kill(holding.launcher.pid, signal.SIGINT)
            assert holding.launcher.wait() == 130, holding.launcher.output()
            assert waiting.launcher.wait() == 0, waiting.launcher.output()
            assert say_waits(waiting.events()) == 1 and waiting.lines("trainer/0") == ["done"]
    own.wait_until_gone()
