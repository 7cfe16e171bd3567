"""A pserver's data plane next to plain Python sockets with numpy and a C stream: `python bench/push_pull.py`.

Each worker has a process of its own, so has the server; one step of a synchronous training pushes a
gradient, waits until those of all workers are in, and takes the new values (exchange.py).
"""

from __future__ import annotations

import os
import statistics
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from exchange import Case, compile_stream, start_c_stream, start_contender
from turns import Table, Times, compute_ratio, make_fresh_folder, parse_turns, take_turns

MIB_16, KIB_4 = 1 << 22, 1 << 10  # floats
TABLES = 52


def measure(case: Case, turns: int, stream: Path | None) -> Times:
    """The contenders' median seconds, turn by turn."""
    with ExitStack() as stack:
        names = {kind: stack.enter_context(start_contender(kind, case)) for kind in ("pserver", "python")}
        if stream:
            names["C stream"] = stack.enter_context(start_c_stream(stream, case))
        return take_turns(names, turns)


def format_gb_per_s(case: Case, times: list[float]) -> str:
    return f"{case.bytes_moved / statistics.median(times) / 1e9:.2f} GB/s"


def format_us(times: list[float]) -> str:
    return f"{statistics.median(times) * 1e6:.0f} µs"


def measure_dense(table: Table, turns: int, stream: Path) -> None:
    """16 MiB: a worker alone next to both, two workers next to Python."""
    for what in ("push", "pull", "step"):
        case = Case(what=what, size=MIB_16)
        times = measure(case, turns, stream)
        for peer, target in (("C stream", ">= 0.7"), ("python", "")):
            shown = format_gb_per_s(case, times["pserver"]), f"{peer} {format_gb_per_s(case, times[peer])}"
            table.add_row(f"{what} 16 MiB", *shown, compute_ratio(times[peer], times["pserver"]), target)
    for ports, target in ((1, ">= 0.8"), (2, ">= 1.0")):
        for what in ("push", "pull", "step"):
            case = Case(what=what, size=MIB_16, workers=2, ports=ports)
            times = measure(case, turns, None)
            shown = (
                format_gb_per_s(case, times["pserver"]),
                f"python {format_gb_per_s(case, times['python'])}",
            )
            name = f"{what} 16 MiB, 2 workers, ports_num={ports}"
            table.add_row(name, *shown, compute_ratio(times["python"], times["pserver"]), target)


def measure_small(table: Table, turns: int) -> None:
    """Times, so a ratio below 1 is faster than plain Python."""
    for name, case, target in (
        ("4 KiB round trip", Case(what="step", size=KIB_4), "<= 1.2"),
        ("4 KiB round trip, 2 workers", Case(what="step", size=KIB_4, workers=2), ""),
        ("sparse 5,500 x 16, push and pull", Case(what="step", size=0), ""),
        ("sparse 5,500 x 16, 2 workers", Case(what="step", size=0, workers=2), ""),
    ):
        times = measure(case, 3 * turns, None)
        found = compute_ratio(times["pserver"], times["python"])
        table.add_row(
            name, format_us(times["pserver"]), f"python {format_us(times['python'])}", found, target
        )


def measure_client(table: Table, turns: int) -> None:
    """What the public client adds to the compiled core, which has the same pserver's answer to wait for."""
    case = Case(what="step", size=KIB_4)
    with ExitStack() as stack:
        names = {kind: stack.enter_context(start_contender(kind, case)) for kind in ("client", "core")}
        times = take_turns(names, 3 * turns)
    found = compute_ratio(times["client"], times["core"])
    more = statistics.median(times["client"]) - statistics.median(times["core"])
    name = "4 KiB round trip of Client"
    table.add_row(name, format_us(times["client"]), f"core {format_us(times['core'])}", found, "")
    print(f"\nClient: {more * 1e6:.1f} µs of Python a call (<= 3)")


def measure_wide(table: Table, turns: int) -> None:
    """Many tables next to one with as many rows, and their rows in one call next to a call for each."""
    for ids in (32, 512):
        many = Case(what="step", size=0, tables=TABLES, rows=ids)
        rows, one = replace(many, what="pull"), replace(many, tables=1, rows=TABLES * ids)
        for what, case, peer, other in (
            ("rows", rows, "a call for each", replace(rows, apart=True)),
            ("rows", rows, "one table", replace(one, what="pull")),
            ("step", many, "one table", one),
        ):
            with ExitStack() as stack:
                cases = {"ours": case, "beside": other}
                names = {k: stack.enter_context(start_contender("pserver", c)) for k, c in cases.items()}
                times = take_turns(names, turns)
            name, shown = f"{what}, {TABLES} tables x {ids} ids", format_us(times["beside"])
            found = compute_ratio(times["ours"], times["beside"])
            table.add_row(name, format_us(times["ours"]), f"{peer} {shown}", found)


def main() -> None:
    """Print the tables."""
    turns = parse_turns(__doc__, 9)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    peers = f"plain Python sockets with numpy {np.__version__}, or a C stream"
    with make_fresh_folder() as folder:
        measure_dense(Table("Dense, speed", beside=peers), turns, compile_stream(folder))
    measure_small(Table("Small and sparse, time", beside=peers), turns)
    measure_client(Table("The public client, time", beside="the compiled core alone"), turns)
    measure_wide(Table("Wide tables, time", beside="the same in another way"), turns)


if __name__ == "__main__":
    main()
