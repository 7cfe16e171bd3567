"""The Open MPI backend: arrivals of agents, and the hosts to which they belong."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest

from pslaunch.backends.mpi import MpiBackend, _Arrival, _check_arrival
from pslaunch.errors import NodeLostError
from pslaunch.node.job import Node
from pslaunch.node.line.gate import Seals
from pslaunch.options.mpi_spec import MpiHost, MpiReach

ALIASES = (MpiHost("alias1.invalid", None, 1), MpiHost("alias2.invalid", None, 2))
TOLD = {"host": "machine-a.example.org", "own": ["192.0.2.7"], "trainers": [1, 2]}


def make_backend(hosts: tuple[MpiHost, ...] = ALIASES, mpirun: str = "mpirun", *args: str) -> MpiBackend:
    return MpiBackend(MpiReach(mpirun, (4, 1, 4), 3, hosts, args, Node(0, "", "")))


def make_arrival(told: dict[str, Any]) -> _Arrival:
    return _Arrival(told, -1, cast(Seals, ()))


def test_agent_with_host_and_ranks_is_admitted() -> None:
    assert _check_arrival(json.dumps(TOLD).encode(), {0}) == ""


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"host": "evil\n-oProxyCommand=x"}, "is no host name"),
        ({"host": "-oProxyCommand=x"}, "is no host name"),
        ({"host": "a slots=9"}, "is no host name"),
        ({"host": 7}, "does not tell"),
        ({"own": []}, "does not tell"),
        ({"own": ["not an address"]}, "does not tell"),
        ({"own": "x"}, "does not tell"),
        ({"trainers": [0]}, "its ranks are none"),
    ],
)
def test_agent_with_wrong_words_is_refused(wrong: dict[str, Any], words: str) -> None:
    assert words in _check_arrival(json.dumps({**TOLD, **wrong}).encode(), {0})


def test_host_with_a_name_of_ssh_is_found_by_its_ranks() -> None:
    assert make_backend()._make_node(1, make_arrival(TOLD)).name == "alias2.invalid"


def test_host_placed_by_mpirun_keeps_its_own_name() -> None:
    backend = make_backend(ALIASES, "mpirun", "--map-by", "node")
    assert backend._make_node(1, make_arrival(TOLD)).name == TOLD["host"]


def test_only_given_hosts_are_asked() -> None:
    with pytest.raises(NodeLostError, match="the name of no given host"):
        next(make_backend().ask(Node(0, "other.invalid", ""), ["list"]))


def test_files_of_mpirun_lie_in_a_folder_without_blanks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "a b").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    backend = make_backend(mpirun="true")
    run = backend._run(backend._reach, [], b"")
    try:
        assert run.wait(10) and " " not in backend._folder
    finally:
        run.close()
