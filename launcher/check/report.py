"""Report of `pslaunch check`, as text or JSON: a row for each host or a cluster, then all findings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TextIO

from ..node.listing import show_few
from ..options.hosts import parse_hosts
from ..views.table import LEVEL_WORDS, Cell, Level, Table, show
from ..views.view import show_bytes
from .findings import Finding, Seen, choose_check_code

HOST_COLUMNS: Final = (
    *("host", "reached", "key", "python", "system", "disk", "address"),
    *("ports", "imports", "memory", "clock", "network", "starter", "gpus"),
)
HOST_COLUMNS_DROPPED: Final = (
    "starter", "gpus", "clock", "memory", "system", "address", "disk", "ports", "imports", "python",
    "network",
)  # fmt: skip
RARE_COLUMNS: Final = ("starter", "gpus")  # shown if a host has something there
NAMES_IN_CELL: Final = 3  # in a cell
UNKNOWN_CELL: Final = "?"


def tell(seen: Sequence[Seen], findings: Sequence[Finding], out: TextIO, *, as_json: bool) -> int:
    """Write the report about hosts, as `report` does; return the exit code."""
    table, data = make_hosts_table(seen, findings), make_hosts_data(seen, findings)
    return report(table, findings, data, out, [one.host for one in seen], as_json=as_json)


def report(
    table: Table,
    findings: Sequence[Finding],
    data: Iterable[Mapping[str, Any]],
    out: TextIO,
    hosts: Sequence[str] = (),
    *,
    as_json: bool,
) -> int:
    """Write a report on these hosts, or on a cluster, as `show` does; return the exit code."""
    show(table, make_finding_lines(findings, hosts), data, out, as_json=as_json)
    return choose_check_code(findings)


def make_hosts_data(seen: Sequence[Seen], findings: Sequence[Finding]) -> Iterator[dict[str, Any]]:
    for i, one in enumerate(seen):
        mine = [f for f in findings if f.node == i]
        yield {
            "node": i,
            "host": one.host,
            "ok": all(f.level != "problem" for f in mine),
            "addr": one.addr,
            "clock_off_s": round(one.clock_off_s, 3),
            "facts": one.facts,
            "findings": make_finding_data(mine, one.host),
        }


def make_finding_data(findings: Sequence[Finding], host: str = "") -> list[dict[str, str]]:
    return [
        {"what": f.kind, "level": f.level, "text": f.text, "advice": make_advice(f, host)} for f in findings
    ]


def make_advice(finding: Finding, host: str) -> str:
    """Return the advice with commands for this host, ready to paste."""
    return re.sub(r"\bHOST\b", lambda _: parse_hosts([host], host)[0].ssh_words, finding.advice)


def make_finding_lines(findings: Sequence[Finding], hosts: Sequence[str] = ()) -> list[str]:
    """Return a line for each finding with its hosts and advice, problems first; then a count."""
    lines, names = [], hosts or ("",)
    for level in ("problem", "warning"):
        same: dict[Finding, list[str]] = {}
        for f in findings:
            if f.level == level:
                same.setdefault(f._replace(node=0), []).append(names[f.node])
        lines += [
            f"{LEVEL_WORDS[f.level]} {', '.join(at)}{at[0] and ': '}{f.kind}: {f.text}; "
            f"what to do: {make_advice(f, at[0])}"
            for f, at in same.items()
        ]
    bad = {f.node for f in findings if f.level == "problem"}
    whole = f"{len(hosts)} hosts" if hosts[1:] else "the host" if hosts else "the cluster"
    some = f"{len(bad)} of {whole}" if hosts[1:] else whole
    return [*lines, f"{some} can't be used" if bad else f"{whole} can be used"]


def make_row(columns: Sequence[str], cells: Mapping[str, str], findings: Sequence[Finding]) -> list[Cell]:
    """Return the cells of these columns, each with the worst level of its findings."""
    worst: dict[str, Level] = {
        f.column: f.level for f in sorted(findings, key=lambda f: f.level == "problem")
    }
    return [(cells.get(name, UNKNOWN_CELL), worst.get(name, "ok")) for name in columns]


def make_hosts_table(seen: Sequence[Seen], findings: Sequence[Finding]) -> Table:
    rows, others = [], sum(one.facts is not None for one in seen) - 1
    told = [_make_cells(one, others=others) for one in seen]
    columns = [x for x in HOST_COLUMNS if x not in RARE_COLUMNS or any(cells.get(x) for cells in told)]
    for i, one in enumerate(seen):
        mine = [f for f in findings if f.node == i]
        cells = {"host": one.host, **_show_reached(mine), **told[i]}
        if any(f.kind == "no Python" for f in mine):
            cells["python"] = "none"
        rows.append(make_row(columns, cells, mine))
    return Table(columns, [name for name in HOST_COLUMNS_DROPPED if name in columns], rows)


def _show_reached(findings: Sequence[Finding]) -> dict[str, str]:
    kinds = {f.kind for f in findings if f.column in ("reached", "key")}
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
        "gpus": _show_gpus(facts),
    }  # fmt: skip


def _show_gpus(facts: Any) -> str:
    """Show the kinds of GPUs with their drivers, else the number of those that programs see."""
    kinds = Counter((name, size, driver) for driver, name, size in facts["cards"])
    shown = [f"{n} {name}, {show_bytes(size)}, driver {driver}" for (name, size, driver), n in kinds.items()]
    return "; ".join(shown) or str(len(facts["resources"]["gpus"]) or "")


def _show_free(n: int | None) -> str:
    return UNKNOWN_CELL if n is None else f"{show_bytes(n)} free"
