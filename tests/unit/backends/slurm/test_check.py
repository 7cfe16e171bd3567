"""What a look at a cluster says about a job."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pslaunch.backends.face import Face
from pslaunch.backends.lines import News
from pslaunch.backends.slurm import FACE
from pslaunch.backends.slurm.backend import find_silence
from pslaunch.backends.slurm.check import judge_partition, parse_partitions
from pslaunch.node import codes
from support.process import make_script

SINFO = """\
all|all*|up|infinite|2|idle
all|all*|up|infinite|1|down*
far|far|up|infinite|1|planned
far|far|up|infinite|1|reserved
far|far|up|infinite|1|powering_up#
far|far|up|infinite|1|draining
gpu|gpu|up|1:00:00|1|mixed
old|old|down|1|1|idle
"""


@pytest.mark.parametrize(
    ("name", "wanted", "code", "text"),
    [
        ("", 2, 0, ""),
        ("", 3, codes.SERVICE, "2 nodes that are up"),
        ("", 4, codes.USAGE, "has 3 nodes, and the job needs 4; give --nodes N, at most 3"),
        ("gpu", 1, 0, "0 idle nodes: the job would wait"),
        ("old", 1, codes.SERVICE, "partition old is not up"),
        ("no", 1, codes.USAGE, "no partition 'no'; there are: all, far, gpu, old"),
        ("far", 3, 0, "0 idle nodes: the job would wait"),
        ("far", 4, codes.SERVICE, "has 3 nodes that are up, and the job needs 4"),
        ("old,gpu,all", 2, 0, ""),
        ("old,gpu", 1, 0, "partition gpu has 0 idle nodes"),
        ("all,no,none", 1, codes.USAGE, "no partition 'no', 'none'; there are"),
    ],
)
def test_partition_is_judged_for_the_job(name: str, wanted: int, code: int, text: str) -> None:
    found = judge_partition(parse_partitions(SINFO), name, wanted)[1]
    assert (found.code, text in f"{found.text}; {found.advice}") == (code, True) if found else not text


def test_reason_to_wait_for_nodes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        "pslaunch.check.check_hosts.examine_hosts",
        lambda _spec, backend, *_args: (backend.tell(News("in the queue")), [], []),
    )
    reach: Any = SimpleNamespace(agents=None, job="")
    spec: Any = SimpleNamespace(trace=None, site=SimpleNamespace(reach=reach))
    line: Any = SimpleNamespace(out=io.StringIO(), as_json=False, tell=said.append)
    Face.check(FACE, line, spec)
    assert said == ["in the queue"]


def test_controller_that_does_not_answer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_script(tmp_path / "scontrol", "echo 'Slurmctld(primary) at a is DOWN'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert find_silence().endswith("does not answer: Slurmctld(primary) at a is DOWN")
