"""`pslaunch check slurm`: looks at controller and partition for a job; creates nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ...check.findings import Finding, choose_check_code
from ...check.report import make_finding_data, make_row, report
from ...node import codes
from ...views.table import Table
from ..face import CommandLine
from .backend import SILENCE_REMEDY, ask_slurm, find_silence
from .spec import SlurmReach

# States of nodes that get no job; in all others one waits at most.
OUT: Final = ("down", "drained", "draining", "fail", "failing", "error", "future", "inval")
FORMAT: Final = "%R|%P|%a|%l|%D|%T"


class Partition(NamedTuple):
    name: str
    is_default: bool
    is_up: bool
    limit: str  # of time
    nodes: int
    usable: int
    idle: int


def check_partition(line: CommandLine, reach: SlurmReach) -> int:
    """Report on the cluster for a job; return its exit code, 0 without a problem."""
    partition, finding = None, None
    if silence := find_silence():
        finding = _make_finding("silent", silence, SILENCE_REMEDY, codes.SERVICE)
    elif not reach.job:
        said = ask_slurm("sinfo", "--noheader", f"--format={FORMAT}").stdout
        name = line.given.read("partition") or ""
        partition, finding = judge_partition(parse_partitions(said), name, reach.agents.ranks)
    found = [finding] if finding else []
    code = choose_check_code(found)
    shown = partition._asdict() if partition else {"job": reach.job} if reach.job else {}
    cells = {"cluster": "no" if code else "up", **{name: str(value) for name, value in shown.items()}}
    table = Table([*cells], (), [make_row([*cells], cells, found)])
    data = {**shown, "findings": make_finding_data(found)}
    return report(table, found, [data], line.out, as_json=line.as_json)


def _make_finding(kind: str, text: str, advice: str, code: int) -> Finding:
    return Finding(kind, text, "cluster", "problem" if code else "warning", advice, code)


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
) -> tuple[Partition | None, Finding | None]:
    """Return the partition of a job, of several the best, and what prevents or delays the job there. Pure."""
    names, known = name.split(",") if name else [], [one.name for one in there]
    chosen = [one for one in there if (one.name in names if names else one.is_default)]
    lacking = ", ".join(repr(one) for one in names if one not in known)
    if lacking or not chosen:
        why, advice = f"no partition {lacking}" if names else "no default partition", "give --partition NAME"
        text = f"{why}; there are: {', '.join(known) or 'none'}"
        return None, _make_finding("no partition", text, advice, codes.USAGE)
    judged = [(one, _judge(one, wanted)) for one in chosen]
    return min(judged, key=lambda pair: pair[1].code + 1 if pair[1] else 0)


def _judge(chosen: Partition, wanted: int) -> Finding | None:
    needs, code = f", and the job needs {wanted}", codes.SERVICE
    if not chosen.is_up:
        text, advice = "is not up", "take another one (sinfo)"
    elif wanted > chosen.nodes:
        text, advice = f"has {chosen.nodes} nodes{needs}", f"give --nodes N, at most {chosen.nodes}"
        code = codes.USAGE
    elif wanted > chosen.usable:
        text, advice = f"has {chosen.usable} nodes that are up{needs}", "sinfo -R shows why others are not"
    elif wanted > chosen.idle:
        text, advice = f"has {chosen.idle} idle nodes: the job would wait in the queue", "give fewer --nodes"
        code = codes.OK
    else:
        return None
    return _make_finding("nodes", f"partition {chosen.name} {text}", advice, code)
