"""For tests of faults: where they run, what they choose by chance, and a stranger who must not notice."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.beside import STRANGER
from support.jobs import Job, LocalPlace, Place, running


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Of the places in tests/conftest.py a test has the first, unless it names some itself."""
    named = any("place" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "place" in metafunc.fixturenames and not named:
        metafunc.parametrize("place", ["local"], indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, make_place: Callable[[str], Place]) -> Place:
    """Return the place where the job under test runs."""
    return make_place(request.param)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Of this test and the run's seed; the same in every run with this seed."""
    return random.Random(f"{request.config.getoption('--seed')} {request.node.nodeid}")


@pytest.fixture(scope="session")
def stranger(
    tmp_path_factory: pytest.TempPathFactory, check_leftovers_of_the_run: None
) -> Iterator[tuple[Job, Path]]:
    """Another job of this user, beside all jobs under test, with the same names of programs."""
    workspace = tmp_path_factory.mktemp("stranger")
    with running(LocalPlace(1), workspace, "--grace=0.2", "--server=script", text=STRANGER) as job:
        job.until_printed("ready", ["pserver/0", "trainer/0"])
        yield job, workspace
        job.launcher.proc.send_signal(signal.SIGTERM)
        job.launcher.wait()


@pytest.fixture(autouse=True)
def check_stranger(stranger: tuple[Job, Path]) -> Iterator[None]:
    """Fail a test in which the stranger noticed something."""
    job, workspace = stranger
    yield
    assert job.launcher.proc.poll() is None, job.launcher.output()
    assert {e["event"] for e in job.events()} <= {"job", "node", "process", "line", "progress"}, (
        job.launcher.output()
    )
    for log in ("train.log", "server.log"):
        assert (workspace / "log" / log).read_text() == "ready\n"
