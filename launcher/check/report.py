"""Report of `pslaunch check`, as text or JSON: a row for each host, then all findings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, TextIO

from ..node.listing import show_few
from ..options.hosts import parse_hosts
from ..views.table import LEVEL_WORDS, Level, Table, show
from ..views.view import show_bytes
from .findings import FINDING_KINDS, OF_REACHING, HostFinding, Seen

HOST_COLUMNS: Final = (
    *("host", "reached", "key", "python", "system", "disk", "address"),
    *("ports", "imports", "memory", "clock", "network", "starter"),
)
HOST_COLUMNS_DROPPED: Final = (
    "starter", "clock", "memory", "system", "address", "disk", "ports", "imports", "python", "network",
)  # fmt: skip
NAMES_IN_CELL: Final = 3  # in a cell
UNKNOWN_CELL: Final = "?"


def tell(seen: Sequence[Seen], findings: Sequence[HostFinding], out: TextIO, *, as_json: bool) -> None:
    """Write the report: JSON if requested, a coloured table on a terminal, else plain lines."""
    table, lines = make_hosts_table(seen, findings), make_hosts_lines(seen, findings)
    show(table, lines, make_hosts_data(seen, findings), out, as_json=as_json)


def make_hosts_data(seen: Sequence[Seen], findings: Sequence[HostFinding]) -> Iterator[dict[str, Any]]:
    """Return one JSON object per host."""
    for i, one in enumerate(seen):
        mine = [f for f in findings if f.node == i]
        yield {
            "node": i,
            "host": one.host,
            "ok": all(f.level != "problem" for f in mine),
            "addr": one.addr,
            "clock_off_s": round(one.clock_off_s, 3),
            "facts": one.facts,
            "findings": [
                {"what": f.kind, "level": f.level, "text": f.text, "advice": make_advice(f, one.host)}
                for f in mine
            ],
        }


def make_advice(finding: HostFinding, host: str) -> str:
    """Return the advice with commands for this host, ready to paste."""
    (named,) = parse_hosts([host], host)
    return re.sub(r"\bHOST\b", lambda _: named.ssh_words, finding.advice)


def make_hosts_lines(seen: Sequence[Seen], findings: Sequence[HostFinding]) -> list[str]:
    """Return a line for each finding with its hosts and advice, problems first; then a count."""
    lines = []
    for level in ("problem", "warning"):
        same: dict[HostFinding, list[str]] = {}
        for f in findings:
            if f.level == level:
                same.setdefault(f._replace(node=0), []).append(seen[f.node].host)
        lines += [
            f"{LEVEL_WORDS[f.level]} {', '.join(hosts)}: {f.kind}: {f.text}; "
            f"what to do: {make_advice(f, hosts[0])}"
            for f, hosts in same.items()
        ]
    bad = {f.node for f in findings if f.level == "problem"}
    if len(seen) == 1:
        return [*lines, "the host can't be used" if bad else "the host can be used"]
    hosts = f"{len(seen)} hosts"
    return [*lines, f"{len(bad)} of {hosts} can't be used" if bad else f"{hosts} can be used"]


def make_hosts_table(seen: Sequence[Seen], findings: Sequence[HostFinding]) -> Table:
    """Return the table with a row for each host."""
    rows, others = [], sum(one.facts is not None for one in seen) - 1
    started = any(one.facts and one.facts["starter"] for one in seen)
    columns = HOST_COLUMNS if started else [name for name in HOST_COLUMNS if name != "starter"]
    for i, one in enumerate(seen):
        mine = sorted((f for f in findings if f.node == i), key=lambda f: f.level == "problem")
        worst: dict[str, Level] = {FINDING_KINDS[f.kind].column: f.level for f in mine}
        kinds = {f.kind for f in mine}
        cells = {"host": one.host, **_show_reached(kinds & OF_REACHING), **_make_cells(one, others=others)}
        if "no Python" in kinds:
            cells["python"] = "none"
        rows.append([(cells.get(name, UNKNOWN_CELL), worst.get(name, "ok")) for name in columns])
    return Table(columns, [name for name in HOST_COLUMNS_DROPPED if name in columns], rows)


def _show_reached(kinds: set[str]) -> dict[str, str]:
    if not kinds:
        return {"reached": "yes", "key": "ok"}
    if kinds & {"key", "host key"}:
        return {"reached": "yes", "key": "refused" if "key" in kinds else "host key"}
    return {"reached": "no"}


def _make_cells(one: Seen, *, others: int) -> dict[str, str]:
    facts = one.facts
    if facts is None:
        return {}
    programs, memory = facts["programs"], facts["memory"]
    workspace = facts["folders"]["workspace"]
    busy = show_few([port for port, why in facts["ports"].items() if why], NAMES_IN_CELL)
    return {
        "python": programs["version"] or "none",
        "system": f"{facts['libc'] or 'libc?'}, {facts['machine']}, {facts['cores']} cores",
        "disk": "no rights" if workspace["error"] else _show_free(workspace["free_bytes"]),
        "address": one.addr or next(iter(facts["addrs"]), "none"),
        "ports": f"{busy} busy" if busy else "free" if facts["ports"] else "none needed",
        "imports": f"no {show_few(programs['missing'], NAMES_IN_CELL)}" if programs["missing"] else "ok",
        "memory": _show_free(memory.get("available")),
        "clock": f"{one.clock_off_s:+.1f} s",
        "network": "cut off" if one.cut_off else "ok" if one.addr and others else UNKNOWN_CELL,
        "starter": facts["starter"],
    }  # fmt: skip


def _show_free(n: int | None) -> str:
    return UNKNOWN_CELL if n is None else f"{show_bytes(n)} free"
