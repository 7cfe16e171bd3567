"""The Open MPI backend: arrivals of agents, and the hosts to which they belong."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.backends.carried import Command
from pslaunch.backends.gate_of_agents import Arrival, CarriedAgents, Offer, _check_arrival, unpack_ranks
from pslaunch.backends.mpi import mpirun
from pslaunch.backends.mpi.backend import MpiBackend
from pslaunch.backends.mpi.spec import MpiHost, MpiReach
from pslaunch.errors import NodeLostError, ServiceError
from pslaunch.node.agent.brought import pack_ranks
from pslaunch.node.job import Node
from pslaunch.node.line.wire import Line
from pslaunch.options.options import MAX_PROCESSES
from pslaunch.runtime.shared.prove import MAX_BODY_BYTES
from support.hostile import ANYTHING, Nest, spoilt
from support.process import make_script

ALIASES = (MpiHost("alias1.invalid", None, 1), MpiHost("alias2.invalid", None, 2))
TOLD = {"host": "machine-a.example.org", "own": ["192.0.2.7"], "trainers": "6"}


def make_backend(*args: str, hosts: tuple[MpiHost, ...] = ALIASES) -> MpiBackend:
    return MpiBackend(MpiReach("mpirun", (4, 1, 4), hosts, args, CarriedAgents(3, Node(0, "", ""))))


def make_arrival(told: dict[str, Any]) -> Arrival:
    return Arrival(told, Line(-1, -1))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"host": "evil\n-oProxyCommand=x"}, "is not a host name"),
        ({"host": "a slots=9"}, "is not a host name"),
        ({"host": 7}, "lacks ranks, host or addresses"),
        ({"own": []}, "lacks ranks, host or addresses"),
        ({"own": ["not an address"]}, "lacks ranks, host or addresses"),
        ({"own": "x"}, "lacks ranks, host or addresses"),
        ({"trainers": "1"}, "not among those expected"),
        ({"trainers": "c"}, "not among those expected"),
        ({"trainers": "0"}, "not among those expected"),
        ({"trainers": f"{1 << 4096:x}"}, "not among those expected"),
        ({"own": Nest(600)}, "lacks ranks, host or addresses"),
        ({"trainers": 6}, "lacks ranks, host or addresses"),
        ({"trainers": "six"}, "lacks ranks, host or addresses"),
    ],
)
def test_agent_with_wrong_words_alone_is_refused(wrong: dict[str, Any], words: str) -> None:
    assert words in _check_arrival(json.dumps({**TOLD, **wrong}).encode(), {0}, 3)
    assert _check_arrival(json.dumps(TOLD).encode(), {0}, 3) == ""


@given(spoilt(TOLD) | ANYTHING)
def test_any_arrival_is_refused_in_words_or_usable(told: Any) -> None:
    text = json.dumps(told).encode()
    if not _check_arrival(text, set(), 3):
        arrival = make_arrival(json.loads(text))
        assert {0, 1, 2}.issuperset(arrival.trainers) and arrival.has_name(arrival.host)


def test_host_with_a_name_of_ssh_is_found_by_its_ranks_unless_mpirun_places_them() -> None:
    assert make_backend()._make_node(1, make_arrival(TOLD)).name == "alias2.invalid"
    assert make_backend("--map-by", "node")._make_node(1, make_arrival(TOLD)).name == TOLD["host"]


def test_only_given_hosts_are_asked() -> None:
    with pytest.raises(NodeLostError, match="the name of no given host"):
        next(make_backend().ask(Node(0, "other.invalid", ""), ["list"]))


def test_files_of_mpirun_lie_in_a_folder_without_blanks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a b").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a b"))
    backend = make_backend()
    with backend._prepare(backend._reach, Offer([], 1, b"", ""), []) as command:
        folder = command.after[2]
        assert " " not in folder and Path(folder).is_dir()
    assert not Path(folder).exists()


def test_folder_of_mpirun_goes_after_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(mpirun, "make_files", lambda reach, offer, wheels: {"absent/name": ""})
    backend = make_backend()
    with pytest.raises(ServiceError, match="mpirun can't be started: No such file"):
        backend._prepare(backend._reach, Offer([], 1, b"", ""), []).__enter__()
    assert not [*tmp_path.iterdir()]


def test_mpirun_that_ends_by_itself_is_explained_by_its_last_lines(tmp_path: Path) -> None:
    program = make_script(tmp_path / "mpirun", f"echo {'-' * 74}\necho lost node2 >&2\nexit 3")
    backend = make_backend()
    backend._running = run = backend._run(Command([program], {}), b"")
    try:
        assert run.wait(45)
        assert backend._describe_end() == ("it ended with 3; it said: lost node2", False)
    finally:
        run.close()


@given(st.sets(st.integers(0, MAX_PROCESSES - 1), min_size=1))
def test_ranks_arrive_as_they_were(ranks: set[int]) -> None:
    assert unpack_ranks(json.loads(json.dumps(pack_ranks(sorted(ranks))))) == tuple(sorted(ranks))
    assert len(pack_ranks(range(MAX_PROCESSES))) * 2 < MAX_BODY_BYTES  # of a whole machine, in a proof


def test_job_that_never_had_a_head_leaves_no_secret(tmp_path: Path) -> None:
    backend = make_backend()
    assert backend.keep_way(str(tmp_path / "job.secret")) == backend._reach
    assert not list(tmp_path.iterdir())
