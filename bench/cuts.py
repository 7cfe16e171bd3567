"""The cost of snapshots every 100 steps: bench/cuts.py.

First of the word2vec example, as a whole job; then of a table of 10,000,000 rows. There a trainer pushes and
reads 4,096 rows a step, and waits 20 ms for its data, so that other work on the machine changes little. The
stop is the longest step with snapshots less the longest one without.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from pslaunch.runtime.client.caller import Caller, Init
from pslaunch.runtime.client.snapshots import Snapshots
from pslaunch.runtime.engine.kernel_numbers import Optim
from pslaunch.runtime.process.settings import resolve
from pslaunch.runtime.pserver import ports
from turns import (
    Table,
    compute_ratio,
    find_beside_python,
    make_fresh_folder,
    make_user_environ,
    take_turns,
)

DIM, BATCH, EVERY = 8, 4096, 100
WAIT_S = 0.02  # for the data of a step


@contextmanager
def start_pserver(folder: Path) -> Iterator[tuple[str, int]]:
    """Run a pserver; its address."""
    sock = ports.listen("127.0.0.1", 0)
    fd = os.dup(sock.fileno())
    address = sock.getsockname()[:2]
    env = os.environ | {"PSLAUNCH_LISTEN_FDS": str(fd), "PADDLE_INIT_SNAPSHOT_DIR": str(folder)}
    argv = [sys.executable, "-m", "pslaunch.runtime.pserver"]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(argv, env=env, pass_fds=[fd], stdout=said, stderr=said)
    sock.close()
    os.close(fd)
    try:
        yield address
    finally:
        process.kill()
        process.wait()


class Trainer:
    """A trainer with one table."""

    def __init__(self, address: tuple[str, int], rows: int, every: int) -> None:
        settings = resolve({"pservers": f"{address[0]}:{address[1]}", "snapshot_steps": every}, {})
        self.client = Caller(settings)
        self.snapshots = Snapshots(settings, self.client, sync=True, log=print, on_sealed=lambda: None)
        self.client.connect()
        self.snapshots.begin([])
        init = Init(kind="normal", mean=0.0, std=0.1)
        self.client.create_sparse("table", rows, DIM, Optim(method="adagrad", learning_rate=0.1), init)
        for keys in np.array_split(np.arange(rows, dtype=np.uint64), max(1, rows // 50_000)):
            self.client.push_pull({}, {}, {"table": (keys, np.ones((len(keys), DIM), np.float32))})
        self._rng, self._rows = np.random.default_rng(1), rows

    def step(self, cut: bool) -> float:
        """Make a step, with snapshots if `cut`; return its seconds."""
        keys = np.unique(self._rng.integers(0, self._rows, BATCH, np.uint64))
        grads, rows = np.ones((len(keys), DIM), np.float32), np.empty((len(keys), DIM), np.float32)
        time.sleep(WAIT_S)
        begun_s = time.perf_counter()
        if cut:
            self.snapshots.note_step()
        self.client.push_pull({}, {}, {"table": (keys, grads)}, {"table": (keys, rows)})
        if cut:
            self.snapshots.after_step(dict)
        return time.perf_counter() - begun_s


def measure_example(turns: int) -> None:
    """Print the table of the word2vec example with 2 pservers and 2 trainers."""
    example = Path(__file__).parents[1] / "examples/word2vec"
    with make_fresh_folder() as folder, make_user_environ() as environ:
        subprocess.run([sys.executable, str(example / "prepare.py"), str(folder / "ws")], check=True)
        argv = [find_beside_python("pslaunch"), "local", "--server_num=2", "--worker_num=2"]
        argv += [f"--job_workspace={folder / 'ws'}"]

        def time_job(*options: str) -> float:
            begin_s = time.perf_counter()
            done = subprocess.run(
                [*argv, *options, "train.py"], env=environ, capture_output=True, check=False
            )
            if done.returncode:
                raise SystemExit(done.stdout.decode())
            return time.perf_counter() - begin_s

        times = take_turns({"cut": partial(time_job, f"--snapshot_steps={EVERY}"), "plain": time_job}, turns)
    table = Table(f"Snapshots every {EVERY} steps, word2vec", beside="without")
    cut, plain = (f"{statistics.median(times[name]):.2f} s" for name in ("cut", "plain"))
    table.add_row("the job", cut, plain, compute_ratio(times["cut"], times["plain"]), "<= 1.05")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5, help="of 200 steps each way (%(default)s)")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the table (%(default)s)")
    given = parser.parse_args()
    measure_example(given.turns)
    times: dict[bool, list[list[float]]] = {False: [], True: []}
    with make_fresh_folder() as folder, start_pserver(folder) as address:
        trainer = Trainer(address, given.rows, EVERY)
        for _ in range(given.turns):
            for cut in (False, True):
                times[cut].append([trainer.step(cut) for _ in range(2 * EVERY)])
        sealed = trainer.snapshots.sealed
    table = Table(f"Snapshots every {EVERY} steps, {given.rows:,} rows of {DIM}, AdaGrad", beside="without")
    ratios = [
        (sum(cut) + len(cut) * WAIT_S) / (sum(plain) + len(plain) * WAIT_S)
        for plain, cut in zip(times[False], times[True], strict=True)
    ]
    own, beside = (statistics.median(map(statistics.fmean, times[cut])) + WAIT_S for cut in (True, False))
    table.add_row(
        "a step", f"{1e3 * own:.2f} ms", f"{1e3 * beside:.2f} ms", statistics.median(ratios), "<= 1.05"
    )
    own, beside = (statistics.median(map(max, times[cut])) for cut in (True, False))
    table.add_row("the longest step", f"{1e3 * own:.1f} ms", f"{1e3 * beside:.1f} ms")
    print(f"snapshots up to step {sealed}; stop {1e3 * (own - beside):.1f} ms, limit 10 ms")


if __name__ == "__main__":
    main()
