"""Golden plans: a command line gives exactly this dry run. `REGOLD=1 pytest` writes them anew."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pslaunch.args import split_command_line
from pslaunch.given import gather
from pslaunch.options import options_of
from pslaunch.plan import dry_run, make_plan, render
from pslaunch.spec import JobSpec, local_spec

GOLDEN = Path(__file__).parents[1] / "golden"
PROGRAMS = {
    "v2": "import pslaunch.runtime as paddle\npaddle.init()\n",
    "fleet": "from paddle.distributed import fleet\nif fleet.is_server():\n    fleet.run_server()\n",
}

CASES = {
    "default": ("v2", []),
    "two-by-two": ("v2", ["--server_num=2", "--worker_num=2", "--ports_num=2", "--ports_num_for_sparse=1"]),
    "given-port": ("v2", ["--port=8000", "--server_num=2", "--stall_timeout=90"]),
    "fleet": ("fleet", ["--server_num=2", "--worker_num=2", "--env=A=b c", "--use_gpu=1"]),
    "alone": ("v2", ["--server_num=0", "--num_passes=3", "train.py", "--lr", "0.1"]),
    "log-dir": ("v2", ["--log_dir=/elsewhere/log", "--job_name=named", "--grace=9"]),
}


def spec_of(program: str, words: list[str], folder: Path) -> JobSpec:
    (folder / "train.py").write_text(PROGRAMS[program])
    split = split_command_line(words, {name: o.valued for name, o in options_of("local").items()})
    return local_spec(gather("local", split, folder), split, cwd=folder, environ={})


def planned(program: str, words: list[str], folder: Path) -> dict[str, Any]:
    """The dry run, with what differs between machines and runs replaced by words."""
    spec = spec_of(program, words, folder)
    text = json.dumps(dry_run(make_plan(spec, "JOB")), indent=1, sort_keys=True)
    text = text.replace(str(folder), "/ws").replace(sys.executable, "/python")
    return dict(json.loads(text))


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "ws"
    folder.mkdir()
    got = planned(*CASES[name], folder)
    path = GOLDEN / f"local-{name}.json"
    if os.environ.get("REGOLD"):
        path.write_text(json.dumps(got, indent=1, sort_keys=True) + "\n")
    assert got == json.loads(path.read_text())


def test_a_dry_run_for_people_names_every_process_and_symbol(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    text = render(planned(*CASES["two-by-two"], tmp_path / "ws"))
    for words in ("pserver/1 on node 0", "trainer/1 on node 0", "{pserver:1.port}", "log/train.1.log"):
        assert words in text
