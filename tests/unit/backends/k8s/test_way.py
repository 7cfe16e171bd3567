"""The end of a job that began by itself: its removal, and its failure in words."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, cast

import pytest

from pslaunch.backends.k8s.backend import K8sBackend
from pslaunch.backends.k8s.way import PodsWay
from pslaunch.backends.local.spec import make_local_site
from pslaunch.follow.watch import Watch
from pslaunch.node.job import Plan
from pslaunch.node.loop import Loop
from pslaunch.options.spec import JobSpec
from pslaunch.plan import make_plan
from pslaunch.views.outlet import Outlet, make_view

LEFT = "403 Forbidden: Job j-1; pslaunch stop j-1 --namespace=team removes it"


class Removing:
    """The removal of a backend, which takes as long as nobody is in a hurry."""

    def __init__(self, left: list[str], *, slow: bool = False) -> None:
        self._left, self._slow = left, slow
        self.hurried = threading.Event()

    def remove(self) -> list[str]:
        if self._slow:
            os.kill(os.getpid(), signal.SIGINT)
            assert self.hurried.wait(60)
        return self._left

    def limit_end(self, limit_s: float) -> None:
        assert limit_s == 0.0
        self.hurried.set()

    def cancel(self) -> None:
        self.hurried.set()


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    spec = JobSpec(draft=Plan(backend="local", name="j"), workspace=tmp_path, site=make_local_site(tmp_path))
    return make_plan(spec, "j-1")


@contextlib.contextmanager
def watching() -> Iterator[tuple[Loop, Watch]]:
    loop, outlet = Loop(), Outlet(sys.stdout)
    view = make_view(json=False, out=cast(TextIO, outlet), clock=time.monotonic)
    try:
        yield loop, Watch(loop, view, outlet)
    finally:
        view.close()
        loop.close()
        outlet.drain()


@pytest.mark.parametrize("left", [[], [LEFT]])
def test_rest_of_a_job_that_was_not_removed_is_said(
    plan: Plan, capfd: pytest.CaptureFixture[str], left: list[str]
) -> None:
    with watching() as (loop, watch):
        way = PodsWay(cast(K8sBackend, Removing(left)), plan)
        assert way.remove(loop, watch) == (not left)
    assert (LEFT in capfd.readouterr().out) == bool(left)


def test_interrupt_during_the_removal_hurries_it(plan: Plan) -> None:
    with watching() as (loop, watch):
        removing = Removing([], slow=True)
        assert PodsWay(cast(K8sBackend, removing), plan).remove(loop, watch)
        assert removing.hurried.is_set()
