"""Places of the contract suite: a backend joins by a fixture of its own, named here."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.jobs import LocalPlace, Place

PLACES = ["local", "local_cluster"]  # each backend (and each placement of its head) adds its own


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    """Where the contract is tested."""
    return request.getfixturevalue(f"{request.param}_place")  # type: ignore[no-any-return] # by name


@pytest.fixture
def local_place() -> Place:
    return LocalPlace(1)


@pytest.fixture
def local_cluster_place() -> Place:
    return LocalPlace(3)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty workspace whose path is none that a shell would take unquoted."""
    path = tmp_path / "my job's $HOME"
    path.mkdir()
    return path
