"""Place and bind: pure, so their results are compared as data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.node import binding, job
from pslaunch.node.job import Count, Facts, Limits, Node, Plan, Role
from pslaunch.runtime.shared import env


def node(i: int, addr: str = "127.0.0.1", ranks: int = 1) -> Node:
    return Node(i, f"n{i}", addr, f"/ws{i}", f"/ws{i}/log", f"/ws{i}/output", f"/ws{i}/.pslaunch", ranks)


def plan(*, server: str = "bundled", pservers: Count, trainers: Count) -> Plan:
    argv = ("python", "train.py", "a b", "$x")
    roles = (Role("pserver", pservers, ("serve",)), Role("trainer", trainers, argv))
    return Plan(job_id="demo-1", server=server, roles=roles, ports_num=2, ports_num_for_sparse=1)


@given(st.permutations(range(6)), st.lists(st.integers(0, 3), min_size=6, max_size=6), st.integers(0, 9))
def test_nodes_that_have_ranks_get_the_trainers_of_these(ranks: list[int], homes: list[int], n: int) -> None:
    own = [tuple(rank for rank, home in zip(ranks, homes, strict=True) if home == i) for i in range(4)]
    nodes = [node(i)._replace(trainers=own[i]) for i in range(4)]
    for trainers in (Count("per_rank", 1), Count("total", 6)):
        made = job.place(plan(pservers=Count("total", n), trainers=trainers), nodes)
        dealt = made.list_processes(env.TRAINER)
        assert [(p.rank, p.node) for p in dealt] == sorted(zip(ranks, homes, strict=True))
        for i in range(4):
            assert [p.local_rank for p in dealt if p.node == i] == [*range(len(own[i]))]
        assert [p.node for p in made.list_processes(env.PSERVER)] == [k * min(4, n) // n for k in range(n)]
        assert job.parse(job.Placed, json.loads(json.dumps(job.to_data(made)))).nodes == made.nodes


@pytest.mark.parametrize(
    ("own", "how_many", "why"),
    [
        ([(0, 1), (1,)], Count("per_rank", 1), r"trainers are \[0, 1, 1\], not each rank from 0 on once"),
        ([(1,), ()], Count("per_rank", 1), r"trainers are \[1\]"),
        ([(0,), (1,)], Count("total", 3), "3 trainers are asked for, and the nodes have 2"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(own: list[tuple[int, ...]], how_many: Count, why: str) -> None:
    nodes = [node(i)._replace(trainers=ranks) for i, ranks in enumerate(own)]
    with pytest.raises(ValueError, match=why):
        job.place(plan(pservers=Count("total", 1), trainers=how_many), nodes)


@given(
    st.lists(st.sets(st.sampled_from([env.PSERVER, env.TRAINER])), min_size=1, max_size=6),
    st.sampled_from(["total", "per_node", "per_rank"]),
    st.integers(0, 7),
)
def test_a_node_gets_only_the_roles_that_it_takes(taken: list[set[str]], rule: str, n: int) -> None:
    nodes = [node(i)._replace(roles=tuple(roles)) for i, roles in enumerate(taken)]
    p = plan(pservers=Count(rule, n), trainers=Count(rule, n))
    able = {role: sum(role in roles for roles in taken) for role in (env.PSERVER, env.TRAINER)}
    if n and not all(able.values()):
        with pytest.raises(ValueError, match="no node takes the role"):
            job.place(p, nodes)
        return
    made = job.place(p, nodes)
    assert all(process.role in taken[process.node] for process in made.processes)
    assert {role: len(made.list_processes(role)) for role in able} == {
        role: n if rule == "total" else n * able[role] for role in able
    }


@given(
    st.integers(1, 5),
    st.integers(0, 7),
    st.integers(1, 7),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(-9, 9),
)
def test_no_two_processes_of_an_address_share_a_port(
    nodes: int, pservers: int, trainers: int, dense: int, sparse: int, further: int
) -> None:
    p = plan(server="script", pservers=Count("total", pservers), trainers=Count("total", trainers))
    p = p._replace(ports_num=dense, ports_num_for_sparse=sparse)
    where = job.place(p, [node(i, addr=f"127.0.0.{i % 2 + 1}") for i in range(nodes)])
    ports = job.propose_ports(where, 7164, 7164 + further)
    owner = dict.fromkeys((job.GLOO, job.MASTER), where.nodes[0].addr)
    owner |= {x.key: where.nodes[x.node].addr for x in where.processes}
    used = [(owner[key], port) for key, values in ports.items() for port in values]
    assert len(used) == len(set(used))
    assert [port for _, port in used].count(ports[job.MASTER][0]) == 1  # at whatever address
    assert all(len(ports[x.key]) == dense + sparse for x in where.list_processes("pserver"))
    assert all(ports[key][0] >= 7164 + further for key in ports if not key.startswith("pserver"))


def test_trainers_without_pservers_have_ports_of_their_own() -> None:
    p = plan(server="none", pservers=Count("total", 0), trainers=Count("total", 3))
    where = job.place(p, [node(i, addr=f"10.0.0.{i + 1}") for i in range(2)])
    ports = job.propose_ports(where, 7164, 20000)
    assert ports == {"trainer/0": (20000,), "trainer/1": (20001,), "trainer/2": (20000,), "master": (20002,)}
    contract = binding.bind(where, Facts(("/run", "/run"), ports))[1]["contract"]
    assert contract["PADDLE_TRAINER_ENDPOINTS"] == "10.0.0.1:20000,10.0.0.1:20001,10.0.0.2:20000"
    assert contract["PADDLE_PORT"] == "20001" and contract["PADDLE_GLOO_HTTP_ENDPOINT"] == ""


def read_tf_configs(server: str, pservers: int) -> list[dict[str, Any]]:
    """Return what the processes of a tensorflow program with three trainers on two nodes are given."""
    p = plan(server=server, pservers=Count("total", pservers), trainers=Count("total", 3))
    where = job.place(p._replace(tensorflow=True), [node(i, addr=f"127.0.0.{i + 1}") for i in range(2)])
    starts = binding.bind(where, Facts(("/run",) * 2, job.propose_ports(where, 7164, 7164)))
    return [json.loads(start["contract"].get("TF_CONFIG", "{}")) for start in starts]


def test_trainers_of_tensorflow_have_ports_that_differ_also_between_addresses() -> None:
    workers = ["127.0.0.1:7164", "127.0.0.1:7165", "127.0.0.2:7166"]
    tasks = [{"type": "worker", "index": i} for i in range(3)]
    assert read_tf_configs("none", 0) == [{"cluster": {"worker": workers}, "task": task} for task in tasks]
    pserver, *trainers = read_tf_configs("bundled", 1)
    assert pserver == {}
    workers = ["127.0.0.1:7167", "127.0.0.1:7168", "127.0.0.2:7169"]
    assert trainers == [{"cluster": {"worker": workers}, "task": task} for task in tasks]


def test_script_of_tensorflow_has_a_chief_and_parameter_servers() -> None:
    found = read_tf_configs("script", 2)
    cluster = {
        "chief": ["127.0.0.1:7167"], "worker": ["127.0.0.1:7168", "127.0.0.2:7169"],
        "ps": ["127.0.0.1:7164", "127.0.0.2:7164"],
    }  # fmt: skip
    assert [one["cluster"] for one in found] == [cluster] * 5
    tasks = [("ps", 0), ("ps", 1), ("chief", 0), ("worker", 0), ("worker", 1)]
    assert [one["task"] for one in found] == [{"type": kind, "index": i} for kind, i in tasks]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2))
def test_the_runtime_reads_the_endpoints_that_the_launcher_wrote(
    pservers: int, nodes: int, dense: int, sparse: int
) -> None:
    p = plan(pservers=Count("total", pservers), trainers=Count("total", 1))
    p = p._replace(ports_num=dense, ports_num_for_sparse=sparse)
    where = job.place(p, [node(i, addr=f"10.0.0.{i + 1}") for i in range(nodes)])
    ports = job.propose_ports(where, 7164, 20000)
    starts = binding.bind(where, Facts(("/run",) * nodes, ports))
    trainer = starts[-1]["contract"]
    args = env.read_init_args(trainer)
    endpoints = env.list_pserver_endpoints(
        args["pservers"], args["port"], args["ports_num"], args["ports_num_for_sparse"]
    )
    listed = trainer["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")
    assert [f"{host}:{port}" for host, port in endpoints] == listed
    for start in starts[:-1]:
        own = f"{start['contract']['POD_IP']}:{start['contract']['PADDLE_PORT']}"
        assert listed[int(start["contract"]["PSLAUNCH_RANK"])] == own


def test_variables_of_the_user_for_torch_and_tensorflow_win() -> None:
    given = {"MASTER_PORT": "29500", "RANK": "7", "TF_CONFIG": "{}"}
    p = plan(pservers=Count("total", 1), trainers=Count("total", 1))
    where = job.place(p._replace(tensorflow=True, added_env=given), [node(0)])
    trainer = binding.bind(where, Facts.make_symbolic(where))[-1]
    assert {**trainer["added_env"], **trainer["contract"]}.items() >= given.items()
    assert trainer["contract"]["MASTER_ADDR"] == "127.0.0.1"


@pytest.mark.parametrize("server", ["bundled", "script"])
def test_pservers_are_started_as_the_mode_says(server: str) -> None:
    p = plan(server=server, pservers=Count("total", 1), trainers=Count("total", 1))
    where = job.place(p, [node(0)])
    start = binding.bind(where, Facts.make_symbolic(where))[0]
    assert start["keep_ports"] == (server == "bundled")
    assert (start["argv"] == ["serve"]) == (server == "script")
    assert bool(start["contract"]["PADDLE_TRAINER_ENDPOINTS"]) == (server == "script")


@pytest.mark.parametrize(
    ("nodes", "most", "folder", "outlives"),
    [(2, 1, "", True), (2, 0, "", False), (1, 1, "", False), (1, 1, "here", False), (1, 1, "/data", True)],
)
def test_a_job_outlives_its_head_where_something_else_counts_its_restarts(
    nodes: int, most: int, folder: str, outlives: bool
) -> None:
    found = Plan(limits=Limits(max_restarts=most), nodes=(node(0),) * nodes, backend="k8s")
    given = {env.get_snapshot_var("snapshot_dir"): folder} if folder else {}
    found = found._replace(added_env=given)
    assert found.outlives_head == outlives and not found._replace(backend="slurm").outlives_head
