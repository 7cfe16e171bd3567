"""`pslaunch check slurm`: looks at controller and partition for a job; creates nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ...node import codes
from ...views.table import LEVEL_WORDS, Cell, Level, Table, show
from ..face import CommandLine
from .backend import ask, find_silence
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


class Finding(NamedTuple):
    """A problem or an advice; code: of a job that meets it."""

    level: Level
    text: str
    code: int = codes.OK


def check(line: CommandLine, reach: SlurmReach) -> int:
    """Report on the cluster for a job; return its exit code, 0 without a problem."""
    partition, findings = None, list[Finding]()
    if silence := find_silence():
        findings.append(Finding("problem", silence, codes.SERVICE))
    elif not reach.job:
        name = line.given.read("partition") if "partition" in line.given else ""
        said = ask("sinfo", "--noheader", f"--format={FORMAT}").stdout
        partition, findings = judge(parse_partitions(said), name, reach.ranks)
    codes_ = [one.code for one in findings if one.code]
    level: Level = "problem" if codes_ else "warning" if findings else "ok"
    shown = partition._asdict() if partition else {"job": reach.job} if reach.job else {}
    row: list[Cell] = [(str(value), "ok") for value in shown.values()]
    table = Table(["cluster", *shown], (), [[("up" if not codes_ else "no", level), *row]])
    lines = [f"{LEVEL_WORDS[one.level]}  {one.text}" for one in findings]
    data = {**shown, "findings": [{"level": one.level, "text": one.text} for one in findings]}
    show(table, lines, [data], line.out, as_json=line.as_json, environ=line.environ)
    return codes_[0] if codes_ else codes.OK


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


def judge(there: Sequence[Partition], name: str, wanted: int) -> tuple[Partition | None, list[Finding]]:
    """Return the partition of a job, and what stands against the job there. Pure."""
    chosen = next((one for one in there if (one.name == name if name else one.is_default)), None)
    if chosen is None:
        names = ", ".join(one.name for one in there) or "none"
        why = f"no partition {name!r}" if name else "no default partition; give --partition NAME"
        return None, [Finding("problem", f"{why}; there are: {names}", codes.USAGE)]
    what = f"partition {chosen.name}"
    if not chosen.is_up:
        return chosen, [Finding("problem", f"{what} is not up; take another one (sinfo)", codes.SERVICE)]
    if wanted > chosen.nodes:
        text = f"{what} has {chosen.nodes} nodes, and the job wants {wanted}: --nodes"
        return chosen, [Finding("problem", text, codes.USAGE)]
    if wanted > chosen.usable:
        text = f"{what} has {chosen.usable} nodes that are up, and the job wants {wanted} (sinfo -R)"
        return chosen, [Finding("problem", text, codes.SERVICE)]
    waits = f"{what} has {chosen.idle} idle nodes: the job would wait in the queue"
    return chosen, [Finding("warning", waits)] if wanted > chosen.idle else []
