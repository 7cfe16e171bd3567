"""Pservers as processes and trainers as threads: sums, bits, uneven data, broken connections, memory."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pslaunch.runtime import _core
from pslaunch.runtime.client.caller import Caller
from pslaunch.runtime.engine.kernel_numbers import KERNELS, Mode, Optim, Schedule
from support import reference
from support.process import read_memory
from support.proxy import cutting
from support.pservers import NORMAL, PLAIN, ZERO, cluster, run_trainers

pytestmark = pytest.mark.asan

F32 = npt.NDArray[np.float32]

ADAGRAD = Optim(method="adagrad", learning_rate=0.1, decay=1e-3)
SIZE, ROWS, DIM = 50_000, 400, 8


def gradient(trainer: int, step: int, size: int = SIZE) -> F32:
    """The dense gradient of a trainer in a step."""
    return np.random.default_rng([trainer, step]).standard_normal(size, dtype=np.float32)


def row_gradients(trainer: int, step: int) -> tuple[npt.NDArray[np.uint64], F32]:
    """Keys and row gradients of a trainer in a step."""
    rng = np.random.default_rng([7, trainer, step])
    keys = np.unique(rng.integers(0, ROWS, 150)).astype(np.uint64)
    return rng.permutation(keys), rng.standard_normal((len(keys), DIM), dtype=np.float32)


def count_samples(trainer: int, step: int) -> int:
    """Return the samples of a trainer in a step."""
    return 10 + 3 * trainer + step % 2


def start_values() -> F32:
    """Initial dense values, of trainer 0."""
    return np.random.default_rng(99).standard_normal(SIZE, dtype=np.float32)


def split(optim: Optim) -> tuple[Optim, Optim]:
    """Return rules for dense parameters and rows: some methods have but one of them."""
    dense = replace(optim, method="fleet_adagrad") if optim.kernel.by_row else optim
    return dense, replace(optim, method="fleet_adam") if optim.kernel.whole else optim


def create(c: Caller, values: F32, optim: Optim = ADAGRAD) -> None:
    """The objects of these tests."""
    dense, rows = split(optim)
    c.create_dense("w", SIZE, dense)
    c.create_dense("b", 3, dense)
    c.create_sparse("e", ROWS, DIM, rows, NORMAL)
    c.init_dense({"w": values, "b": np.zeros(3, np.float32)})


def train(c: Caller, trainer: int, steps: int, optim: Optim = ADAGRAD) -> tuple[F32, F32]:
    """Some steps, then the end of the pass; the final values."""
    w, b = start_values(), np.zeros(3, np.float32)
    with c:
        create(c, w, optim)
        for step in range(steps):
            c.push_pull(
                {"w": gradient(trainer, step), "b": gradient(trainer, step, 3)},
                {"w": w, "b": b},
                {"e": row_gradients(trainer, step)},
                samples=count_samples(trainer, step),
            )
        c.end_pass()
        c.pull({"w": w, "b": b})
        e = c.pull_tables({"e": np.arange(ROWS, dtype=np.uint64)})["e"]
        c.finish()
    return w, e


def make_oracle(optim: Optim) -> reference.Rule:
    """Return the same rule for the oracle."""
    method, lr, l1, l2, clip, *numbers = optim.pack()
    return reference.Rule(method=method, lr=lr, l1=l1, l2=l2, clip=clip, numbers=tuple(numbers))


def expected(steps: list[int], optim: Optim = ADAGRAD) -> tuple[F32, F32]:
    """The same in numpy: sums in trainer order, an ended trainer left out."""
    (rule, of_rows), samples = map(make_oracle, split(optim)), 0
    w, slots = start_values(), np.zeros((split(optim)[0].kernel.slots, SIZE), np.float32)
    table = reference.SparseTable(dim=DIM, rule=of_rows, table=reference.hash_name("e"), kind=0, std=0.1)
    for step in range(max(steps)):
        total = None
        for trainer in [t for t, n in enumerate(steps) if step < n]:
            g = gradient(trainer, step)
            total = g if total is None else total + g
            table.add(*row_gradients(trainer, step))
            samples += count_samples(trainer, step)
        assert total is not None
        rate = reference.find_scheduled_rate(optim.schedule, optim.learning_rate, samples, 0)
        rule, table.rule = replace(rule, lr=float(rate)), replace(of_rows, lr=float(rate))
        reference.apply_optim(rule, step + 1, w, slots, total)
        table.commit()
    return w, table.read(np.arange(ROWS, dtype=np.uint64))


def digest(*arrays: F32) -> str:
    """Return a digest to compare two runs by."""
    return hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()


@pytest.mark.parametrize(("pservers", "ports", "sparse"), [(1, 1, 0), (3, 2, 1)])
def test_bits_are_those_of_numpy_for_any_number_of_shards(pservers: int, ports: int, sparse: int) -> None:
    steps = [4, 4, 4]
    with cluster(pservers, ports, sparse, trainers=3) as found:
        results = run_trainers(3, lambda t: train(found.client(t), t, steps[t]))
        assert found.codes() == [0] * pservers
    w, e = expected(steps)
    for result in results:
        np.testing.assert_array_equal(result[0], w)
        np.testing.assert_array_equal(result[1], e)


@pytest.mark.parametrize("method", KERNELS)
def test_every_optimizer_has_the_bits_of_its_oracle_on_any_shards(method: str) -> None:
    optim = Optim(method=method, learning_rate=0.1, l1=0.01, decay=1e-3, clip=1.5)
    with cluster(2, 2, 1, trainers=2) as found:
        results = run_trainers(2, lambda t: train(found.client(t), t, 3, optim))
        assert found.codes() == [0, 0]
    assert {digest(*r) for r in results} == {digest(*expected([3, 3], optim))}


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(kind="poly", a=0.1, b=0.75),
        Schedule(kind="manual", segments=((30, 1.0), (60, 0.5), (90, 0.25))),
    ],
    ids=lambda schedule: schedule.kind,
)
def test_learning_rate_follows_the_samples_of_all_trainers(schedule: Schedule) -> None:
    """The trainers are uneven, and their connections break in the middle of pushes."""
    optim = Optim(method="adam", learning_rate=0.1, l1=0.01, schedule=schedule)
    steps = [3, 5, 2]
    at = [150_000, 200_000, 350_000]
    with cluster(2, trainers=3) as found, cutting(found.endpoints, at) as proxies:
        endpoints = [proxy.endpoint for proxy in proxies]
        results = run_trainers(3, lambda t: train(found.client(t, endpoints=endpoints), t, steps[t], optim))
        assert found.codes() == [0, 0]
        assert sum(proxy.cut for proxy in proxies) >= 1
    assert {digest(*r) for r in results} == {digest(*expected(steps, optim))}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_trainers_gather_messages_of_any_size_between_passes(mode: Mode) -> None:
    sizes = [0, 1, 2, 127, 128, 129, 70_001, 3]

    def messages(t: int) -> list[Any]:
        with found.client(t, mode=mode) as c:
            c.create_dense("w", 5, PLAIN)
            c.init_dense({"w": np.zeros(5, np.float32)})
            heard: list[Any] = []
            for i in range(len(sizes)):
                if (t + i) % 3:  # no trainer waits for others
                    c.messages.add_up({"n": make_numbers(t, i), "other": np.array([t])})
                for _ in range((t + i) % 3):
                    c.push_pull({"w": np.ones(5, np.float32)}, {"w": np.empty(5, np.float32)})
                c.end_pass()
                heard.append(c.messages.gather(make_message(t, i)))
            c.messages.add_up({"n": make_numbers(t, 9)})
            c.barrier()
            heard.append(c.messages.add_up({"n": make_numbers(t, 9)})["n"].tolist())
            c.finish()
        return heard

    def make_numbers(t: int, i: int) -> npt.NDArray[np.int64]:
        return np.random.default_rng((t, i)).integers(0, 2**58, (5, 7))

    def make_message(t: int, i: int) -> bytes:
        return np.random.default_rng((t, i)).bytes(sizes[(i + t) % len(sizes)])

    with cluster(2, sparse=1, trainers=3) as found:
        heard = run_trainers(3, messages)
        assert found.codes() == [0, 0]
    total = np.sum([make_numbers(t, 9) for t in range(3)], axis=0)
    assert (
        heard == [[*([make_message(t, i) for t in range(3)] for i in range(len(sizes))), total.tolist()]] * 3
    )


def test_many_trainers_do_not_need_much_memory() -> None:
    """32 gradients of 4 MiB at once: a shard holds a few, the others wait in their sockets."""
    size, trainers = 1 << 20, 32

    def push(t: int) -> int:
        grad, w = np.ones(size, np.float32), np.zeros(size, np.float32)
        with found.client(t) as c:
            c.create_dense("w", size, PLAIN)
            c.init_dense({"w": w})
            for _ in range(2):
                c.push_pull({"w": grad}, {"w": w})
            assert (w == -2 * trainers).all()
            peak = read_memory(found.processes[0].pid)
            c.barrier()
            c.finish()
        return peak

    with cluster(trainers=trainers) as found:
        before = read_memory(found.processes[0].pid)
        peaks = run_trainers(trainers, push)
        assert found.codes() == [0]
    # Values, sum and the gradients held: 6 times 4 MiB; all gradients would be 128 MiB.
    assert max(peaks) - before < 40 << 20


def test_a_large_pull_does_not_need_much_memory() -> None:
    """Of 96 MiB of rows a shard has a few at a time, also if they are asked for at once."""
    keys, dim = np.arange(24_576, dtype=np.uint64), 1024
    expected = np.empty((len(keys), dim), np.float32)
    _core.init_rows(expected, keys, 1, _core.hash_name("e"), 0, 0.0, 0.1)
    with cluster() as found, found.client(0) as c:
        c.create_sparse("e", len(keys), dim, PLAIN, NORMAL)
        before = read_memory(found.processes[0].pid)
        rows = c.pull_tables({"e": keys})["e"]
        assert read_memory(found.processes[0].pid) - before < 12 << 20
    np.testing.assert_array_equal(rows, expected)


def test_rows_beyond_one_frame_arrive_whole() -> None:
    n, dim = 9_000, 64  # more than two frames of 1 MiB
    keys = np.random.default_rng(1).permutation(n).astype(np.uint64)
    rows = np.random.default_rng(2).standard_normal((n, dim), dtype=np.float32)
    with cluster(2, 1, 1) as found, found.client(0) as c:
        c.create_sparse("e", n, dim, PLAIN, ZERO)
        c.set_rows("e", keys, rows)
        np.testing.assert_array_equal(c.pull_tables({"e": keys})["e"], rows)
        c.push_pull({}, {}, {"e": (keys, rows)})
        assert not c.pull_tables({"e": keys})["e"].any()
        c.push_pull({}, {})  # a step without rows
        c.finish()
        assert found.codes() == [0, 0]


def test_the_log_of_a_short_job_has_its_counters(tmp_path: Path) -> None:
    with cluster(ports=2, options=[f"--log_dir={tmp_path}"]) as found:
        train(found.client(0), 0, 3)
        assert found.codes() == [0]
    log = (tmp_path / "paddle_pserver2.INFO").read_text()
    for port in range(2):
        assert f"port {port} steps=3 objects=3 " in log
        assert f"trainer 0 finished at port {port}" in log
