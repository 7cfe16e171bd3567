"""How long a launch takes, next to plain subprocesses: `python bench/launch.py`.

Two scripts that note the time and end, and one pserver. Started: from the command to the last script's
first line. Over: until the command is back. Medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

NOTE = "import os, time; open(f'started-{os.getpid()}', 'w').write(repr(time.time()))\n"
WORKERS = 2


def plain(folder: Path) -> None:
    """The same processes without a launcher: no logs, no guarding, no pserver."""
    processes = [subprocess.Popen([sys.executable, "note.py"], cwd=folder) for _ in range(WORKERS)]
    for process in processes:
        process.wait()


def launched(server_num: int) -> Callable[[Path], None]:
    """`pslaunch local` with a number of pservers."""

    def run(folder: Path) -> None:
        argv = [sys.executable, "-m", "pslaunch", "local", f"--server_num={server_num}"]
        argv += [f"--worker_num={WORKERS}", str(folder / "note.py")]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(argv)} failed:\n{done.stdout}{done.stderr}")

    return run


def measure(run: Callable[[Path], None], repeat: int) -> tuple[float, float]:
    """Median seconds until the last script started, and until all was over."""
    started, over = [], []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            folder = Path(name)
            (folder / "note.py").write_text(NOTE)
            begin_s = time.time()
            run(folder)
            over.append(time.time() - begin_s)
            notes = [float(path.read_text()) for path in folder.glob("started-*")]
            assert len(notes) == WORKERS, f"{len(notes)} scripts ran, not {WORKERS}"
            started.append(max(notes) - begin_s)
    return statistics.median(started), statistics.median(over)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=7, help="launches of each kind (%(default)s)")
    repeat = parser.parse_args().repeat
    kinds = {
        "plain subprocesses": plain,
        "pslaunch, 0 pservers": launched(0),
        "pslaunch, 1 pserver": launched(1),
    }
    print(f"{os.cpu_count()} CPUs, {WORKERS} scripts; seconds, medians of {repeat}")
    print(f"{'':24}{'started':>10}{'over':>10}{'over, to plain':>16}")
    baseline_s = 0.0
    for name, run in kinds.items():
        started_s, over_s = measure(run, repeat)
        baseline_s = baseline_s or over_s
        print(f"{name:24}{started_s:>10.3f}{over_s:>10.3f}{over_s / baseline_s:>16.1f}", flush=True)


if __name__ == "__main__":
    main()
