"""Modes next to sync where one of two trainers is slow, and the bytes of a step: bench/modes.py.

Two trainers of the word2vec example's network, with random words. Each waits for its data: the fast one 50 ms
a batch, the slow one 150, long next to the computing, so that a busy machine changes little. Samples are
counted for some seconds; bytes are those that the pserver's ports counted.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing as mp
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

import pslaunch.runtime as paddle
from convergence import EXAMPLE
from exchange import Address, Case, start_pserver
from pslaunch.runtime.engine.strategy import Strategy
from turns import Table, Times, compute_ratio, make_fresh_folder, take_turns

WORDS, BATCH, CONTEXT = 300, 64, 5
WAITS_S = 0.05, 0.15  # for the data of a batch, by trainer
MODES = {
    "sync": Strategy(),
    "half_async": Strategy(mode="half_async"),
    "async": Strategy(mode="async"),
    "geo, k_steps 10": Strategy(mode="geo", k_steps=10),
}
SPAWN = mp.get_context("spawn")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Samples of both trainers in a second, and the bytes of a step at the pserver."""

    speed: float
    bytes: float


def read_samples(seconds: float, wait_s: float) -> Iterator[tuple[int, ...]]:
    """Yield random words until the time is over, those of a batch after a wait."""
    rng = np.random.default_rng(os.getpid())
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        time.sleep(wait_s)
        yield from map(tuple, rng.integers(0, WORDS, (BATCH, CONTEXT)).tolist())


def run_trainer(mode: str, own: int, seconds: float, address: Address, answer: Connection) -> None:
    """Train for some seconds and answer the number of batches."""
    said = os.open(f"said{own}", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.path.insert(0, str(EXAMPLE))
    import train

    paddle.init(num_gradient_servers=2, trainer_id=own, pservers=f"{address[0]}:{address[1]}", ports_num=1)
    cost = train.build_network(WORDS)
    optimizer = paddle.optimizer.Momentum(momentum=0, learning_rate=1e-4)
    optimizer.strategy = MODES[mode]
    trainer = paddle.trainer.SGD(cost, paddle.parameters.create(cost), optimizer, is_local=False)
    batches = 0

    def count(event: object) -> None:
        nonlocal batches
        batches += isinstance(event, paddle.event.EndIteration)

    reader = functools.partial(read_samples, seconds, WAITS_S[own])
    trainer.train(paddle.batch(reader, BATCH), 1, event_handler=count)
    answer.send(batches)


def measure(mode: str, seconds: float) -> Measured:
    """Train once in this mode; the log of the pserver is in the folder."""
    with ExitStack() as stack:
        address = stack.enter_context(start_pserver(Case(what="step", size=0, workers=2), "--log_dir=."))
        pipes = [SPAWN.Pipe() for _ in range(2)]
        processes = [
            SPAWN.Process(target=run_trainer, args=(mode, own, seconds, address, pipes[own][1]))
            for own in range(2)
        ]
        for process in processes:
            process.start()
        batches = sum(int(ours.recv()) for ours, _ in pipes)
        for process in processes:
            process.join()
    moved = re.findall(r"in_bytes=(\d+) out_bytes=(\d+)", Path("paddle_pserver2.INFO").read_text())[-1]
    return Measured(speed=batches * BATCH / seconds, bytes=sum(map(int, moved)) / batches)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3, help="of each mode (%(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a training (%(default)s)")
    given = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    moved: dict[str, list[float]] = {name: [] for name in MODES}

    def train(mode: str) -> float:
        found = measure(mode, given.seconds)
        moved[mode].append(found.bytes)
        return found.speed

    with make_fresh_folder() as folder:
        os.chdir(folder)
        speeds: Times = take_turns({name: functools.partial(train, name) for name in MODES}, given.turns)
        os.chdir("/")
    table = Table("One of two trainers slowed to a third, samples a second", beside="sync")
    for name in list(MODES)[1:]:
        found, sync = np.median(speeds[name]), np.median(speeds["sync"])
        target = ">= 1.8" if name == "async" else ""
        table.add_row(
            name, f"{found:.0f}", f"{sync:.0f}", compute_ratio(speeds[name], speeds["sync"]), target
        )
    table = Table("Bytes of a step", beside="sync")
    for name in list(MODES)[1:]:
        found, sync = np.median(moved[name]), np.median(moved["sync"])
        table.add_row(name, f"{found:.0f}", f"{sync:.0f}", found / sync)


if __name__ == "__main__":
    main()
