"""A backend from outside: a package with an entry point, its commands, and the contract it keeps."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from carried import NAME
from integration import test_contract, test_contract_training
from pslaunch.node import codes
from support.jobs import (
    PSLAUNCH,
    QUICK,
    LocalPlace,
    Place,
    finished,
    parent_of,
    run_pslaunch,
    running,
    succeeded,
    until_nothing_runs,
)
from support.trainings import STUBBORN

ALONE = test_contract.ALONE
NODES = 3


class CarriedPlace(LocalPlace):
    """Place of the contract suite's jobs on this backend; its nodes look like a simulated cluster's."""

    def __init__(self, installed: Path, *verb: str) -> None:
        super().__init__(NODES)
        self._installed, self._verb = installed, verb or (NAME,)

    def command(self, workspace: Path, options: Sequence[str], program: Sequence[str]) -> list[str]:
        words = super().command(workspace, options, program)[len(PSLAUNCH) + 1 :]
        return ["env", f"PYTHONPATH={self._installed}", *PSLAUNCH, *self._verb, *words]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package is installed, from a wheel that is built here, without a network."""
    folder = tmp_path_factory.mktemp("carried")
    shutil.copytree(Path(__file__).parents[1] / NAME, folder / "source")
    alone = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    words = [sys.executable, "-m", "pip", "install", *alone, f"--target={folder}/site", f"{folder}/source"]
    subprocess.run(words, check=True, capture_output=True, timeout=250)
    return folder / "site"


def run(installed: Path, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_pslaunch(*words, env={"PYTHONPATH": str(installed)}, cwd=cwd)


@pytest.fixture
def place(installed: Path) -> Place:
    return CarriedPlace(installed)


# The contract suite's tests for every backend, on `place` of this file.
for _suite in (test_contract, test_contract_training):
    for _name, _test in vars(_suite).items():
        if any(mark.name == "seam" for mark in getattr(_test, "pytestmark", ()) if _name.startswith("test_")):
            globals()[_name] = _test


def test_ranks_are_on_the_nodes_that_brought_them(place: Place, workspace: Path) -> None:
    job = succeeded(place, workspace, *ALONE, "--worker_num=5", text="")
    assert [job.node_of(f"trainer/{rank}") for rank in range(5)] == [0, 2, 1, 0, 2]


def test_job_ends_and_reports_the_loss_of_its_carrier(place: Place, workspace: Path) -> None:
    with running(place, workspace, *ALONE, *QUICK, "--worker_num=3", text=STUBBORN) as job:
        job.until_printed("ready", [f"trainer/{rank}" for rank in range(3)])
        os.kill(parent_of(job.guards("trainer/0")[0]), signal.SIGKILL)
        assert job.launcher.wait() == codes.NODE_LOST == job.end()["code"]
        assert job.end()["reason"] == "the carrier cart was lost: it was killed by SIGKILL"
    until_nothing_runs(1.0)


def test_dry_run_shows_expected_nodes_and_the_start_of_their_agents(place: Place, workspace: Path) -> None:
    job = succeeded(place, workspace, *ALONE, "--worker_num=4", "--dry_run", text="")
    plan = json.loads(job.launcher.output())
    assert [(p["process"], p["node"]) for p in plan["processes"]] == [
        ("trainer/0", 0), ("trainer/1", 2), ("trainer/2", 1), ("trainer/3", 0)
    ]  # fmt: skip
    assert plan["start"] == {"argv": ["cart", "{keepers}"]}


def test_check_inspects_the_nodes_that_agents_bring(installed: Path, workspace: Path) -> None:
    (workspace / "train.py").write_text("import absent_module")
    code, job = finished(CarriedPlace(installed, "check", NAME), workspace, *ALONE, "--worker_num=3")
    hosts = [json.loads(line) for line in job.launcher.output().splitlines()]
    assert code == codes.PREFLIGHT
    assert [host["host"] for host in hosts] == ["localhost", "localhost-1", "localhost-2"]
    assert all("absent_module" in json.dumps(host["findings"]) for host in hosts)


def test_help_has_the_commands_and_options_of_the_package(installed: Path) -> None:
    assert "  carried  Run one job on agents that are carried.\n" in run(installed, "--help").stdout
    assert "  carried  Check the nodes that agents bring.\n" in run(installed, "check", "--help").stdout
    for words in (["carried", "--help"], ["jobs", "--help"]):
        assert "--carrier NAME" in run(installed, *words).stdout
    own = [sys.executable, "-P", "-c", "import make_tables as m, sys; print(m.render(sys.argv[1]))"]
    tools = Path(__file__).parents[2] / ".ci"
    words = [*own, "<!-- table: pslaunch carried -->\n<!-- end -->"]
    environ = {**os.environ, "PYTHONPATH": f"{installed}:{tools}"}
    table = subprocess.run(words, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "| `--carrier NAME` | cart | Name of the carrier. |" in table


def test_options_of_the_package_come_from_files_and_are_named_to_others(
    installed: Path, workspace: Path
) -> None:
    (workspace / "train.py").write_text("")
    (workspace / "pslaunch.toml").write_text("[carried]\ncarrier = 'wagon'\n")
    for name in (NAME, "local"):
        assert run(installed, name, "--dry_run", cwd=workspace).returncode == 0
    assert "wagon '{keepers}'" in run(installed, NAME, "--dry_run", cwd=workspace).stdout
    told = run(installed, "local", "--carrier=a", cwd=workspace).stderr
    assert "this command has no option --carrier; commands that have it: carried" in told
    assert "a carrier has legs; leave --wheels out" in run(installed, NAME, "--wheels", cwd=workspace).stderr


def test_later_shells_ask_the_place_of_the_package(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # without jobs of other tests
    asked = run(installed, "jobs", "--carrier=wagon")
    assert (asked.returncode, asked.stderr) == (0, "pslaunch jobs: no jobs are known to carrier wagon\n")
    both = run(installed, "jobs", "--carrier=wagon", "--namespace=n")
    assert both.returncode == codes.USAGE and "--namespace and --carrier are both given" in both.stderr
    assert run(installed, "jobs", "--cariier=wagon").returncode == codes.USAGE


def test_package_that_can_not_be_imported_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    info = tmp_path / "broken-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[pslaunch.backends]\nbroken = not_there:FACE\n")
    assert "the backend 'broken' of not_there can't be imported" in run(tmp_path, "--help").stdout
    told = run(tmp_path, "broken", "train.py")
    assert told.returncode == codes.USAGE and "No module named 'not_there'" in told.stderr
    assert run(tmp_path, "version").returncode == 0
