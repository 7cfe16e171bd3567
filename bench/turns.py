"""Tools that all measurements share: contenders that take turns, medians of ratios, one form of table.

A ratio is taken within a turn, because a busy machine is slow for both sides of it; the medians of many
turns are what is printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing as mp
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Turn = Callable[[], float]
Work = Callable[[], AbstractContextManager[Callable[[], None]]]
Times = dict[str, list[float]]
SPAWN = mp.get_context("spawn")


def parse_turns(doc: str | None, default: int) -> int:
    """Return the turns of each contender, from the command line; `doc` is its help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=default, help="of each contender (%(default)s)")
    return int(parser.parse_args().turns)


def parse_parts(
    doc: str | None, parts: Sequence[str], turns: int, *, quick: bool = True
) -> argparse.Namespace:
    """Return the chosen `parts`, `turns` and, where there is one, the option `quick`; `doc` is the help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}; default: all")
    parser.add_argument("--turns", type=int, default=turns, help="of each contender (%(default)s)")
    if quick:
        parser.add_argument("--quick", action="store_true", help="small sizes, to see that all of it works")
    options = parser.parse_args()
    options.parts = options.parts or list(parts)
    if unknown := set(options.parts) - set(parts):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return options


def take_turns(contenders: Mapping[str, Turn], turns: int) -> Times:
    """Return the measurements of each contender by turn; each begins once, so that the order favours none."""
    times: Times = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(contenders[name]())
    return times


def compute_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the turns' ratios."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def describe_machine() -> str:
    """The line above every table: date, processors, Python."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    kernel, python = platform.release(), platform.python_version()
    return f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs ({model}), Linux {kernel}, Python {python}"


class Table:
    """Rows in Markdown, printed as they come; knows which targets were missed."""

    def __init__(self, title: str, *, beside: str) -> None:
        print(f"\n{title} ({describe_machine()})\n")
        print(f"| what | ours | {beside} | ratio | to reach |\n|---|---|---|---|---|")

    def add_row(
        self, what: str, ours: str, beside: str = "", found: float | None = None, target: str = ""
    ) -> None:
        """`target`: `>= 0.7` or `<= 1.3` for the ratio; nothing where none is set."""
        shown = "" if found is None else f"{found:.2f}"
        if found is not None and target:
            sign, limit = target.split()
            met = found >= float(limit) if sign == ">=" else found <= float(limit)
            target += "" if met else " **missed**"
        print(f"| {what} | {ours} | {beside} | {shown} | {target} |", flush=True)

    def add_speeds(
        self, what: str, own: Sequence[float], beside: Sequence[float], target: str = "", note: str = ""
    ) -> None:
        """Add a row from the seconds of one item, by turn; `note` stands behind what is beside."""
        ours, theirs = (f"{1 / statistics.median(times):,.0f}" for times in (own, beside))
        self.add_row(what, ours, theirs + note, compute_ratio(beside, own), target)


@contextmanager
def make_fresh_folder() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        yield Path(name)


@contextmanager
def make_user_environ() -> Iterator[dict[str, str]]:
    """The environment of a user whose Python keeps compiled files, as it does by default."""
    with make_fresh_folder() as folder:
        environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
        yield {**environ, "PYTHONPYCACHEPREFIX": str(folder)}


def _run_worker(work: Work, folder: Path, orders: Connection) -> None:
    os.chdir(folder)  # the runtime writes its log there
    output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    with work() as turn:
        while orders.recv():
            begin_s = time.perf_counter()
            turn()
            orders.send(time.perf_counter() - begin_s)


@contextmanager
def start_workers(works: Sequence[Work], folder: Path) -> Iterator[Turn]:
    """Start a process for each of `works`. A turn lets all work, and is the seconds of the slowest.

    They have worked once before the first turn. `works` are objects that pickle can send.
    """
    with ExitStack() as stack:
        pipes = []
        for work in works:
            ours, theirs = SPAWN.Pipe()
            process = SPAWN.Process(target=_run_worker, args=(work, folder, theirs), daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join, 10)
            pipes.append(ours)

        def take_turn() -> float:
            for pipe in pipes:
                pipe.send(True)
            return max(float(pipe.recv()) for pipe in pipes)

        take_turn()
        yield take_turn
        for pipe in pipes:
            pipe.send(False)


@contextmanager
def start_server(serve: Callable[..., None], *args: object) -> Iterator[Any]:
    """Start a process that runs `serve` with a pipe behind `args`; yield what it says first, its address."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=serve, args=(*args, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def run_by_python(python: str, module: str) -> None:
    """Run this program by another Python if this one lacks a module; in that one do nothing."""
    if importlib.util.find_spec(module):
        return
    if subprocess.run([python, "-c", f"import {module}"], stderr=subprocess.DEVNULL, check=False).returncode:
        print(f"not here: {module} in {python}")
        raise SystemExit
    own, *inner = (importlib.util.find_spec(f"pslaunch{name}") for name in ("", ".runtime", ".torch"))
    assert own is not None and own.submodule_search_locations
    parts = [*Path(own.submodule_search_locations[0]).iterdir()]
    parts += [Path(spec.origin).parent for spec in inner if spec and spec.origin]
    with make_fresh_folder() as folder:  # pslaunch without the packages that are installed beside it
        (folder / "pslaunch").mkdir()
        for name, path in {path.name: path for path in parts}.items():
            (folder / "pslaunch" / name).symlink_to(path)
        environ = {**os.environ, "PYTHONPATH": str(folder)}
        raise SystemExit(subprocess.run([python, *sys.argv], env=environ, check=False).returncode)


def find_beside_python(name: str) -> str:
    """A program that was installed next to this interpreter."""
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        raise SystemExit(f"{name} is not installed beside {sys.executable}: make dev")
    return found
