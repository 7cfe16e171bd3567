"""Backends that can have the head of a job on a node, and those that can't."""

from __future__ import annotations

import pytest

from pslaunch.backends import base
from pslaunch.backends.base import make_leading_backend
from pslaunch.backends.local import LocalBackend
from pslaunch.errors import SpecError


def test_local_jobs_may_be_led_on_their_node() -> None:
    assert isinstance(make_leading_backend("local", None), LocalBackend)


def test_backend_without_heads_on_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        make_backend = staticmethod(lambda _reach: object())

    monkeypatch.setattr(base, "find_backend", lambda _name: Module)
    with pytest.raises(SpecError, match="the other backend has no head on a node: the launcher leads"):
        make_leading_backend("other", None)
