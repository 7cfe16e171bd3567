"""Entry rules of tables on pservers, against the model, for any number of shards and with cut connections."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pslaunch.runtime.client.client import Client, Init
from pslaunch.runtime.client.dialer import ClientError
from pslaunch.runtime.engine.entry import ANY, CountFilterEntry, EntryAttr, ProbabilityEntry, ShowClickEntry
from pslaunch.runtime.engine.kernel_numbers import Mode, Optim
from pslaunch.runtime.engine.optimizer import make_schedule
from support import reference
from support.cluster import Cluster, run_job
from support.proxy import cutting
from support.pservers import cluster, run_trainers

pytestmark = pytest.mark.asan

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]

OPTIM = Optim(method="adagrad", learning_rate=0.1)
INIT = Init(kind="normal", mean=0.0, std=0.1)
KEYS, DIM, TRAINERS, STEPS, PASSES = 300, 4, 3, 4, 3
ALL = np.arange(KEYS, dtype=np.uint64)
ENTRIES = [CountFilterEntry(3), ProbabilityEntry(0.25), ShowClickEntry("show", "click", 2.0, 0.5)]


def make_push(entry: EntryAttr, trainer: int, step: int) -> tuple[U64, F32]:
    """Return keys, some much more often than others, and their rows."""
    rng = np.random.default_rng([5, trainer, step])
    keys = np.unique((KEYS * rng.random(60) ** 3).astype(np.uint64))
    rows = rng.standard_normal((len(keys), DIM), dtype=np.float32)
    if isinstance(entry, ShowClickEntry):
        said = rng.integers(0, 3, (len(keys), 2)).astype(np.float32)
        rows = np.concatenate([said, rows], axis=1)
    return rng.permutation(keys), rows


@dataclass
class Result:
    """Rows given back and rows read, as a trainer has seen them."""

    gone: list[int] = field(default_factory=list)
    rows: list[F32] = field(default_factory=list)


def train(c: Client, trainer: int, entry: EntryAttr) -> Result:
    result = Result()
    with c:
        c.create_sparse("e", KEYS, DIM, OPTIM, INIT, entry)
        c.barrier()
        for own in range(PASSES):
            for step in range(STEPS):
                keys, rows = make_push(entry, trainer, own * STEPS + step)
                c.push_pull({}, {}, {"e": (keys, rows)})
            c.end_pass()
            result.gone.append(c.shrink("e", score=1.5, unseen=1, decay=0.75))
            result.rows.append(c.pull_rows("e", ALL))
            c.barrier()  # others go on
        c.finish()
    return result


def expect(entry: EntryAttr) -> Result:
    """Compute the same with the model."""
    method, lr, _, _, _, *numbers = OPTIM.pack()
    rule = reference.Rule(method=method, lr=lr, numbers=tuple(numbers))
    table = reference.SparseTable(
        dim=DIM, rule=rule, table=reference.hash_name("e"), kind=0, std=0.1, entry=entry.pack()
    )
    result = Result()
    for own in range(PASSES):
        for step in range(STEPS):
            for trainer in range(TRAINERS):
                table.add(*make_push(entry, trainer, own * STEPS + step))
            table.commit()
        table.passes += 1
        result.gone.append(table.shrink(0.75, 1.5, 1))
        result.rows.append(table.read(ALL))
    return result


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
@pytest.mark.parametrize(("pservers", "cuts"), [(3, 24)])
def test_rows_are_those_of_the_model(entry: EntryAttr, pservers: int, cuts: int) -> None:
    """Deterministic: the same bits for any number of shards, however often connections break."""
    at = [600 + 170 * i for i in range(cuts)]
    with cluster(pservers, trainers=TRAINERS) as found, cutting(found.endpoints, at) as proxies:
        endpoints = [proxy.endpoint for proxy in proxies]
        results = run_trainers(TRAINERS, lambda t: train(found.client(t, endpoints=endpoints), t, entry))
        assert found.codes() == [0] * pservers
        assert cuts == 0 or sum(proxy.cut for proxy in proxies) > cuts / 2
    want = expect(entry)
    assert sum(want.gone) > 0
    for t, result in enumerate(results):
        assert result.gone == (want.gone if t == 0 else [0] * PASSES)
        for got, rows in zip(result.rows, want.rows, strict=True):
            np.testing.assert_array_equal(got, rows)


def test_asynchronous_pushes_are_counted_once_each() -> None:
    """Each key needs two pushes; with an SGD of rate 1 all further ones are in its row."""
    plain = Optim(method="sgd", learning_rate=1.0)
    keys, ones = np.arange(50, dtype=np.uint64), np.ones((50, DIM), np.float32)

    def push(t: int) -> F32:
        with found.client(t, mode="async", endpoints=[proxy.endpoint for proxy in proxies]) as c:
            c.create_sparse("e", 50, DIM, plain, Init(kind="normal", mean=0.0, std=0.0), CountFilterEntry(2))
            c.barrier()
            for _ in range(20):
                c.push_pull({}, {}, {"e": (keys, ones)})
            c.end_pass()
            rows = c.pull_rows("e", keys)
            c.barrier()
            c.finish()
        return rows

    with cluster(trainers=2) as found, cutting(found.endpoints, [3000 * i for i in range(1, 12)]) as proxies:
        for rows in run_trainers(2, push):
            assert (rows == -39).all()
        assert found.codes() == [0]


def refuse(entry: EntryAttr, mode: Mode, act: str) -> str:
    """Return the text of a pserver's refusal of one trainer of two."""
    with cluster(trainers=1) as found:
        try:
            with found.client(0, mode=mode) as c:
                c.create_sparse("e", KEYS, DIM, OPTIM, INIT, entry)
                if act == "shrink":
                    c.shrink("e", score=1.0)
                elif act == "push":
                    rows = np.full((2, 2 + DIM), np.nan, np.float32)
                    c.push_pull({}, {}, {"e": (np.array([7, 8], np.uint64), rows)})
        except ClientError as e:
            return str(e)
        finally:
            for one in found.processes:
                one.proc.terminate()
    return ""


@pytest.mark.parametrize(
    ("entry", "mode", "act", "text"),
    [
        (ANY, "sync", "shrink", "'e' can't shrink, because it counts nothing: create it with an entry rule"),
        (CountFilterEntry(2), "geo", "", "entry rule count: expected a table that is not of mode geo"),
        (ENTRIES[2], "sync", "push", "'e': key 7: nan shows and nan clicks, expected 0 to 16777216"),
    ],
)
def test_wrong_rules_are_refused_in_words(entry: EntryAttr, mode: Mode, act: str, text: str) -> None:
    assert re.search(text, refuse(entry, mode, act))


def test_wrong_numbers_of_shrink_are_errors() -> None:
    with cluster(trainers=1) as found, found.client(0) as c:
        c.create_sparse("e", KEYS, DIM, OPTIM, INIT, CountFilterEntry(1))
        with pytest.raises(ValueError, match="shrink of 'e': score=nan, expected 0 to 16777216"):
            c.shrink("e", score=float("nan"))
        with pytest.raises(ValueError, match="shrink of 'e': unseen=-1, expected 0 to 4294967295"):
            c.shrink("e", score=1.0, unseen=-1)
        c.finish()


def test_trainer_that_is_not_the_first_may_not_shrink() -> None:
    def act(t: int) -> str:
        try:
            with found.client(t) as c:
                c.create_sparse("e", KEYS, DIM, OPTIM, INIT, CountFilterEntry(1))
                c.barrier()
                if t == 1:
                    c._calls.call(lambda: c._core.shrink(0, 1.0, 1.0, 0))
        except ClientError as e:
            return str(e)
        return ""

    with cluster(trainers=2) as found:
        texts = run_trainers(2, act)
        for one in found.processes:
            one.proc.terminate()
    assert "trainer 1 shrinks 'e'; only trainer 0 may" in texts[1]


PROGRAM = """
import json, os, sys
import numpy as np
import pslaunch.runtime as paddle
from pslaunch.runtime import entry

options = json.loads(sys.argv[1])
rank = os.environ["PADDLE_INIT_TRAINER_ID"]
samples = np.load("samples.npz")
paddle.init(seed=5)
word = paddle.layer.data(name="word", type=paddle.data_type.integer_value(KEYS))
goal, show, click = (
    paddle.layer.data(name=name, type=paddle.data_type.dense_vector(size))
    for name, size in (("goal", DIM), ("show", 1), ("click", 1))
)
rule = getattr(entry, options["rule"])(*options["numbers"])
attr = paddle.attr.Param(name="e", sparse_update=True, initial_std=0.1, entry=rule)
guess = paddle.layer.embedding(input=word, size=DIM, param_attr=attr)
cost = paddle.layer.square_error_cost(input=guess, label=goal)
optimizer = paddle.optimizer.AdaGrad(
    learning_rate=0.1, regularization=paddle.optimizer.L2Regularization(8e-4), **options["schedule"]
)
parameters = paddle.parameters.create(cost)
trainer = paddle.trainer.SGD(
    cost, parameters, optimizer, is_local=options["alone"], extra_layers=[show, click]
)

def reader():
    numbers = [samples[f"{name}{rank}"] for name in ("word", "goal", "show", "click")]
    for word, goal, show, click in zip(*numbers):
        yield int(word), goal, [show], [click]

trainer.train(paddle.batch(reader, BATCH), PASSES)
np.save(f"rows{rank}", parameters["e"])
"""
BATCH, BATCHES = 16, 6
TRAININGS: list[tuple[EntryAttr, dict[str, object]]] = [
    (
        CountFilterEntry(5),
        {"learning_rate_schedule": "poly", "learning_rate_decay_a": 0.01, "learning_rate_decay_b": 0.5},
    ),
    (
        ENTRIES[1],
        {"learning_rate_schedule": "linear", "learning_rate_decay_a": 1e-4, "learning_rate_decay_b": 0.02},
    ),
    (ENTRIES[2], {"learning_rate_schedule": "pass_manual", "learning_rate_args": "0:1.0,1:0.5,2:0.25"}),
]


@dataclass(frozen=True)
class Samples:
    """Samples of a trainer: ids, some much more often than others, with goals, shows and clicks."""

    word: U64
    goal: F32
    show: F32
    click: F32

    @classmethod
    def draw(cls, trainer: int) -> Samples:
        rng, n = np.random.default_rng([7, trainer]), BATCH * BATCHES
        show = rng.integers(1, 4, n)
        return cls(
            word=(KEYS * rng.random(n) ** 3).astype(np.uint64),
            goal=rng.standard_normal((n, DIM), dtype=np.float32),
            show=show.astype(np.float32),
            click=rng.integers(0, show + 1).astype(np.float32),
        )

    def make_pushes(self, batch: int, table: reference.SparseTable) -> tuple[U64, F32]:
        """Return the unique ids of a batch, and their sums of gradients, of shows and clicks if need be."""
        part = slice(batch * BATCH, (batch + 1) * BATCH)
        keys, index = reference.find_rows(self.word[part].astype(np.int64))
        grads = np.float32(2) * (table.read(self.word[part]) - self.goal[part])
        if table.extra:
            grads = np.concatenate([self.show[part, None], self.click[part, None], grads], axis=1)
        total = np.empty((len(keys), grads.shape[1]), np.float32)
        reference.sum_rows(total, index, grads)
        return keys, total


def train_with_numpy(
    entry: EntryAttr, schedule: dict[str, object], samples: list[Samples]
) -> reference.SparseTable:
    """Return the table after the same training with the model."""
    optim = Optim(method="adagrad", learning_rate=0.1, decay=8e-4)
    method, lr, l1, l2, clip, *numbers = optim.pack()
    rule = reference.Rule(method=method, lr=lr, l1=l1, l2=l2, clip=clip, numbers=tuple(numbers))
    name = reference.hash_name("e")
    table = reference.SparseTable(dim=DIM, rule=rule, seed=5, table=name, std=0.1, entry=entry.pack())
    seen = 0
    for _ in range(PASSES):
        for batch in range(BATCHES):
            pushes = [own.make_pushes(batch, table) for own in samples]
            for keys, rows in pushes:
                table.add(keys, rows)
            seen += BATCH * len(samples)
            rate = reference.find_scheduled_rate(make_schedule(schedule), lr, seen, table.passes)
            table.rule = replace(rule, lr=float(rate))
            table.commit()
        table.passes += 1
    return table


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    text = PROGRAM
    for name in ("KEYS", "DIM", "PASSES", "BATCH"):
        text = text.replace(name, str(globals()[name]))
    path.write_text(text)
    return path


def write_samples(folder: Path, trainers: int) -> list[Samples]:
    """Write the samples of all trainers for the program, and return them."""
    samples = [Samples.draw(trainer) for trainer in range(trainers)]
    named = {f"{name}{t}": value for t, own in enumerate(samples) for name, value in vars(own).items()}
    np.savez(folder / "samples.npz", **named)
    return samples


@pytest.mark.parametrize(("entry", "schedule"), TRAININGS)
def test_program_with_a_rule_and_a_schedule_trains_as_numpy(
    program: Path, entry: EntryAttr, schedule: dict[str, object]
) -> None:
    folder, samples = program.parent, write_samples(program.parent, 2)
    numbers = [getattr(entry, name) for name in entry.__dataclass_fields__]
    options = {"rule": type(entry).__name__, "numbers": numbers, "schedule": schedule, "alone": False}
    run_job(Cluster(trainers=2, pservers=2), program, folder, options)
    table = train_with_numpy(entry, schedule, samples)
    assert 0 < len(table.rows) < len({key for own in samples for key in own.word.tolist()})
    for trainer in range(2):
        np.testing.assert_array_equal(np.load(folder / f"rows{trainer}.npy"), table.read(ALL))


def test_trainer_alone_ignores_shows_and_clicks(program: Path) -> None:
    folder, samples = program.parent, write_samples(program.parent, 1)
    options = {"rule": "ShowClickEntry", "numbers": ["show", "click", 1e6], "schedule": {}, "alone": True}
    with Cluster().training(program, folder, options) as (trainer,):
        assert trainer.wait() == 0, trainer.output()
    table = train_with_numpy(ANY, {}, samples)
    np.testing.assert_array_equal(np.load(folder / "rows0.npy"), table.read(ALL))
