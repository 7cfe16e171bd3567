"""Many asynchronous steps while connections are cut and trainers killed: nothing is lost or applied twice.

Every push is a number at a place of its own, so that the sums show a lost one and a repeated one. SOAK_STEPS
is the length; `make faults` sets the long one.
"""

from __future__ import annotations

import os
import random
import sys
from collections import deque
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pslaunch.runtime.client.caller import Caller
from support.process import started
from support.proxy import cutting
from support.pservers import PLAIN, ZERO, Cluster, cluster, run_trainers

pytestmark = pytest.mark.asan

F32 = npt.NDArray[np.float32]

STEPS = int(os.environ.get("SOAK_STEPS", "4000"))
KILLS = max(3, STEPS // 5000)
TRAINERS, PLACES, PENDING = 2, 64, 2


def create(c: Caller) -> None:
    """Create a dense object and a table with a number for each place of each trainer."""
    c.create_dense("w", TRAINERS * PLACES, PLAIN)
    c.create_sparse("e", TRAINERS * PLACES, 2, PLAIN, ZERO)
    c.init_dense({"w": np.zeros(TRAINERS * PLACES, np.float32)})


def find_number(trainer: int, step: int) -> tuple[int, float]:
    """Return the place and the number of a push."""
    return trainer * PLACES + step % PLACES, float(1 + step // PLACES % 61)


def push(c: Caller, trainer: int, step: int) -> tuple[int, list[F32]]:
    """Begin a push; return its call, and the arrays that it borrows."""
    place, number = find_number(trainer, step)
    grad, rows = np.zeros(TRAINERS * PLACES, np.float32), np.full((1, 2), number, np.float32)
    keys = np.array([place], np.uint64)
    grad[place] = number
    call = c.push_pull({"w": grad}, {}, {"e": (keys, rows)}, wait=False)
    c.progress()
    return call, [grad, rows]


def read(c: Caller) -> tuple[F32, F32]:
    """Return the sums of the dense object and of the table."""
    w = np.empty(TRAINERS * PLACES, np.float32)
    c.pull({"w": w})
    return -w, -c.pull_tables({"e": np.arange(TRAINERS * PLACES, dtype=np.uint64)})["e"]


def sum_numbers(trainer: int, steps: int) -> F32:
    """Return the sum of a trainer's first pushes, by place."""
    sums = np.zeros(TRAINERS * PLACES, np.float32)
    for step in range(steps):
        place, number = find_number(trainer, step)
        sums[place] += number
    return sums


def test_every_push_is_applied_once_however_often_connections_break(rng: random.Random) -> None:
    at = [rng.choice([-1, 1, 1]) * rng.randrange(700, 60_000) for _ in range(STEPS // 40)]

    def train(t: int) -> tuple[F32, F32]:
        with found.client(t, mode="async", endpoints=[proxy.endpoint for proxy in proxies]) as c:
            create(c)
            calls: deque[tuple[int, list[F32]]] = deque()
            for step in range(STEPS):
                calls.append(push(c, t, step))
                if len(calls) > PENDING:
                    c.wait(calls.popleft()[0])
            for call, _ in calls:
                c.wait(call)
            c.end_pass()
            sums = read(c)
            c.barrier()
            c.finish()
        return sums

    want = sum_numbers(0, STEPS) + sum_numbers(1, STEPS)
    with cluster(2, trainers=TRAINERS) as found, cutting(found.endpoints, at) as proxies:
        for w, e in run_trainers(TRAINERS, train, timeout_s=max(60.0, STEPS / 40)):
            np.testing.assert_array_equal(w, want)
            np.testing.assert_array_equal(e, np.repeat(want[:, None], 2, axis=1))
        assert found.codes() == [0, 0]
        assert sum(proxy.cut for proxy in proxies) > STEPS / 200


TRAINER = """
import sys
from collections import deque
sys.path[:0] = [{tests!r}]
from faults.test_soak import PENDING, create, push
from support.pservers import make_caller

with make_caller({endpoints!r}, num_gradient_servers=2, mode="async") as c:
    create(c)
    calls = deque()
    for step in range({steps}):
        print("begun", step, flush=True)
        calls.append(push(c, 0, step))
        if len(calls) > PENDING:
            c.wait(calls.popleft()[0])
            print("done", step - PENDING, flush=True)
    print("ready", flush=True)
    sys.stdin.read()
"""


def kill_a_trainer(found: Cluster, after: int) -> tuple[int, int]:
    """Run a trainer as a process, kill it, and return the numbers of pushes that were done and begun."""
    tests = str(Path(__file__).parents[1])
    program = TRAINER.format(tests=tests, endpoints=found.endpoints, steps=PLACES * 3)
    with started([sys.executable, "-c", program]) as trainer:
        trainer.expect(f"done {after}\n")
        trainer.kill()  # then all that it wrote is read
        lines = trainer.output().splitlines()
    counts = {"done": 0, "begun": 0}
    for line in lines:
        name, _, number = line.partition(" ")
        if name in counts and number.isdigit():
            counts[name] = int(number) + 1
    return counts["done"], counts["begun"]


def test_killed_trainer_leaves_each_push_once_or_not_at_all(rng: random.Random) -> None:
    """Pushes with an answer are there once; of those on their way each part is there once or not at all."""
    for _ in range(KILLS):
        with cluster(2, trainers=TRAINERS) as found, found.client(1, mode="async") as c:
            created = run_trainers(2, lambda t: create(c) if t else kill_a_trainer(found, rng.randrange(100)))
            done, begun = created[0]
            w, e = read(c)
            assert done <= begun <= done + PENDING + 1
            least, most = sum_numbers(0, done), sum_numbers(0, begun)
            for got in (w, e[:, 0], e[:, 1]):
                assert ((got == least) | (got == most)).all()
            for process in found.processes:
                process.proc.terminate()
