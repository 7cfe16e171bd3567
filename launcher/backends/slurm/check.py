"""`pslaunch check slurm`: looks at controller and partition for a job; creates nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ...node import codes
from ...views.table import LEVEL_WORDS, Cell, Level, Table, show
from ..face import CommandLine
from .backend import ask_slurm, find_silence
from .spec import SlurmReach

USABLE: Final = ("idle", "mixed", "allocated", "completing")
FORMAT: Final = "%R|%P|%a|%l|%D|%T"


class Partition(NamedTuple):
    """A partition with its numbers of nodes."""

    name: str
    is_default: bool
    is_up: bool
    limit: str  # of time
    nodes: int
    usable: int
    idle: int


class PartitionFinding(NamedTuple):
    """A problem or an advice; code: of a job that meets it."""

    level: Level
    text: str
    code: int = codes.OK


def check_partition(line: CommandLine, reach: SlurmReach) -> int:
    """Report on the cluster for a job; return its exit code, 0 without a problem."""
    partition, finding = None, None
    if silence := find_silence():
        finding = PartitionFinding("problem", silence, codes.SERVICE)
    elif not reach.job:
        said = ask_slurm("sinfo", "--noheader", f"--format={FORMAT}").stdout
        name = line.given.read("partition") or ""
        partition, finding = judge_partition(parse_partitions(said), name, reach.agents.ranks)
    found = [finding] if finding else []
    level: Level = finding.level if finding else "ok"
    shown = partition._asdict() if partition else {"job": reach.job} if reach.job else {}
    row: list[Cell] = [(str(value), "ok") for value in shown.values()]
    table = Table(["cluster", *shown], (), [[("no" if level == "problem" else "up", level), *row]])
    lines = [f"{LEVEL_WORDS[one.level]}  {one.text}" for one in found]
    data = {**shown, "findings": [{"level": one.level, "text": one.text} for one in found]}
    show(table, lines, [data], line.out, as_json=line.as_json, environ=line.environ)
    return finding.code if finding else codes.OK


def parse_partitions(said: str) -> list[Partition]:
    """Return the partitions in the output of sinfo, which has a line for each state of nodes. Pure."""
    found: dict[str, Partition] = {}
    for name, marked, avail, limit, nodes, state in (line.split("|") for line in said.splitlines()):
        count, known = int(nodes), state.rstrip("*~#!%$@^-+")
        before = found.get(name, Partition(name, marked.endswith("*"), avail == "up", limit, 0, 0, 0))
        found[name] = before._replace(
            nodes=before.nodes + count,
            usable=before.usable + (count if known in USABLE and not state.endswith("*") else 0),
            idle=before.idle + (count if state == "idle" else 0),
        )
    return list(found.values())


def judge_partition(
    there: Sequence[Partition], name: str, wanted: int
) -> tuple[Partition | None, PartitionFinding | None]:
    """Return the partition of a job, and what stands against the job there. Pure."""
    chosen = next((one for one in there if (one.name == name if name else one.is_default)), None)
    if chosen is None:
        names = ", ".join(one.name for one in there) or "none"
        why = f"no partition {name!r}" if name else "no default partition; give --partition NAME"
        return None, PartitionFinding("problem", f"{why}; there are: {names}", codes.USAGE)
    wants, code = f", and the job wants {wanted}", codes.SERVICE
    if not chosen.is_up:
        text = "is not up; take another one (sinfo)"
    elif wanted > chosen.nodes:
        text, code = f"has {chosen.nodes} nodes{wants}: --nodes", codes.USAGE
    elif wanted > chosen.usable:
        text = f"has {chosen.usable} nodes that are up{wants} (sinfo -R)"
    elif wanted > chosen.idle:
        text, code = f"has {chosen.idle} idle nodes: the job would wait in the queue", codes.OK
    else:
        return chosen, None
    return chosen, PartitionFinding("problem" if code else "warning", f"partition {chosen.name} {text}", code)
