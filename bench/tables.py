"""A table of pservers that grows to 10,000,000 rows, in the C core alone: bench/tables.py.

Seconds are those of the thread, so that other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
from pathlib import Path

from turns import Table, make_fresh_folder

CORE = Path(__file__).parents[1] / "runtime" / "csrc"
ROWS = 10_000_000
DIMS = (8, 64)
SLOTS = 1  # of AdaGrad


def compile_program(folder: Path) -> Path:
    """Compile bench/tables.c with the C core."""
    program = folder / "tables"
    sources = [Path(__file__).with_name("tables.c"), *CORE.rglob("ps_*.c")]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O3", "-fno-math-errno", "-ffp-contract=off", f"-I{CORE}"]
    compiler, names = os.environ.get("CC", "cc"), map(str, sources)
    argv = [compiler, *flags, "-o", str(program), *names, "-lm", "-lpthread"]
    subprocess.run(argv, check=True)
    return program


def run(program: Path, *words: object) -> list[float]:
    """Return the numbers that the program prints."""
    argv = [str(program), *map(str, words)]
    return [float(text) for text in subprocess.run(argv, check=True, capture_output=True).stdout.split()]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5, help="of each measurement (%(default)s)")
    parser.add_argument("--rows", type=int, default=ROWS, help="of the table (%(default)s)")
    given = parser.parse_args()
    with make_fresh_folder() as folder:
        program = compile_program(folder)
        table = Table(f"Tables, {given.rows:,} rows in pushes of 1,000 new keys", beside="limit")
        for dim in DIMS:
            found = [run(program, dim, given.rows) for _ in range(given.turns)]
            slowest, median, held = (statistics.median(column) for column in zip(*found, strict=True))
            name, limit = f"dim {dim}, AdaGrad", given.rows * (4 * dim * (1 + SLOTS) + 24)
            table.add_row(
                f"{name}: slowest push", f"{1e3 * slowest:.2f} ms", "3 ms", slowest / 3e-3, "<= 1.0"
            )
            table.add_row(f"{name}: median push", f"{1e3 * median:.2f} ms")
            held_mb, limit_mb = f"{held / 1e6:.0f} MB", f"{limit / 1e6:.0f} MB"
            table.add_row(f"{name}: memory", held_mb, limit_mb, held / limit, "<= 1.25")


if __name__ == "__main__":
    main()
