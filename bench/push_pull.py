"""A pserver's data plane next to plain Python sockets with numpy and a C stream: `python bench/push_pull.py`.

Each worker has a process of its own, so has the server; one step of a synchronous training pushes a
gradient, waits until those of all workers are in, and takes the new values (exchange.py).
"""

from __future__ import annotations

import argparse
import os
import statistics
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from exchange import Case, c_stream, compile_stream, contender
from turns import Table, Times, fresh_folder, ratio, take_turns

MIB_16, KIB_4 = 1 << 22, 1 << 10  # floats


def measure(case: Case, turns: int, stream: Path | None) -> Times:
    """The contenders' median seconds, turn by turn."""
    with ExitStack() as stack:
        names = {kind: stack.enter_context(contender(kind, case)) for kind in ("pserver", "python")}
        if stream:
            names["C stream"] = stack.enter_context(c_stream(stream, case))
        return take_turns(names, turns)


def gb_per_s(case: Case, times: list[float]) -> str:
    return f"{case.bytes_moved / statistics.median(times) / 1e9:.2f} GB/s"


def in_us(times: list[float]) -> str:
    return f"{statistics.median(times) * 1e6:.0f} µs"


def dense(table: Table, turns: int, stream: Path) -> None:
    """16 MiB: a worker alone next to both, two workers next to Python."""
    for what in ("push", "pull", "step"):
        case = Case(what=what, size=MIB_16)
        times = measure(case, turns, stream)
        for peer, target in (("C stream", ">= 0.7"), ("python", "")):
            shown = gb_per_s(case, times["pserver"]), f"{peer} {gb_per_s(case, times[peer])}"
            table.row(f"{what} 16 MiB", *shown, ratio(times[peer], times["pserver"]), target)
    for ports, target in ((1, ">= 0.8"), (2, ">= 1.0")):
        for what in ("push", "pull", "step"):
            case = Case(what=what, size=MIB_16, workers=2, ports=ports)
            times = measure(case, turns, None)
            shown = gb_per_s(case, times["pserver"]), f"python {gb_per_s(case, times['python'])}"
            name = f"{what} 16 MiB, 2 workers, ports_num={ports}"
            table.row(name, *shown, ratio(times["python"], times["pserver"]), target)


def small(table: Table, turns: int) -> None:
    """Times, so a ratio below 1 is faster than plain Python."""
    for name, case, target in (
        ("4 KiB round trip", Case(what="step", size=KIB_4), "<= 1.2"),
        ("4 KiB round trip, 2 workers", Case(what="step", size=KIB_4, workers=2), ""),
        ("sparse 5,500 x 16, push and pull", Case(what="step", size=0), ""),
        ("sparse 5,500 x 16, 2 workers", Case(what="step", size=0, workers=2), ""),
    ):
        times = measure(case, 3 * turns, None)
        found = ratio(times["pserver"], times["python"])
        table.row(name, in_us(times["pserver"]), f"python {in_us(times['python'])}", found, target)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=9, help="of each contender (%(default)s)")
    turns = parser.parse_args().turns
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    peers = f"plain Python sockets with numpy {np.__version__}, or a C stream"
    with fresh_folder() as folder:
        dense(Table("Dense, speed", beside=peers), turns, compile_stream(folder))
    small(Table("Small and sparse, time", beside=peers), turns)


if __name__ == "__main__":
    main()
