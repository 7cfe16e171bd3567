"""Half-asynchronous training: pushes are applied as they come, late ones are dropped and counted."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pslaunch.runtime.client.caller import Caller
from pslaunch.runtime.client.remote import RemoteUpdater
from pslaunch.runtime.client.remote_async import AsyncUpdater
from pslaunch.runtime.client.run import choose_updater
from pslaunch.runtime.engine import optimizer
from pslaunch.runtime.engine.arrays import F32
from pslaunch.runtime.engine.kernel_numbers import Mode, Optim
from pslaunch.runtime.engine.param_config import ParamConfig
from pslaunch.runtime.engine.parameters import Parameters
from pslaunch.runtime.engine.plan import StepResult
from pslaunch.runtime.engine.strategy import Strategy
from pslaunch.runtime.engine.updater import ParamRules
from pslaunch.runtime.files import blocks
from support.cluster import Cluster, find_digests, run_job
from support.process import poll_until
from support.proxy import cutting
from support.pservers import PLAIN, ZERO, cluster, run_trainers
from support.pservers import Cluster as ServedCluster

pytestmark = pytest.mark.asan

SIZE, DIM = 2 * blocks.BLOCK_FLOATS, 3  # a block on each of two shards
KEYS = np.arange(40, dtype=np.uint64)  # on both shards


class Part:
    """One object on one shard, as docs/training.md describes it."""

    def __init__(self, trainers: int, discard: int) -> None:
        self.discard = discard
        self.version = self.dropped = 0
        self.total = 0.0
        self.read = [0] * trainers  # version of the values that each trainer read last
        self.base = [0] * trainers  # version of those that its next gradient is computed from

    def push(self, trainer: int, value: float) -> None:
        if self.discard and self.version - self.base[trainer] >= self.discard:
            self.dropped += 1
        else:
            self.version += 1
            self.total -= value


def create(c: Caller) -> None:
    c.create_dense("w", SIZE, PLAIN)
    c.create_sparse("e", len(KEYS), DIM, PLAIN, ZERO)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(1, 9)), min_size=1, max_size=30),
)
def test_late_pushes_are_dropped_as_the_rule_says(discard: int, turns: list[tuple[int, bool, int]]) -> None:
    """Turns of three trainers: each reads or not, then pushes."""
    w, e = ([Part(3, discard) for _ in range(2)] for _ in range(2))
    with cluster(ports=2, trainers=3) as found:
        clients = [found.client(t, mode="half_async", discard=discard) for t in range(3)]

        def begin(t: int) -> None:
            create(clients[t])
            clients[t].init_dense({"w": np.zeros(SIZE, np.float32)})

        run_trainers(3, begin)
        for t, reads, value in turns:
            c, out = clients[t], np.empty(SIZE, np.float32)
            if reads:
                c.mark()
                rows = c.pull_tables({"e": KEYS})["e"]
                c.mark()
                assert sorted({float(x) for x in rows[:, 0]}) == sorted({part.total for part in e})
                for part in (*w, *e):
                    part.base[t] = part.version if part in e else part.read[t]
            grads = {"w": np.full(SIZE, value, np.float32)}
            c.push_pull(grads, {"w": out}, {"e": (KEYS, np.full((len(KEYS), DIM), value, np.float32))})
            for part in (*w, *e):
                part.push(t, value)
                part.read[t] = part.version
            assert out.reshape(2, -1)[:, 0].tolist() == [part.total for part in w]
        dropped = {"w": sum(part.dropped for part in w), "e": sum(part.dropped for part in e)}
        counts = [c.count_dropped() for c in clients]
        assert {k: sum(one.get(k, 0) for one in counts) for k in dropped} == dropped
        run_trainers(3, lambda t: clients[t].finish())
        assert found.codes() == [0]


CONFIGS = {
    "w": ParamConfig(name="w", rows=100, cols=50),
    "v": ParamConfig(name="v", rows=3, cols=7),
    "e": ParamConfig(name="e", rows=64, cols=DIM, sparse=True),
}
PENDING = Strategy(mode="async", pending=1)
GEO = Strategy(mode="geo", k_steps=3)
CUTS = 60
STRATEGIES = [Strategy(mode="half_async"), PENDING, Strategy(mode="async", pending=3), GEO]


@contextmanager
def update(
    found: ServedCluster, trainer: int, strategy: Strategy, **overrides: Any
) -> Iterator[RemoteUpdater]:
    """An updater of a trainer, with SGD and a learning rate of 1."""
    with found.client(trainer, mode=strategy.mode, **overrides) as c:
        made = choose_updater(strategy, found.trainers)(
            ParamRules(CONFIGS, frozenset({"e"}), optimizer.SGD(learning_rate=1.0)),
            Parameters(CONFIGS),
            c,
            on_connected=lambda: None,
            guard=nullcontext,
        )
        yield made


@pytest.fixture(autouse=True)
def _send_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pslaunch.runtime.client.remote.EARLY_BYTES", 1)


def make_dense(value: float) -> dict[str, F32]:
    return {"w": np.full((100, 50), value, np.float32), "v": np.full((3, 7), value, np.float32)}


def has_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def take_step(updater: RemoteUpdater, keys: list[int], value: float) -> dict[str, F32]:
    """One step whose gradients are all `value`; returns the rows."""
    own = np.array(sorted(set(keys)), np.uint64)
    rows = updater.fetch({"e": own}, {"e": own.copy()})
    dense = make_dense(value)
    updater.progress(1, {"w": dense["w"]})
    goes = updater.client.is_sync and not np.isnan(value)
    assert updater.client.pushed == ({"w"} if goes else set())
    sparse = {"e": (own, np.full((len(own), DIM), value, np.float32))}
    result = StepResult(samples=1, values=[], errors=0, dense=dense, sparse=sparse)
    if np.isnan(value):
        result = result.leave_out()
    updater.update(result.dense, result.sparse, result.samples)
    return dict(rows)


@pytest.mark.parametrize("strategy", [Strategy(), *STRATEGIES], ids=lambda s: f"{s.mode}{s.pending}")
def test_every_gradient_is_in_the_final_values_once(strategy: Strategy) -> None:
    """Two trainers, two passes, connections that are cut at any byte, in both directions.

    geo applies the mean of what the trainers did, the other modes its sum.
    """
    rng = np.random.default_rng(1)
    steps = rng.integers(0, 64, (2, 2, 100, 5)).tolist()
    at = (rng.integers(600, 60_000, CUTS) * rng.choice([-1, 1], CUTS)).tolist()

    def train(t: int) -> list[F32]:
        endpoints = [proxy.endpoint for proxy in proxies]
        with update(found, t, strategy, endpoints=endpoints) as updater:
            updater.start()
            for own in steps[t]:
                for i, keys in enumerate(own):
                    take_step(updater, keys, float(i % 4 + t) if i % 5 else np.nan)  # nan: a step left out
                updater.end_pass()
            values = [updater._parameters.get(name) for name in ("w", "v", "e")]
            updater.finish()
            return values

    expected = np.zeros(64), 0.0
    share = 0.5 if strategy.mode == "geo" else 1.0
    for t in range(2):
        for own in steps[t]:
            for i, keys in [step for step in enumerate(own) if step[0] % 5]:
                expected[0][sorted(set(keys))] -= share * (i % 4 + t)
                expected = expected[0], expected[1] - share * (i % 4 + t)
    with cluster(2, trainers=2) as found, cutting(found.endpoints, at) as proxies:
        for w, v, e in run_trainers(2, train):
            assert (w == expected[1]).all()
            assert (v == expected[1]).all()
            np.testing.assert_array_equal(e, np.repeat(expected[0][:, None], DIM, axis=1))
        assert found.codes() == [0, 0]
        assert sum(proxy.cut for proxy in proxies) >= CUTS


@pytest.mark.parametrize("at", ["_progress", "push_pull"])
def test_a_step_that_fails_after_a_part_of_it_was_sent_is_completed_by_zeros(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal's handler raises while gradients are sent, or before the others are added."""

    def train(t: int) -> list[float]:
        with update(found, t, Strategy()) as updater:
            updater.start()
            take_step(updater, [1], 1.0)
            if t == 0:
                updater.fetch({"e": KEYS}, {})
                with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                    patch.setattr(updater.client, at, Mock(side_effect=KeyboardInterrupt))
                    updater.progress(1, {"w": make_dense(4.0)["w"]})
                    updater.update(make_dense(4.0), {"e": (KEYS[:0], np.zeros((0, DIM), np.float32))}, 1)
                updater.abandon()
            else:
                take_step(updater, [1], 2.0)
            take_step(updater, [1], 8.0)
            updater.end_pass()
            values = [float(updater._parameters.get(name)[1, 0]) for name in ("w", "v", "e")]
            updater.finish()
            return values

    with cluster(2, trainers=2) as found:
        assert run_trainers(2, train) == [[-24.0, -20.0, -20.0]] * 2
        assert found.codes() == [0, 0]


@pytest.mark.parametrize(
    ("strategy", "steps", "said"),
    [
        (PENDING, 1, []),
        (Strategy(mode="async", pending=3), 5, ["async: 6 batches in 4 pushes, at most 3 in one"]),
        (GEO, 5, []),
    ],
    ids=str,
)
def test_a_trainer_goes_on_while_a_push_is_on_its_way(
    strategy: Strategy, steps: int, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step after these waits. geo: an exchange after 3 steps, the next is after 6."""
    lines: list[str] = []
    with cluster() as found, update(found, 0, strategy, log=lines.append) as updater:

        def learn() -> None:
            updater.update(make_dense(1.0), {"e": (own, np.ones_like(rows))}, 1)

        updater.start()
        own = np.arange(4, dtype=np.uint64)
        rows = updater.fetch({"e": own}, {"e": own})["e"]
        lines.clear()
        found.processes[0].proc.send_signal(signal.SIGSTOP)
        poll_until(lambda: has_stopped(found.processes[0].pid), describe="the pserver has stopped")
        for _ in range(steps):
            learn()
        with monkeypatch.context() as patch, pytest.raises(KeyError, match="a wait"):
            patch.setattr(updater.client, "wait", Mock(side_effect=KeyError("a wait")))
            learn()
        found.processes[0].proc.send_signal(signal.SIGCONT)
        updater.end_pass()
        assert lines == said
        assert (updater._parameters.get("w") == -steps - 1).all()
        assert (updater._parameters.get("e")[:4] == -steps - 1).all()
        updater.finish()
        assert found.codes() == [0]


@pytest.mark.parametrize(
    ("strategy", "age"), [(Strategy(), 0), (STRATEGIES[0], 0), (PENDING, 1), (GEO, 0)], ids=str
)
def test_rows_travel_while_the_step_before_is_computed(strategy: Strategy, age: int) -> None:
    """Those of async lack the trainer's own push in flight. Only the first step waits for rows."""
    rows = []
    keys = [np.arange(4, dtype=np.uint64) for _ in range(101)]
    with cluster(ports=2) as found, update(found, 0, strategy) as updater:
        updater.start()
        for own, ahead in itertools.pairwise(keys):
            rows.append(float(updater.fetch({"e": own}, {"e": ahead})["e"].max()))
            while not updater.client.is_done(updater._call):
                updater.client.progress()
            updater.update(make_dense(1.0), {"e": (own, np.ones((4, DIM), np.float32))}, 1)
        assert rows == [min(0, age - step) for step in range(100)]
        assert updater.row_waits == 1
        updater.end_pass()  # others may have changed rows: they are read anew
        assert updater.fetch({"e": keys[-1]}, {})["e"].max() == -100
        assert updater.row_waits == 2
        updater.finish()
        assert found.codes() == [0]


def test_a_gradient_is_computed_from_the_values_that_its_version_says() -> None:
    with cluster() as found, update(found, 0, PENDING) as updater:
        assert isinstance(updater, AsyncUpdater)
        updater.start()
        take_step(updater, [1], 1.0)
        updater.client.wait(updater._calls[0][0])
        updater.fetch({"e": np.array([1], np.uint64)}, {})
        assert (updater._parameters.get("w") == -1).all()
        updater.end_pass()
        updater.finish()


def test_a_push_after_a_sum_is_as_old_as_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum is as old as the rows of its first batch; those of the others don't make the next push older."""
    strategy, own = Strategy(mode="async", pending=2), np.arange(4, dtype=np.uint64)
    with (
        cluster(trainers=2) as found,
        update(found, 0, strategy, discard=4) as updater,
        update(found, 1, strategy, discard=4) as other,
    ):
        assert isinstance(updater, AsyncUpdater)
        calls, grads = updater._calls, dict[str, tuple[Any, F32]]()

        def read() -> None:
            rows = updater.fetch({"e": own}, {"e": own})["e"]
            updater.client.wait(updater._call)
            grads.update({"e": (own, np.ones_like(rows))})

        def learn() -> None:
            updater.update(make_dense(1.0), grads, 1)
            updater.client.wait(calls[-1][0])  # the version of its values is known

        def push_beside(times: int) -> None:
            for _ in range(times):
                rows = other.fetch({"e": own}, {})["e"]
                other.client.push_pull(make_dense(0.0), {}, {"e": (own, np.ones_like(rows))})

        run_trainers(2, lambda t: (updater, other)[t].start())
        with monkeypatch.context() as patch:
            patch.setattr(updater.client, "is_done", lambda call: False)  # two pushes are on their way
            for _ in range(3):
                read()
                learn()
            push_beside(2)
            read()  # for the second batch of the sum: its next rows come from after these pushes
        assert updater._summed == 1
        learn()  # one update more would have been too many
        assert updater._summed == 0
        read()
        push_beside(2)
        learn()  # the fourth update since its rows were read would be too many: three came
        run_trainers(2, lambda t: (updater, other)[t].end_pass())
        assert updater.count_dropped() == {}
        assert (updater._parameters.get("e")[:4] == -9).all()
        run_trainers(2, lambda t: (updater, other)[t].finish())
        assert found.codes() == [0]


@pytest.mark.parametrize(("strategy", "share"), [(PENDING, 1.0), (GEO, 0.5)], ids=["async", "geo"])
def test_a_training_begins_again_after_an_interruption(strategy: Strategy, share: float) -> None:
    """An exchange of three steps, or a push, is on its way then. The other trainer has no data."""

    def train(t: int) -> tuple[F32, F32]:
        with update(found, t, strategy) as updater:
            updater.start()
            if t == 0:
                for _ in range(3):
                    take_step(updater, [1, 2], 1.0)
                updater.start()
                for _ in range(5):
                    take_step(updater, [2, 3], 1.0)
            updater.end_pass()
            values = updater._parameters.get("w"), updater._parameters.get("e")
            updater.finish()
            return values

    with cluster(trainers=2) as found:
        for w, e in run_trainers(2, train):
            assert (w == -share * 8).all()
            assert e[1:4, 0].tolist() == [-share * 3, -share * 8, -share * 5]
        assert found.codes() == [0]


@pytest.mark.parametrize("method", ["lamb", "fleet_adam"])
def test_dense_steps_of_one_trainer_are_those_of_synchronous_training(method: str) -> None:
    def learn(mode: Mode) -> F32:
        values, rng = np.ones(SIZE, np.float32), np.random.default_rng(1)
        optim = Optim(method=method, learning_rate=0.1, decay=0.1)
        with cluster(ports=2) as found, found.client(0, mode=mode) as c:
            c.create_dense("w", SIZE, optim)
            c.init_dense({"w": values})
            for _ in range(4):
                grad = rng.standard_normal(SIZE, dtype=np.float32)
                c.push_pull({"w": grad}, {"w": values})
            c.end_pass()
            c.finish()
        return values

    np.testing.assert_array_equal(learn("half_async"), learn("sync"))


def test_geo_trains_with_sgd_alone() -> None:
    made, text = optimizer.Momentum(momentum=0.9), r"momentum: use Momentum\(momentum=0\)"
    with pytest.raises(ValueError, match=f"parameter w: geo trains with SGD, not with {text}"):
        choose_updater(GEO, 2)(
            ParamRules(CONFIGS, frozenset({"e"}), made),
            Parameters(CONFIGS),
            Mock(),
            on_connected=lambda: None,
            guard=nullcontext,
        )


PROGRAM = """
import json, math, os, sys
import pslaunch.runtime as paddle
from support.models import digest, ngram_cost, ngrams

options = json.loads(sys.argv[1])
paddle.init(log_period=1)
rank = int(os.environ.get("PADDLE_INIT_TRAINER_ID", "0"))
cost = ngram_cost(sparse=True)
parameters = paddle.parameters.create(cost)
optimizer = paddle.optimizer.AdaGrad(
    learning_rate=3e-2, regularization=paddle.optimizer.L2Regularization(8e-4), **options.get("async", {})
)
trainer = paddle.trainer.SGD(cost, parameters, optimizer, is_local=False)
costs = []

def handler(event):
    if isinstance(event, paddle.event.EndPass):
        costs.append(event.cost)

trainer.train(paddle.batch(ngrams(320, seed=rank), 16), 8, handler)
print("learned", costs[-1] < 0.9 * math.log(50))
print("digest", digest(parameters))
"""
ASYNC: dict[str, object] = {"async": {"is_async": True, "async_lagged_grad_discard_ratio": 1.6}}


def learn(cluster: Cluster, folder: Path, options: dict[str, object]) -> str:
    """Return the digest of the final values, which all trainers read."""
    said = run_job(cluster, PROGRAM, folder, options)
    assert all("learned True\n" in one for one in said), said
    (found,) = find_digests(said)
    return found


def test_one_trainer_computes_the_bits_of_synchronous_training(tmp_path: Path) -> None:
    many = Cluster(pservers=2, ports_num_for_sparse=1)
    assert learn(Cluster(), tmp_path, {}) == learn(many, tmp_path, ASYNC)


def test_the_published_optimizer_learns_with_four_trainers(tmp_path: Path) -> None:
    learn(Cluster(trainers=4, pservers=2), tmp_path, ASYNC)
