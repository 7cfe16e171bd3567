"""Processes that launchers leave behind on one machine: `python bench/leftovers.py --peers VENV/bin`.

Two workers each start a child and a grandchild in a session of its own, as data loaders and daemons do. Then
the launcher gets SIGKILL or SIGINT (Ctrl+C), or a worker gets SIGKILL. What still runs 15 s later was left
behind; it is counted, and ended. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from turns import describe_machine, find_beside_python, make_fresh_folder

WORKERS, EACH = 2, 3  # processes of each worker, with itself
COMES_S, ENDS_S = 60.0, 15.0
# Runs as a worker, as its child, and as its grandchild in another session. Each leaves its number.
PROGRAM = """\
import os, pathlib, signal, subprocess, sys
role = sys.argv[-1] if sys.argv[-1].endswith("child") else "worker"
me = [sys.executable, __file__]
if role == "worker":
    subprocess.Popen([*me, "child"])
    if os.fork() == 0:
        os.setsid()
        os.execv(me[0], [*me, "grandchild"])
(pathlib.Path(__file__).parent / f"{role}.{os.getpid()}").touch()
signal.pause()
"""
RAY = """\
import subprocess, sys, ray
ray.init(num_cpus=2)
run = ray.remote(subprocess.call)
ray.get([run.remote([sys.executable, sys.argv[1]]) for _ in range(2)])
"""
# Commands, whose last word is the program: `pslaunch` beside this Python, the others in the peers' folders.
LAUNCHERS = {
    "pslaunch local": ["pslaunch", "local", "--server_num=0", "--worker_num=2"],
    "torchrun": ["torchrun", "--nproc-per-node=2"],
    "torchx run": ["torchx", "run", "--scheduler=local_cwd", "dist.ddp", "-j=1x2", "--script"],
    "deepspeed": ["deepspeed", "--num_accelerators=2"],
    "Ray, a program in each of two tasks": ["python3", "-c", RAY],
    "paddle.distributed.launch": ["python", "-m", "paddle.distributed.launch", "--nproc_per_node=2"],
    "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable],
}


def find_processes(folder: Path, role: str = "*") -> list[int]:
    """Return the numbers of the program's processes that run, of one role or of all."""
    found = []
    for file in folder.glob(f"{role}.[0-9]*"):
        with contextlib.suppress(OSError):
            if b"program.py" in Path(f"/proc/{file.suffix[1:]}/cmdline").read_bytes():
                found.append(int(file.suffix[1:]))
    return found


def wait_until(is_so: Callable[[], bool], limit_s: float) -> bool:
    end_s = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.1)
    return True


@contextlib.contextmanager
def start(argv: Sequence[str], folder: Path, peers: str) -> Iterator[subprocess.Popen[bytes]]:
    """The launcher, once all workers and their children run; at the end nothing of them is left."""
    said = folder / "launcher.txt"
    with said.open("wb") as out:
        launcher = subprocess.Popen(
            argv,
            cwd=folder,
            env={**os.environ, "PATH": f"{peers}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        if not wait_until(lambda: len(find_processes(folder)) == WORKERS * EACH, COMES_S):
            raise RuntimeError(f"did not start: {said.read_text().strip().splitlines()[-1:]}")
        yield launcher
    finally:
        launcher.kill()
        launcher.wait()
        for pid in find_processes(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def count_left(words: Sequence[str], end: str, peers: str) -> int:
    """Return how many processes are left after this end of a job."""
    with make_fresh_folder() as folder:
        program = folder / "program.py"
        program.write_text(PROGRAM)
        with start([*words, str(program)], folder, peers) as launcher:
            if end == "Ctrl+C":  # goes to the terminal's foreground group
                os.killpg(launcher.pid, signal.SIGINT)
            elif end == "kill -9 of a worker":
                os.kill(find_processes(folder, "worker")[0], signal.SIGKILL)
            else:
                launcher.kill()
            wait_until(lambda: launcher.poll() is not None and not find_processes(folder), ENDS_S)
            return len(find_processes(folder))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", default=os.environ["PATH"], help="folders of peers' programs (PATH)")
    peers = parser.parse_args().peers
    ends = ("kill -9 of the launcher", "kill -9 of a worker", "Ctrl+C")
    print(f"\nProcesses left, of {WORKERS * EACH} ({describe_machine()})\n")
    print(f"| launcher | {' | '.join(ends)} |\n|---|{'---|' * len(ends)}")
    for name, (program, *words) in LAUNCHERS.items():
        path = find_beside_python(program) if program == "pslaunch" else shutil.which(program, path=peers)
        if path is None:
            print(f"| {name} | not installed |")
            continue
        try:
            counts = [str(count_left([path, *words], end, peers)) for end in ends]
        except RuntimeError as e:
            counts = [str(e)]
        print(f"| {name} | {' | '.join(counts)} |", flush=True)


if __name__ == "__main__":
    main()
