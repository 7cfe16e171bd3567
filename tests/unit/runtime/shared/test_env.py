"""The environment contract: written, composed and read back."""

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslaunch.node import binding
from pslaunch.node.job import Count, Facts, Node, Plan, Role, place, propose_ports
from pslaunch.runtime.process.settings import resolve
from pslaunch.runtime.shared import env

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
values = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
floats = st.floats(0, 1e30, allow_subnormal=False)


def contract(role: str, rank: int, *, script: bool) -> dict[str, str]:
    """Variables of a process of a job with 2 pservers and 2 trainers on one node."""
    plan = Plan(
        job_id="w2v-1a2b", server="script" if script else "bundled", ports_num_for_sparse=1,
        roles=tuple(Role(name, Count("total", 2), ("p",)) for name in (env.PSERVER, env.TRAINER)),
        flags={"num_passes": "3"},
    )  # fmt: skip
    placed = place(plan, [Node(0, "n", "127.0.0.1").place_in("/ws")])
    starts = binding.bind(placed, Facts(("/run",), propose_ports(placed, 7164, 7164)))
    return next(one["contract"] for one in starts if one["key"] == f"{role}/{rank}")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("PADDLE_INIT_NUM_PASES", "PADDLE_INIT_NUM_PASSES"),
        ("PADDLE_INIT_num_pases", "PADDLE_INIT_NUM_PASSES"),
        ("PADDLE_INIT_NUM_PASSES", ""),
        ("PADDLE_INIT_num_passes", "PADDLE_INIT_NUM_PASSES"),
        ("PADDLE_INIT_RACK", ""),
        ("PADDLE_INIT_", ""),
        ("NUM_PASES", ""),
        ("MY_PADDLE_INIT_NUM_PASES", ""),
    ],
)
def test_misspelt_variable_of_init_gets_a_suggestion(name: str, near: str) -> None:
    assert env.find_near_init_var(name) == near


def test_a_server_finds_itself_in_the_list() -> None:
    for role, variable in (
        (env.PSERVER, "PADDLE_PSERVERS_IP_PORT_LIST"),
        (env.TRAINER, "PADDLE_TRAINER_ENDPOINTS"),
    ):
        for rank in range(2):
            found = contract(role, rank, script=True)
            assert found[variable].split(",").index(f"{found['POD_IP']}:{found['PADDLE_PORT']}") == rank


def test_runtime_reads_the_launchers_variables() -> None:
    found = contract(env.TRAINER, 1, script=False)
    args, job = env.read_init_args(found), env.read_job(found)
    assert (args["trainer_id"], args["num_gradient_servers"], args["num_passes"]) == (1, 2, 3)
    assert (args["use_gpu"], args["secret_file"], args["stall_after"]) == (False, "/run/secret", 60.0)
    assert (job.launched, job.role, job.rank, job.nodes) == (True, env.TRAINER, 1, ("127.0.0.1",))
    listed = env.list_pserver_endpoints(
        args["pservers"], args["port"], args["ports_num"], args["ports_num_for_sparse"]
    )
    assert [env.join_addr(*e) for e in listed] == found["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")


def test_without_a_launcher_there_is_no_job() -> None:
    assert env.read_job({}).launched is False
    assert env.read_init_args({"HOME": "/"}) == {}


@given(st.dictionaries(names, values), st.dictionaries(names, values))
def test_compose_keeps_every_value_byte_for_byte(inherited: dict[str, str], added: dict[str, str]) -> None:
    written = contract(env.TRAINER, 0, script=False)
    found = binding.compose(inherited, added, written)
    ours = binding.list_contract_names() | env.PROXIES
    expected = {**env.DEFAULTS, **{k: v for k, v in inherited.items() if k not in ours}, **added, **written}
    assert found == expected


@settings(max_examples=10, deadline=None)
@given(st.dictionaries(names.map(lambda n: f"X_{n}"), values, max_size=8))
def test_values_reach_a_process_byte_for_byte(added: dict[str, str]) -> None:
    found = binding.compose({"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}, added, {})
    code = (
        "import os, sys; sys.stdout.buffer.write(b'\\0'.join(k + b'=' + v for k, v in os.environb.items()))"
    )
    out = subprocess.run([sys.executable, "-c", code], env=found, stdout=subprocess.PIPE, check=True).stdout
    seen = dict(word.split(b"=", 1) for word in out.split(b"\0"))
    assert {k.encode(): v.encode() for k, v in added.items()}.items() <= seen.items()


def test_stale_variables_never_reach_a_program() -> None:
    stale = {
        "PADDLE_TRAINER_ID": "7",
        "PSLAUNCH_LISTEN_FDS": "3",
        "OMPI_COMM_WORLD_RANK": "7",
        "https_proxy": "x",
        "RANK": "7",
        "MASTER_ADDR": "elsewhere",
    }
    found = binding.compose({**stale, "HOME": "/h"}, {}, contract(env.PSERVER, 0, script=False))
    assert not found.keys() & stale.keys()
    assert found["HOME"] == "/h"


def test_options_of_the_launcher_reach_no_program_unless_added() -> None:
    options = {"PSLAUNCH_OPT_PORT": "1", "PSLAUNCH_OPT_X": "2"}
    assert binding.compose(options, {"PSLAUNCH_OPT_X": "3"}, {}) == {**env.DEFAULTS, "PSLAUNCH_OPT_X": "3"}


def test_mpirun_reaches_trainers_and_no_pserver() -> None:
    inherited = {"PMIX_RANK": "0", "OMPI_MCA_x": "1", "PRTE_y": "2"}
    for role, reaches in ((env.TRAINER, True), (env.PSERVER, False)):
        found = binding.compose(inherited, {}, contract(role, 0, script=False))
        assert (inherited.items() <= found.items()) is reaches
        assert bool(inherited.keys() & found.keys()) is reaches


def test_a_proxy_that_was_given_stays() -> None:
    assert binding.compose({"http_proxy": "a"}, {"http_proxy": "b"}, {})["http_proxy"] == "b"
    assert binding.compose({"PYTHONHASHSEED": "5"}, {}, {})["PYTHONHASHSEED"] == "5"


def test_gloo_is_the_users_choice() -> None:
    """Without it the workers of a Fleet program do not wait for each other, and its barriers do nothing."""
    written = contract(env.TRAINER, 0, script=True)
    assert binding.compose({}, {}, written)["PADDLE_WITH_GLOO"] == "0"
    assert binding.compose({"PADDLE_WITH_GLOO": "2"}, {}, written)["PADDLE_WITH_GLOO"] == "2"
    assert binding.compose({}, {"PADDLE_WITH_GLOO": "1"}, written)["PADDLE_WITH_GLOO"] == "1"


def test_true_and_false_in_every_spelling() -> None:
    for yes in ("True", "true", "TRUE", " on ", "yes", "1", 1, True):
        assert env.parse_bool(yes, "x") is True
    for no in ("False", "false", "FALSE", " off ", "no", "0", "", 0, False, None):
        assert env.parse_bool(no, "x") is False


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (env.parse_bool, "maybe"),
        (env.parse_int, "1.5"),
        (env.parse_int, "-1"),
        (env.parse_int, ""),
        (env.parse_port, "0"),
        (env.parse_port, "65536"),
        (env.parse_count, "0"),
        (env.parse_float, "-1"),
        (env.parse_float, "nan"),
        (env.parse_float, "inf"),
        (env.parse_float, "x"),
        (env.split_addr, "host"),
        (env.split_addr, ":80"),
        (env.split_addr, "host:x"),
        (env.split_addr, "[::1]"),
    ],
)
def test_unreadable_variables_are_named(read: object, text: str) -> None:
    assert callable(read)
    with pytest.raises(env.EnvError, match="SOME_NAME"):
        read(text, "SOME_NAME")


@given(st.one_of(st.ip_addresses().map(str), st.just("node-7.example")), st.integers(1, 65535))
def test_addresses_survive_the_environment(host: str, port: int) -> None:
    assert env.split_addr(env.join_addr(host, port), "x") == (host, port)


def test_symbols_of_a_dry_run_are_no_ipv6() -> None:
    assert env.join_addr("{node:0.addr}", "{pserver:0.port}") == "{node:0.addr}:{pserver:0.port}"


@given(st.integers(1, 4), st.integers(0, 4), st.integers(1, 5))
def test_pservers_at_one_address_have_blocks_of_ports(dense: int, sparse: int, count: int) -> None:
    found = env.list_pserver_endpoints(",".join(["10.0.0.1", "10.0.0.2"] * count), 7164, dense, sparse)
    firsts = [port for host, port in found if host == "10.0.0.1"]
    assert firsts == [7164 + k * (dense + sparse) for k in range(count)]
    assert [port for host, port in found if host == "10.0.0.2"] == firsts


def test_a_pserver_may_name_its_own_port() -> None:
    environ = {"PADDLE_INIT_PSERVERS": "127.0.0.1:7465,ps1,[::1]:7200", "PADDLE_INIT_PORT": "7300"}
    found = resolve({}, environ)
    assert found.endpoints == [("127.0.0.1", 7465), ("ps1", 7300), ("::1", 7200)]
    with pytest.raises(env.EnvError, match=r"pservers=.*: expected a whole number from 1 to 65535"):
        resolve({}, {"PADDLE_INIT_PSERVERS": "127.0.0.1:74650"})


def test_log_names_have_the_rank_of_further_processes() -> None:
    assert env.get_output_log(env.TRAINER, 5, 0) == "train.log"
    assert env.get_output_log(env.TRAINER, 5, 2) == "train.5.log"
    assert env.get_info_log(env.PSERVER, 1, 1) == "paddle_pserver2.1.INFO"
