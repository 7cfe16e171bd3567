"""Measure a launch next to as many starts of Python alone: `python bench/launch.py`.

Started: from the command to the first line of the last script to run. Over: until the command is back.
Then two scripts that print a million lines each, next to the same scripts with one pipe.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from turns import (
    Table,
    compute_ratio,
    find_beside_python,
    make_fresh_folder,
    make_user_environ,
    parse_turns,
    take_turns,
)

LINES = 1_000_000
PRINT = f"for i in range({LINES}): print(f'line {{i:07}} of a script, with 40 bytes')\n"
NOTE = "import os, time; open(f'started-{os.getpid()}', 'w').write(repr(time.time()))\n"
AGAIN = """
import os, signal, time
open("at-" + os.environ["PSLAUNCH_EPOCH"], "w").write(repr(time.time()))
if os.environ["PSLAUNCH_EPOCH"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
"""
Environ = Mapping[str, str]


def time_command(argv: list[str], environ: Environ) -> Callable[[], float]:
    """Seconds of one command."""

    def take_turn() -> float:
        begin_s = time.perf_counter()
        subprocess.run(argv, env=environ, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - begin_s

    return take_turn


def time_python(code: str, environ: Environ) -> Callable[[], float]:
    return time_command([sys.executable, "-c", code], environ)


class Launch:
    """`pslaunch local` of scripts that note the time and end: started and over, in seconds."""

    def __init__(self, servers: int, workers: int, environ: Environ) -> None:
        self.workers, self.environ = workers, environ
        self.argv = [
            find_beside_python("pslaunch"),
            "local",
            f"--server_num={servers}",
            f"--worker_num={workers}",
        ]
        self.over: list[float] = []

    def __call__(self) -> float:
        with make_fresh_folder() as folder:
            script = folder / "note.py"
            script.write_text(NOTE)
            begin_s = time.time()
            done = subprocess.run(
                [*self.argv, str(script)], env=self.environ, capture_output=True, text=True, check=False
            )
            self.over.append(time.time() - begin_s)
            if done.returncode != 0:
                raise SystemExit(f"{' '.join(self.argv)} failed:\n{done.stdout}{done.stderr}")
            notes = [float(Path(path).read_text()) for path in folder.glob("started-*")]
        assert len(notes) == self.workers, f"{len(notes)} scripts ran, not {self.workers}"
        return max(notes) - begin_s


def time_restart(environ: Environ) -> Callable[[], float]:
    """Seconds from the death of a trainer beside a pserver until the next one runs."""
    options = ["--server_num=1", "--worker_num=1", "--max_restarts=1", "--restart_after=0"]

    def take_turn() -> float:
        with make_fresh_folder() as folder:
            script = folder / "again.py"
            script.write_text(AGAIN)
            argv = [find_beside_python("pslaunch"), "local", *options, str(script)]
            subprocess.run(argv, env=environ, stdout=subprocess.DEVNULL, check=True)
            begin_s, end_s = (float((folder / f"at-{epoch}").read_text()) for epoch in (0, 1))
        return end_s - begin_s

    return take_turn


class Output:
    """Lines that reach a reader who is fast, and the seconds until all is over."""

    def __init__(self, environ: Environ) -> None:
        self.environ = environ
        self.shown: dict[str, list[int]] = {"pslaunch": [], "pipe": []}

    def launch(self) -> float:
        with make_fresh_folder() as folder:
            script = folder / "print.py"
            script.write_text(PRINT)
            argv = [find_beside_python("pslaunch"), "local", "--server_num=0", "--worker_num=2", str(script)]
            return self._count("pslaunch", [argv])

    def pipe(self) -> float:
        return self._count("pipe", [[sys.executable, "-c", PRINT]] * 2)

    def _count(self, name: str, commands: list[list[str]]) -> float:
        begin_s = time.perf_counter()
        read, write = os.pipe()
        programs = [subprocess.Popen(argv, env=self.environ, stdout=write) for argv in commands]
        os.close(write)
        with os.fdopen(read, "rb") as lines:
            self.shown[name].append(sum(b"of a script" in line for line in lines))
        if any(program.wait() for program in programs):
            raise SystemExit(f"{' '.join(commands[0])} failed")
        return time.perf_counter() - begin_s


def measure_output(turns: int) -> None:
    """Print the table of the million lines."""
    table = Table(f"Output of {LINES:,} lines by each of 2 trainers", beside="the same programs, one pipe")
    with make_user_environ() as environ:
        output = Output(environ)
        times = take_turns({"pslaunch": output.launch, "pipe": output.pipe}, turns)
    shown = {name: f"{statistics.median(found):,.0f}" for name, found in output.shown.items()}
    table.add_row("lines shown", shown["pslaunch"], shown["pipe"])
    table.add_row("over", format_ms(times["pslaunch"]), format_ms(times["pipe"]))


def format_ms(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.0f} ms"


def main() -> None:
    """Print one table."""
    turns = parse_turns(__doc__, 21)
    table = Table("Launch, time", beside="Python alone")
    with make_user_environ() as environ:
        launches = {f"{s} + {w}": Launch(s, w, environ) for s, w in ((0, 1), (1, 1), (1, 2))}
        times = take_turns(
            {
                "typer": time_python("import typer", environ),
                "bare": time_python("pass", environ),
                "help": time_command([find_beside_python("pslaunch"), "--help"], environ),
                "again": time_restart(environ),
                **launches,
            },
            turns + 1,
        )
    times = {name: found[1:] for name, found in times.items()}  # the first turn compiled the modules
    found = compute_ratio(times["help"], times["typer"])
    table.add_row(
        "`pslaunch --help`",
        format_ms(times["help"]),
        f"import typer {format_ms(times['typer'])}",
        found,
        "<= 1.5",
    )
    parts = [t + 3 * b for t, b in zip(times["typer"], times["bare"], strict=True)]
    for name, launch in launches.items():
        found = compute_ratio(times[name], parts)
        beside = f"import typer and 3 bare starts {format_ms(parts)}"
        target = "<= 1.3" if name == "1 + 1" else ""
        table.add_row(f"pservers + trainers {name}: started", format_ms(times[name]), beside, found, target)
        table.add_row(f"pservers + trainers {name}: over", format_ms(launch.over[1:]))
    row = ("1 + 1: a killed trainer runs again", format_ms(times["again"]))
    beside = f"a bare start {format_ms(times['bare'])}"
    table.add_row(*row, beside, compute_ratio(times["again"], times["bare"]))
    measure_output(min(turns, 5))


if __name__ == "__main__":
    main()
