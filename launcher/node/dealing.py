"""GPUs and cores of the nodes, dealt out to the processes on them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pslaunch.runtime.shared import env
from pslaunch.runtime.shared.env import PSERVER, TRAINER

from .job import Placed, Plan, Process, Share
from .shapes import check_shape, is_count, is_name

if TYPE_CHECKING:
    from .messages import Resources

LACK_ADVICE = "ask for less, or give the node fewer trainers"


def check_resources(found: Resources) -> Resources:
    """Return what a node has reported. Raises ValueError."""
    check_shape(found, {"gpus": [env.is_device], "gpus_by": is_name, "cores": [[is_count]]}, "resources")
    return found


def deal_resources(placed: Placed, found: Mapping[int, Resources]) -> tuple[dict[str, Share], dict[int, str]]:
    """Return the share of each process that has not all of its node, and what a node lacks, in words.

    found: by node; others are left out. Nodes at loopback addresses are one machine.
    """
    machines: dict[int, dict[str, list[str]]] = {}
    for process in placed.processes:
        machine = _find_machine(placed, process)
        machines.setdefault(machine, {TRAINER: [], PSERVER: []})[process.role].append(process.key)
    shares: dict[str, Share] = {}
    lacks: dict[int, str] = {}
    for number, keys in machines.items():
        if number not in found or not keys[TRAINER]:
            continue
        try:
            gpus = deal_gpus(placed.plan, found[number], len(keys[TRAINER]))
            cores, rest = deal_cores(found[number]["cores"], len(keys[TRAINER]))
        except ValueError as e:
            lacks[number] = str(e)
            continue
        shares.update((key, Share(*share)) for key, share in zip(keys[TRAINER], zip(gpus, cores)))
        shares.update((key, Share((), rest)) for key in keys[PSERVER])
    return shares, lacks


def _find_machine(placed: Placed, process: Process) -> int:
    node = placed.nodes[process.node]
    return 0 if node.addr.startswith("127.") else node.id


def has_own_gpus(placed: Placed, shares: Mapping[str, Share]) -> bool:
    """Return True if trainers have GPUs, and none has one of another's on its machine."""
    with_shares = [process for process in placed.processes if process.key in shares]
    held = [(_find_machine(placed, p), gpu) for p in with_shares for gpu in shares[p.key].gpus]
    return len({*held}) == len(held) > 0


def deal_gpus(plan: Plan, found: Resources, trainers: int) -> list[tuple[str, ...]]:
    """Return equally many devices for each trainer of a machine. Raises ValueError if it has too few."""
    wants, gpus, by = plan.wants, found["gpus"], found["gpus_by"]
    for name in env.VISIBLE_DEVICES[::-1]:
        if name in plan.added_env:
            gpus, by = env.split_devices(plan.added_env[name]), f"--env {name}={plan.added_env[name]}"
    if wants.gpus:
        listed = [] if wants.gpus.isdigit() else env.split_devices(wants.gpus)
        wanted = listed or (gpus if by else [*map(str, range(int(wants.gpus)))])[: int(wants.gpus)]
        # Those found in files have no UUID.
        chosen = [gpu for gpu in wanted if not by or gpu in gpus or not (gpu.isdigit() or "=" in by)]
        if len(chosen) < (len(listed) or int(wants.gpus)):
            raise ValueError(
                f"{_count(gpus, by)}, and --gpus={wants.gpus} asks for {'others' if listed else 'more'}"
            )
        gpus, by = chosen, f"--gpus={wants.gpus}"
    each = len(gpus) // trainers if wants.gpus_per_trainer is None else wants.gpus_per_trainer
    if each * trainers > len(gpus):
        asked = f"--gpus_per_trainer={each} for {trainers} trainers asks for {each * trainers}"
        raise ValueError(f"{_count(gpus, by)}, and {asked}")
    if each and (trainers > 1 or wants.gpus_per_trainer or wants.gpus):  # else one sees all anyway
        return [tuple(gpus[i * each : (i + 1) * each]) for i in range(trainers)]
    return [tuple(gpus) if wants.gpus else ()] * trainers


def _count(gpus: Sequence[str], by: str) -> str:
    return f"has {len(gpus) or 'no'} GPU{'s' * (len(gpus) != 1)} ({by or '--gpus=N states those not found'})"


def deal_cores(numa: Sequence[Sequence[int]], trainers: int) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """Return equally many cores of one NUMA node for each trainer, and the rest, or all if none are left.

    Without any cores nobody is bound. Raises ValueError if there are fewer than trainers.
    """
    every = [core for cores in numa for core in cores]
    if every and len(every) < trainers:
        raise ValueError(f"has {len(every)} cores, and --bind_cores for {trainers} trainers asks for as many")
    most = max(map(len, numa), default=0)
    size = next((n for n in range(most, 0, -1) if sum(len(cores) // n for cores in numa) >= trainers), 1)
    pieces = [tuple(cores[i : i + size]) for cores in numa for i in range(0, len(cores) - size + 1, size)]
    dealt = pieces[:trainers] or [()] * trainers
    taken = {core for piece in dealt for core in piece}
    return dealt, tuple(core for core in every if core not in taken) or tuple(every)
