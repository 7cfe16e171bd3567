"""GPUs and cores of a machine are dealt out disjointly and evenly, or the job is refused in words."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.node import binding, dealing, job
from pslaunch.node.job import Count, Facts, Node, Plan, Role, Wants
from pslaunch.node.messages import Resources

DEVICES = st.lists(st.from_regex(r"[0-9]{1,2}|GPU-[0-9a-f]{2}", fullmatch=True), unique=True, max_size=12)


def found(*gpus: str, by: str = "CUDA_VISIBLE_DEVICES=…", cores: list[list[int]] | None = None) -> Resources:
    return {"gpus": [*gpus], "gpus_by": by, "cores": cores or []}


def make_plan(added_env: Any = MappingProxyType({}), **wants: Any) -> Plan:
    return Plan(added_env=added_env, wants=Wants(**wants))


def deal(there: Resources, **plan: Any) -> list[str]:
    return [",".join(share) for share in dealing.deal_gpus(make_plan(**plan), there, 2)]


@given(DEVICES, st.integers(1, 9), st.none() | st.integers(0, 4))
def test_gpus_are_disjoint_of_the_asked_number_and_even(
    gpus: list[str], trainers: int, each: int | None
) -> None:
    if each and each * trainers > len(gpus):
        with pytest.raises(ValueError, match=rf"has .* GPUs? .*asks for {each * trainers}"):
            dealing.deal_gpus(make_plan(gpus_per_trainer=each), found(*gpus), trainers)
        return
    shares = dealing.deal_gpus(make_plan(gpus_per_trainer=each), found(*gpus), trainers)
    dealt = [gpu for share in shares for gpu in share]
    even = len(gpus) // trainers if trainers > 1 else 0
    assert [len(share) for share in shares] == [even if each is None else each] * trainers
    assert dealt == gpus[: len(dealt)], "no one twice"


@given(st.lists(st.integers(0, 9), max_size=4), st.integers(1, 9))
def test_cores_are_disjoint_and_of_one_numa_node(sizes: list[int], trainers: int) -> None:
    every = iter(range(99))
    numa = [[next(every) for _ in range(size)] for size in sizes]
    if 0 < sum(sizes) < trainers:
        with pytest.raises(ValueError, match=rf"has {sum(sizes)} cores, and --bind_cores for {trainers}"):
            dealing.deal_cores(numa, trainers)
        return
    shares, rest = dealing.deal_cores(numa, trainers)
    dealt = [core for share in shares for core in share]
    assert len(shares) == trainers and len({*dealt}) == len(dealt) and len({*map(len, shares)}) == 1
    assert all(any({*share} <= {*cores} for cores in numa) for share in shares if share)
    assert bool(dealt) == bool(sum(sizes))
    assert {*rest} == {*range(sum(sizes))} - {*dealt} or (len(dealt) == sum(sizes) == len(rest))
    larger = len(shares[0]) + 1
    assert sum(size // larger for size in sizes) < trainers, "no larger ones fit"


@pytest.mark.parametrize(
    ("gpus", "plan", "dealt"),
    [
        (found("4", "GPU-a", "6"), {"gpus": "2"}, ["4", "GPU-a"]),
        (found("0", "1", "2", by="/dev"), {"gpus": "2,0"}, ["2", "0"]),
        (found("0", "1", by="/dev"), {"gpus": "GPU-b,GPU-c"}, ["GPU-b", "GPU-c"]),
        (found("0", "1", by="/dev"), {"gpus": "1,"}, ["1", "1"]),
        (found(by=""), {"gpus": "4"}, ["0,1", "2,3"]),
        (found(by=""), {"gpus": "4", "gpus_per_trainer": 1}, ["0", "1"]),
        (found(by=""), {"gpus": "0,5", "gpus_per_trainer": 0}, ["0,5", "0,5"]),
        (found(by=""), {}, ["", ""]),
        (found("0", "1"), {"gpus_per_trainer": 0}, ["", ""]),
        (found("0", "1"), {"added_env": {"CUDA_VISIBLE_DEVICES": "7, GPU-a,-1,9"}}, ["7", "GPU-a"]),
        (found("0"), {"added_env": {"HIP_VISIBLE_DEVICES": "2,3"}}, ["2", "3"]),
    ],
)
def test_gpus_are_those_that_the_user_names_among_those_that_are_there(
    gpus: Resources, plan: dict[str, Any], dealt: list[str]
) -> None:
    assert deal(gpus, **plan) == dealt


@pytest.mark.parametrize(
    ("gpus", "plan", "said"),
    [
        (found("0", by="/dev"), {"gpus": "2"}, r"has 1 GPU \(/dev\), and --gpus=2 asks for more"),
        (found("0", by="/dev"), {"gpus": "0,1"}, "and --gpus=0,1 asks for others"),
        (found("GPU-a"), {"gpus": "GPU-b,GPU-a"}, "asks for others"),
        (found(by="CUDA_VISIBLE_DEVICES="), {"gpus": "1"}, r"has no GPUs \(CUDA_VISIBLE_DEVICES=\)"),
        (found(by=""), {"gpus_per_trainer": 1}, r"has no GPUs \(--gpus=N states those"),
    ],
)
def test_too_few_gpus_are_refused_in_words(gpus: Resources, plan: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        deal(gpus, **plan)


def test_shares_reach_the_programs_and_simulated_nodes_are_one_machine() -> None:
    roles = (Role("pserver", Count("total", 1), ("s",)), Role("trainer", Count("total", 4), ("t",)))
    plan = Plan(server="script", roles=roles, wants=Wants(gpus_per_trainer=2, bind_cores=True))
    there = found("3", "4", "5", "6", cores=[[0, 4, 1, 5, 2]])
    local = job.place(plan, [Node(i, f"n{i}", f"127.0.0.{i + 1}") for i in range(2)])
    assert [*dealing.deal_resources(local, {0: there, 1: there})[1]] == [0]
    placed = job.place(plan, [Node(i, f"n{i}", f"10.0.0.{i + 1}") for i in range(2)])
    shares, lacks = dealing.deal_resources(placed, {0: there, 1: there})
    assert not lacks
    ports = job.propose_ports(placed, 7000, 8000)
    pserver, *trainers = binding.bind(placed, Facts(("/r", "/r"), ports, shares))
    assert (pserver["cores"], "CUDA_VISIBLE_DEVICES" in pserver["contract"]) == ([2], False)
    assert [start["cores"] for start in trainers] == [[0, 4], [1, 5]] * 2
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "FLAGS_selected_gpus")
    assert [[start["contract"][name] for name in names] for start in trainers] == [
        ["3,4", "3,4", "0,1"], ["5,6", "5,6", "0,1"]
    ] * 2  # fmt: skip


@pytest.mark.parametrize(("gpus", "own"), [("2", False), ("3", True), ("", False)])
def test_gpus_are_the_trainers_own_where_there_are_enough(gpus: str, own: bool) -> None:
    plan = Plan(roles=(Role("trainer", Count("per_node", 3), ("t",)),), wants=Wants(gpus or None))
    placed = job.place(plan, [Node(i, f"n{i}", f"10.0.0.{i + 1}") for i in range(2)])
    shares, _ = dealing.deal_resources(
        placed, dict.fromkeys(range(2), found(*map(str, range(int(gpus or 2)))))
    )
    assert dealing.has_own_gpus(placed, shares) == own


@pytest.mark.parametrize("wrong", [{"gpus": ["0,1"]}, {"gpus": ["a\nb"]}, {"cores": [[-1]]}, {"gpus_by": 1}])
def test_invalid_resources_of_a_node_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="can't be"):
        dealing.check_resources({**found(), **wrong})  # type: ignore[typeddict-item] # as a node may send it
