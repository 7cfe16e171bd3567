"""A process's part in a Fleet job: from variables, from the program, and errors that name them."""

from __future__ import annotations

import re

import pytest

from pslaunch.runtime.paddle2.base.role_maker import Part, read_part
from pslaunch.runtime.paddle2.fleet import PaddleCloudRoleMaker, Role, UserDefinedRoleMaker
from pslaunch.runtime.shared import env

SERVERS = ("10.0.0.1:6170", "10.0.0.2:6171")
WORKER = {
    "TRAINING_ROLE": "TRAINER",
    "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(SERVERS),
    "PADDLE_TRAINERS_NUM": "2",
    "PADDLE_TRAINER_ID": "1",
}
SERVER = {
    "TRAINING_ROLE": "PSERVER",
    "PADDLE_PSERVERS_IP_PORT_LIST": ", ".join(SERVERS),
    "PADDLE_TRAINERS_NUM": "2",
    "POD_IP": "10.0.0.2",
    "PADDLE_PORT": "6171",
}


def test_worker_needs_four_variables() -> None:
    assert read_part(WORKER) == Part(index=1, workers=2, servers=SERVERS)


def test_server_finds_its_index_in_the_list() -> None:
    assert read_part(SERVER) == Part(is_server=True, index=1, workers=2, servers=SERVERS)


@pytest.mark.parametrize(
    ("given", "name"), [(given, name) for given in (WORKER, SERVER) for name in [*given][1:]]
)
def test_missing_variables_are_named(given: dict[str, str], name: str) -> None:
    wanted = f"{name} is missing; a {given['TRAINING_ROLE']} needs {', '.join(given)}"
    with pytest.raises(env.EnvError, match=re.escape(wanted)):
        read_part({k: v for k, v in given.items() if k != name})


def test_all_missing_variables_are_named_at_once() -> None:
    wanted = "PADDLE_PSERVERS_IP_PORT_LIST, PADDLE_TRAINERS_NUM, PADDLE_TRAINER_ID are missing"
    with pytest.raises(env.EnvError, match=wanted):
        read_part({"TRAINING_ROLE": "TRAINER"})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"TRAINING_ROLE": ""}, "TRAINING_ROLE='': expected TRAINER or PSERVER"),
        ({"TRAINING_ROLE": "PSERVERS"}, "expected TRAINER or PSERVER; did you mean PSERVER?"),
        ({"PADDLE_TRAINER_ID": "2"}, "PADDLE_TRAINER_ID=2 must be below PADDLE_TRAINERS_NUM=2"),
        ({"PADDLE_TRAINERS_NUM": "two"}, "PADDLE_TRAINERS_NUM='two': expected a whole number"),
        ({"PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1"}, "expected host:port"),
        (
            {**SERVER, "PADDLE_PORT": "6170"},
            "this server is POD_IP:PADDLE_PORT=10.0.0.2:6170, but PADDLE_PSERVERS_IP_PORT_LIST has "
            "10.0.0.1:6170,10.0.0.2:6171; did you mean 10.0.0.2:6171?",
        ),
    ],
)  # fmt: skip
def test_wrong_variables_are_named(change: dict[str, str], text: str) -> None:
    with pytest.raises(env.EnvError, match=re.escape(text)):
        read_part({**WORKER, **change})


def test_program_without_any_variable_trains_alone_and_says_so() -> None:
    part = read_part({})
    assert (part.is_server, part.index, part.workers, part.servers) == (False, 0, 1, ())
    assert part.note.endswith("this program trains alone")


def test_single_worker_of_a_launcher_needs_no_servers() -> None:
    launched = {**WORKER, "PADDLE_PSERVERS_IP_PORT_LIST": "", "PSLAUNCH_JOB_ID": "j"}
    assert read_part({**launched, "PADDLE_TRAINERS_NUM": "1", "PADDLE_TRAINER_ID": "0"}) == Part()
    with pytest.raises(env.EnvError, match="PADDLE_PSERVERS_IP_PORT_LIST is missing"):
        read_part(launched)


def test_role_of_the_program() -> None:
    maker = UserDefinedRoleMaker(current_id=1, role=Role.SERVER, worker_num=3, server_endpoints=SERVERS)
    assert maker.make_part() == Part(is_server=True, index=1, workers=3, servers=SERVERS)
    endpoints = ["10.0.0.3:1", "10.0.0.4:1"]
    part = UserDefinedRoleMaker(
        current_id=1, role=Role.WORKER, worker_endpoints=endpoints, server_endpoints=SERVERS
    ).make_part()
    assert part == Part(index=1, workers=2, servers=SERVERS, worker_endpoints=tuple(endpoints))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"role": 4}, "role=4, expected Role.WORKER or Role.SERVER"),
        ({"worker_num": 2}, "server_endpoints=[] and worker_num=2: give both"),
        ({"server_endpoints": SERVERS}, "and worker_num=0: give both"),
        (
            {"server_endpoints": SERVERS, "worker_num": 2, "current_id": 2},
            "current_id=2 must be below 2, the number of workers",
        ),
        ({"is_collective": True}, "this runtime trains with parameter servers alone"),
    ],
)
def test_wrong_roles_of_the_program_are_named(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        UserDefinedRoleMaker(**arguments)  # type: ignore[arg-type]  # wrong on purpose


def test_collective_training_is_refused() -> None:
    with pytest.raises(ValueError, match="parameter servers alone"):
        PaddleCloudRoleMaker(is_collective=True)
