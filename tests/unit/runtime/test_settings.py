"""init(): arguments over environment, errors that name what is wrong, and becoming the pserver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields

import pytest

from pslaunch.runtime.paddle2.base.life import Fleet
from pslaunch.runtime.paddle2.base.role_maker import UserDefinedRoleMaker
from pslaunch.runtime.process import settings
from pslaunch.runtime.process.settings import build_pserver_options, resolve
from pslaunch.runtime.shared import env


def test_every_argument_is_a_field() -> None:
    own = {f.name for f in fields(settings.Settings)} - {"job", "flags", "snapshots"}
    assert own | {*env.SNAPSHOT_ARGS, "use_gpu"} == set(env.INIT_ARGS)  # the latter is refused


def test_settings_have_the_documented_defaults() -> None:
    found = resolve({}, {})
    assert (found.port, found.ports_num, found.ports_num_for_sparse) == (7164, 1, 0)
    assert (found.trainer_count, found.num_gradient_servers, found.seed) == (1, 1, 1)


def test_arguments_win_over_the_environment() -> None:
    environ = {"PADDLE_INIT_PORT": "8000", "PADDLE_INIT_TRAINER_COUNT": "3"}
    found = resolve({"port": 9000}, environ)
    assert (found.port, found.trainer_count) == (9000, 3)


def test_flags_of_the_environment_win_over_arguments() -> None:
    found = resolve({"num_passes": 3, "save_dir": "a"}, {"PADDLE_INIT_NUM_PASSES": "7"})
    assert (found.num_passes, found.save_dir) == (7, "a")


@pytest.mark.parametrize("word", ["False", "0", 0, False, "no"])
def test_text_forms_of_false(word: object) -> None:
    assert resolve({"use_gpu": word, "no_save": word}, {}).no_save is False


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"trainer_cuont": 2}, "no argument trainer_cuont; did you mean trainer_count"),
        ({"blue": 2}, "no argument blue"),
        ({"use_gpu": True}, "with_gpu OFF"),
        ({"use_gpu": "1"}, "with_gpu OFF"),
        ({"port": "x"}, "port='x': expected a whole number"),
        ({"port": 70000}, "port=70000: expected a whole number from 1 to 65535"),
        ({"nan": "ignore"}, "nan='ignore': expected warn, refuse, skip"),
        ({"trainer_id": 1}, "trainer_id=1 must be below num_gradient_servers=1"),
        ({"pservers": "host:port"}, "pservers='port': expected a whole number"),
    ],
)
def test_errors_name_the_argument(arguments: dict[str, object], text: str) -> None:
    with pytest.raises((TypeError, env.EnvError), match=text):
        resolve(arguments, {})


def test_repeated_addresses_have_blocks_of_ports() -> None:
    arguments = {"pservers": "10.0.0.1,10.0.0.1", "ports_num": 2, "ports_num_for_sparse": 1}
    assert resolve(arguments, {}).endpoints == [("10.0.0.1", 7164), ("10.0.0.1", 7167)]


@pytest.mark.parametrize("is_fleet", [False, True])
def test_in_the_role_pserver_the_program_becomes_it_without_fleet(
    monkeypatch: pytest.MonkeyPatch, is_fleet: bool
) -> None:
    called: list[list[str]] = []
    monkeypatch.setenv("TRAINING_ROLE", "PSERVER")
    monkeypatch.setenv("PADDLE_PORT", "6001")
    monkeypatch.setenv("POD_IP", "127.0.0.2")
    monkeypatch.setattr(settings, "_current", None)
    monkeypatch.setattr(settings, "_given", {})
    monkeypatch.setattr(settings, "_part", {} if is_fleet else None)
    monkeypatch.setattr(settings, "_become_pserver", called.append)
    settings.init(num_gradient_servers=2, ports_num=2)
    options = "--port=6001", "--ports_num=2", "--ports_num_for_sparse=0", "--num_gradient_servers=2"
    assert called == ([] if is_fleet else [[*options, "--host=127.0.0.2"]])


def test_a_program_is_a_fleet_program_once_it_has_imported_fleet() -> None:
    program = """
import pslaunch.runtime as paddle
from pslaunch.runtime.process import settings
settings._become_pserver = lambda options: print("becomes the pserver")
paddle.init()
paddle.static.Executor
paddle.init()
paddle.fleet
paddle.init()
"""
    argv = [sys.executable, "-c", program]
    environ = {**os.environ, "TRAINING_ROLE": "PSERVER"}
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=environ)
    assert done.stdout == 2 * "becomes the pserver\n"


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("is_first", [True, False])
def test_init_and_fleet_init_keep_what_the_other_has_set(is_first: bool) -> None:
    own = Fleet()
    calls: list[Callable[[], None]] = [
        lambda: settings.init(nan="refuse", trainer_id=2, num_gradient_servers=3, pservers="other"),
        lambda: own.init(UserDefinedRoleMaker(current_id=1, worker_num=2, server_endpoints=["h:6170"])),
    ]
    for call in calls if is_first else calls[::-1]:
        call()
    _, found = own._check_role("init_worker", server=False)
    assert (found.nan, found.pservers) == ("refuse", "h:6170")
    assert (found.trainer_id, found.num_gradient_servers) == (1, 2)  # the role maker decides


def test_the_pserver_gets_secret_and_log_folder() -> None:
    settings = resolve({"log_dir": "l"}, {"PSLAUNCH_SECRET_FILE": "/s"})
    options = build_pserver_options(settings, "", "7164")
    assert options[-2:] == ["--secret_file=/s", "--log_dir=l"]
    assert options[0] == "--port=7164"


def test_misspelt_variable_of_init_is_reported() -> None:
    environ = {
        **os.environ,
        "PADDLE_INIT_TRAINER_COUN": "2",
        "PADDLE_INIT_RACK": "1",
        "PADDLE_INIT_SEED": "3",
    }
    argv = [sys.executable, "-c", "import pslaunch.runtime as paddle; paddle.init()"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=environ)
    told = "the variable PADDLE_INIT_TRAINER_COUN has no effect; did you mean PADDLE_INIT_TRAINER_COUNT?\n"
    assert done.stderr == told
