"""`pslaunch check slurm`: looks at controller and partition for a job; creates nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ...node import codes
from ...views.table import LEVEL_WORDS, Cell, Level, Table, show
from ..face import CommandLine
from .backend import ask_slurm, find_silence
from .spec import SlurmReach

# States of nodes that get no job; in all others one waits at most.
OUT: Final = ("down", "drained", "draining", "fail", "failing", "error", "future", "inval")
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
            usable=before.usable + (0 if known in OUT or state.endswith("*") else count),
            idle=before.idle + (count if state == "idle" else 0),
        )
    return list(found.values())


def judge_partition(
    there: Sequence[Partition], name: str, wanted: int
) -> tuple[Partition | None, PartitionFinding | None]:
    """Return the partition of a job, of several the best, and what prevents or delays the job there. Pure."""
    names, known = name.split(",") if name else [], [one.name for one in there]
    chosen = [one for one in there if (one.name in names if names else one.is_default)]
    lacking = ", ".join(repr(one) for one in names if one not in known)
    if lacking or not chosen:
        why = f"no partition {lacking}" if names else "no default partition; give --partition NAME"
        text = f"{why}; there are: {', '.join(known) or 'none'}"
        return None, PartitionFinding("problem", text, codes.USAGE)
    judged = [(one, _judge(one, wanted)) for one in chosen]
    return min(judged, key=lambda pair: pair[1].code + 1 if pair[1] else 0)


def _judge(chosen: Partition, wanted: int) -> PartitionFinding | None:
    needs, code = f", and the job needs {wanted}", codes.SERVICE
    if not chosen.is_up:
        text = "is not up; take another one (sinfo)"
    elif wanted > chosen.nodes:
        text, code = f"has {chosen.nodes} nodes{needs}: give --nodes N, at most {chosen.nodes}", codes.USAGE
    elif wanted > chosen.usable:
        text = f"has {chosen.usable} nodes that are up{needs} (sinfo -R)"
    elif wanted > chosen.idle:
        text, code = f"has {chosen.idle} idle nodes: the job would wait in the queue", codes.OK
    else:
        return None
    return PartitionFinding("problem" if code else "warning", f"partition {chosen.name} {text}", code)
