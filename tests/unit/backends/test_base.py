"""Backends that leave out what no job of theirs needs."""

from __future__ import annotations

import pytest

from pslaunch.backends.here import Here
from pslaunch.backends.k8s import FACE
from pslaunch.backends.k8s.spec import K8sReach
from pslaunch.errors import SpecError
from pslaunch.node.job import Limits

LIMITS = Limits(1.0, 5.0, 60.0, None, 60.0)


def test_agents_for_jobs_that_begin_by_themselves_are_refused() -> None:
    with pytest.raises(SpecError, match="the k8s backend starts no agents: its jobs begin by themselves"):
        FACE.make_backend(K8sReach("j", "i")).start([], LIMITS)


def test_head_on_a_node_is_refused_by_default() -> None:
    with pytest.raises(SpecError, match="the other backend has no head on a node: the launcher leads"):
        Here("other").start_head([], LIMITS, "00")
