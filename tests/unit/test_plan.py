"""Golden plans: a command line gives exactly this dry run; one of each backend is there as a whole."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from pslaunch import cli
from pslaunch.node.job import Facts, place
from pslaunch.options.spec import JobSpec
from pslaunch.plan import make_dry_run, make_plan, render_plan
from support.command_line import make_spec
from support.golden import check_golden

PROGRAMS = {
    "v2": "import pslaunch.runtime as paddle\npaddle.init()\n",
    "fleet": "from paddle.distributed import fleet\nif fleet.is_server():\n    fleet.run_server()\n",
}

CONF = """
HOSTS = ["root@node1", "node2:2222", "[fd00::3]", "root@node1"]
ROOT_DIR = "/data/jobs"
PADDLE_NIC = "eth0"
PADDLE_PORT = 7164
PADDLE_PORTS_NUM = 2
PADDLE_PORTS_NUM_FOR_SPARSE = 2
PADDLE_USE_GPU = "False"
LD_LIBRARY_PATH = "/usr/local/cuda/lib64:/usr/lib64"
"""

WHOLE = {"local": "local-default", "fabric": "fabric-conf"}  # the others are differences to it
CASES = {
    "local-default": ("v2", []),
    "local-two-by-two": (
        "v2",
        ["--server_num=2", "--worker_num=2", "--ports_num=2", "--ports_num_for_sparse=1"],
    ),
    "local-given-port": ("v2", ["--port=8000", "--server_num=2", "--stall_timeout=90"]),
    "local-fleet": ("fleet", ["--server_num=2", "--worker_num=2", "--env=A=b c", "--use_gpu=1"]),
    "local-alone": ("v2", ["--server_num=0", "--num_passes=3", "train.py", "--lr", "0.1"]),
    "local-log-dir": ("v2", ["--log_dir=/elsewhere/log", "--job_name=named", "--grace=9"]),
    "fabric-conf": ("v2", ["--job_dispatch_package=."]),
    "fabric-totals": (
        "v2",
        ["--job_dispatch_package=.", "--hosts=a,b,c", "--server_num=2", "--worker_num=4", "--num_passes=2"],
    ),
    "fabric-fleet": (
        "fleet",
        ["--job_dispatch_package=.", "--exclude=node2:2222", "--port=9000", "--job_name=f"],
    ),
    "fabric-workspace": (
        "v2",
        ["--job_workspace=~/ws", "--log_dir=/logs", "--include=node1", "train.py", "--x"],
    ),
}


def spec_of(backend: str, program: str, words: list[str], folder: Path) -> JobSpec:
    (folder / "train.py").write_text(PROGRAMS[program])
    (folder / "conf.py").write_text(CONF)
    return make_spec(backend, words, folder, {})


def planned(name: str, folder: Path) -> dict[str, Any]:
    """The dry run, with what differs between machines and runs replaced by words."""
    spec = spec_of(name.partition("-")[0], *CASES[name], folder)
    plan = make_plan(spec, "JOB")
    placed = place(plan, plan.nodes)
    text = json.dumps(make_dry_run(placed, Facts.make_symbolic(placed)), indent=1, sort_keys=True)
    text = text.replace(str(folder), "/ws").replace(sys.executable, "/python")
    return dict(json.loads(text))


@pytest.mark.parametrize("name", CASES)
def test_plan_equals_its_golden_file(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "ws"
    folder.mkdir()
    whole = WHOLE[name.partition("-")[0]]
    check_golden(name, planned(name, folder), whole if name != whole else "")


@pytest.mark.parametrize("version", ["5.0.11", "4.1.4"])
def test_dry_run_under_mpirun_equals_its_golden_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], version: str
) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/train.py").write_text(PROGRAMS["v2"])
    (tmp_path / "machines").write_text("me@node1\nnode2 slots=2\n")
    (tmp_path / "mpirun").write_text(f"#!/bin/sh\necho 'mpirun (Open MPI) {version}'\n")
    (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    own = ["--dry_run", "--json", "--mpirun=./mpirun", "-hostfile", "machines", "-n", "3", "-x", "A=b c"]
    assert cli._run(["mpi", *own, "--map-by", "node", "ws/train.py", "--lr", "0.1"]) == 0
    text = capfd.readouterr().out
    for found, word in (
        (json.loads(text)["job"], "JOB"),
        (str(tmp_path), "/here"),
        (sys.executable, "/python"),
    ):
        text = text.replace(found, word)
    got = json.loads(text)
    check_golden(f"mpi-{version[0]}", got, "mpi-5" if version[0] != "5" else "")
    argv, env = got["start"]["argv"], got["start"]["env"]
    assert argv[argv.index("PSLAUNCH_CARRIED_SECRET") - 1] == "-x", "its name alone"
    assert not [word for word in env if word.startswith("PSLAUNCH")]
    assert not re.search("[0-9a-f]{64}", text)


def test_a_dry_run_for_people_names_every_process_and_symbol(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    text = render_plan(planned("local-two-by-two", tmp_path / "ws"))
    for words in ("pserver/1 on node 0", "trainer/1 on node 0", "{pserver:1.port}", "log/train.1.log"):
        assert words in text


def test_a_bundled_pserver_on_hosts_runs_with_the_given_python(tmp_path: Path) -> None:
    def argvs(*words: str) -> list[str]:
        spec = spec_of("fabric", "v2", ["--hosts=a", "--job_dispatch_package=.", *words], tmp_path)
        return [role.argv[0] for role in make_plan(spec, "JOB").roles]

    (tmp_path / "run.sh").touch(0o755)
    assert argvs("--python=~/env/bin/python") == ["~/env/bin/python"] * 2
    assert argvs("--server=bundled", "--python=/p", "run.sh") == ["/p", "./run.sh"]
    assert argvs() == argvs("--install") == ["{python}"] * 2
