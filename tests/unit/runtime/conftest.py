"""Settings, kernels and folders of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime import _core
from pslaunch.runtime.process import settings


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Default settings, not those of another test, and log/ in a folder of this one."""
    monkeypatch.setattr(settings, "_current", None)
    monkeypatch.setattr(settings, "_given", {})
    monkeypatch.setattr(settings, "_part", None)
    monkeypatch.chdir(tmp_path)
    paddle.init()


@pytest.fixture
def builds() -> Iterator[range]:
    """Numbers of all builds of the kernels; the best is in use again afterwards."""
    yield range(1, 4)
    _core.choose_build(0)
