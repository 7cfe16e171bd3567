"""Wide-and-deep next to the same model in numpy alone: `python bench/wide_and_deep.py`.

26 ids, each of 100,000 of its own by Zipf's law (1.2), 13 numbers, rows of 10, batches of 512, SGD. The
numbers go to the output layer too: the wide part. Thin has one hidden layer of 16, deep three of 400. The
table is one for all ids, or one for each of the 26. numpy is what one would write by hand for this model and
nothing else: one `np.unique` over all ids, one gather, one thread of BLAS. Both sides get arrays, or a Fleet
program gets the samples as text of slots, by a dataset. Beside them is what PaddlePaddle reached of numpy.

Before that, the Python of a step: taking a batch of arrays, and a run of a static program that does nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import pslaunch.runtime as paddle
import pslaunch.runtime.fleet as fleet
from exchange import Address, Case, start_pserver
from pslaunch.runtime.engine.columns import Feeder
from pslaunch.runtime.engine.strategy import Strategy
from pslaunch.runtime.paddle2 import static
from pslaunch.runtime.v2 import building
from turns import Table, Turn, make_fresh_folder, parse_turns, start_workers, take_turns

SLOTS, NUMBERS, VOCABULARY, DIM, BATCH = 26, 13, 100_000, 10, 512
MODELS = {"thin": (16,), "deep": (400, 400, 400)}
RATE = 1e-4
STEPS = 20  # of a turn
TABLE = "table"
MODES = {"sync": Strategy(), "async": Strategy(mode="async"), "geo": Strategy(mode="geo", k_steps=10)}
DATASETS = ("QueueDataset", "InMemoryDataset")
# Speeds to those of numpy, measured with PaddlePaddle 2.6.2, 2 cores; mode sync crashes there.
WAYS = ("no pserver", "1 trainer, async", "2 trainers, async", "1 trainer, geo", "2 trainers, geo")
PADDLE = {
    "thin": dict(zip(WAYS, (0.37, 0.18, 0.19, 0.29, 0.38), strict=True)),
    "deep": dict(zip(WAYS, (0.22, 0.18, 0.32, 0.20, 0.36), strict=True)),
}
F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Batch = tuple[F32, Ids, Ids]  # numbers, ids from 0 in each slot, [SLOTS, BATCH], and labels


def make_batches(own: int) -> list[Batch]:
    """Made up samples; frequent ids are frequent."""
    rng = np.random.default_rng([1, own])
    return [
        (
            rng.standard_normal((BATCH, NUMBERS)).astype(np.float32),
            np.minimum(rng.zipf(1.2, (SLOTS, BATCH)) - 1, VOCABULARY - 1),
            rng.integers(0, 2, BATCH),
        )
        for _ in range(STEPS)
    ]


# --- numpy alone ---


class Numpy:
    """Forward, backward and SGD, by hand."""

    def __init__(self, hidden: Sequence[int]) -> None:
        rng = np.random.default_rng(1)
        sizes = [NUMBERS + SLOTS * DIM, *hidden]
        self.table = rng.normal(0, 0.01, (SLOTS * VOCABULARY, DIM)).astype(np.float32)
        self.weights = [rng.normal(0, 0.05, shape).astype(np.float32) for shape in itertools.pairwise(sizes)]
        self.biases = [np.zeros(size, np.float32) for size in hidden]
        self.last = rng.normal(0, 0.05, (sizes[-1], 2)).astype(np.float32)
        self.wide = rng.normal(0, 0.05, (NUMBERS, 2)).astype(np.float32)
        self.last_bias = np.zeros(2, np.float32)

    def step(self, numbers: F32, ids: Ids, labels: Ids) -> float:
        """One batch, with ids [SLOTS * BATCH]; returns its cost."""
        keys, places = np.unique(ids, return_inverse=True)
        rows = self.table[keys][places].reshape(SLOTS, BATCH, DIM)
        layers = [np.concatenate([numbers, *rows], axis=1)]
        for weight, bias in zip(self.weights, self.biases, strict=True):
            out = layers[-1] @ weight
            out += bias
            layers.append(np.maximum(out, 0, out=out))
        scores = layers[-1] @ self.last
        scores += numbers @ self.wide
        scores += self.last_bias
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        samples = np.arange(BATCH)
        cost = float(-np.log(scores[samples, labels]).mean())
        scores[samples, labels] -= 1
        grad = scores @ self.last.T
        self.last -= RATE * (layers[-1].T @ scores)
        self.wide -= RATE * (numbers.T @ scores)
        self.last_bias -= RATE * scores.sum(0)
        for i in reversed(range(len(self.weights))):
            grad *= layers[i + 1] > 0
            before = grad @ self.weights[i].T
            self.weights[i] -= RATE * (layers[i].T @ grad)
            self.biases[i] -= RATE * grad.sum(0)
            grad = before
        self.learn_rows(keys, places, grad[:, NUMBERS:])
        return cost

    def learn_rows(self, keys: Ids, places: Ids, grad: F32) -> None:
        """Rows of the same id are added up first, a column at a time: numpy's fastest way."""
        grads = grad.reshape(BATCH, SLOTS, DIM).transpose(2, 1, 0).reshape(DIM, -1)
        total = np.empty((len(keys), DIM), np.float32)
        for column, own in enumerate(grads):
            total[:, column] = np.bincount(places, weights=own, minlength=len(keys))
        self.table[keys] -= RATE * total


@contextmanager
def run_by_hand(model: str) -> Iterator[Callable[[], None]]:
    network = Numpy(MODELS[model])
    begins = np.arange(SLOTS)[:, None] * VOCABULARY
    data = [(numbers, (ids + begins).reshape(-1), labels) for numbers, ids, labels in make_batches(0)]

    def take_turn() -> None:
        for batch in data:
            network.step(*batch)

    yield take_turn


# --- ours ---


def build_cost(model: str, tables: int) -> Any:
    def make_embedding(slot: int) -> Any:
        rows = VOCABULARY * SLOTS // tables
        name = TABLE if tables == 1 else f"{TABLE}{slot}"
        param = paddle.attr.Param(name=name, initial_std=0.01, sparse_update=True)
        ids = paddle.layer.data(name=f"C{slot}", type=paddle.data_type.integer_value(rows))
        return paddle.layer.embedding(input=ids, size=DIM, param_attr=param)

    numbers = paddle.layer.data(name="numbers", type=paddle.data_type.dense_vector(NUMBERS))
    out = paddle.layer.concat(input=[numbers, *map(make_embedding, range(SLOTS))])
    for size in MODELS[model]:
        out = paddle.layer.fc(input=out, size=size, act=paddle.activation.Relu())
    out = paddle.layer.fc(input=[out, numbers], size=2, act=paddle.activation.Softmax())
    label = paddle.layer.data(name="label", type=paddle.data_type.integer_value(2))
    return paddle.layer.cross_entropy_cost(input=out, label=label)


@contextmanager
def run_by_runtime(
    model: str, tables: int, address: Address | None = None, mode: str = "", own: int = 0, trainers: int = 1
) -> Iterator[Callable[[], None]]:
    """The v2 API, with a pserver or without."""
    pserver = {"pservers": f"{address[0]}:{address[1]}"} if address else {}
    paddle.init(num_gradient_servers=trainers, trainer_id=own, trainer_count=1, **pserver)
    cost = build_cost(model, tables)
    optimizer = paddle.optimizer.Momentum(momentum=0, learning_rate=RATE)
    if mode:
        optimizer.strategy = MODES[mode]
    parameters = paddle.parameters.create(cost)
    trainer = paddle.trainer.SGD(cost, parameters, optimizer, is_local=address is None)
    begins = np.arange(SLOTS)[:, None] * (VOCABULARY if tables == 1 else 0)
    data = [
        {"numbers": numbers, "label": labels, **{f"C{i}": one for i, one in enumerate(ids + begins)}}
        for numbers, ids, labels in make_batches(own)
    ]
    yield lambda: trainer.train(lambda: iter(data), num_passes=1)


def write_slots(file: Path) -> None:
    """The batches of trainer 0 as text of slots."""
    with file.open("w") as lines:
        for numbers, ids, labels in make_batches(0):
            ids = ids + np.arange(SLOTS)[:, None] * VOCABULARY
            for own, keys, label in zip(numbers, ids.T.tolist(), labels, strict=True):
                words = " ".join(f"1 {key}" for key in keys)
                lines.write(f"{NUMBERS} {' '.join(f'{x:.4f}' for x in own)} {words} 1 {label}\n")


@contextmanager
def run_by_fleet(model: str, dataset: str, address: Address) -> Iterator[Callable[[], None]]:
    """The model of build_cost() as a Fleet program, with a dataset of a file of lines."""
    paddle.enable_static()
    servers = [f"{address[0]}:{address[1]}"]
    fleet.init(fleet.UserDefinedRoleMaker(worker_num=1, server_endpoints=servers))
    numbers = static.data("numbers", [None, NUMBERS], "float32")
    *ids, label = (static.data(f"C{i}", [None, 1], "int64") for i in range(SLOTS + 1))
    param = paddle.ParamAttr(name=TABLE, initializer=paddle.nn.initializer.Normal(std=0.01))
    size = [SLOTS * VOCABULARY, DIM]
    rows = [static.nn.embedding(one, size, is_sparse=True, param_attr=param) for one in ids]
    out = paddle.concat([numbers, *(paddle.reshape(one, [-1, DIM]) for one in rows)], axis=1)
    for hidden in MODELS[model]:
        out = static.nn.fc(out, hidden, activation="relu")
    guess = paddle.add(static.nn.fc(out, 2), static.nn.fc(numbers, 2))
    cost = paddle.mean(paddle.nn.functional.softmax_with_cross_entropy(guess, label))
    fleet.distributed_optimizer(paddle.optimizer.SGD(RATE), fleet.DistributedStrategy()).minimize(cost)
    executor = static.Executor(paddle.CPUPlace())
    executor.run(static.default_startup_program())
    fleet.init_worker()
    samples = getattr(paddle.distributed, dataset)()
    samples.init(batch_size=BATCH, use_var=[numbers, *ids, label])
    file = Path(dataset)
    write_slots(file)
    samples.set_filelist([str(file)])

    def take_turn() -> None:
        if dataset == "InMemoryDataset":
            samples.load_into_memory()
        executor.train_from_dataset(static.default_main_program(), samples)

    yield take_turn
    fleet.stop_worker()


# --- contenders ---


@contextmanager
def start_contender(
    folder: Path, model: str, tables: int = 1, *, trainers: int = 0, mode: str = "", dataset: str = ""
) -> Iterator[Turn]:
    """`tables` 0: numpy; `trainers` 0: no pserver. A turn is the seconds of an example."""
    with ExitStack() as stack:
        works: list[Any] = [partial(run_by_runtime, model, tables) if tables else partial(run_by_hand, model)]
        if trainers:
            case = Case(what="step", size=0, workers=trainers)
            address = stack.enter_context(start_pserver(case))
            works = [
                partial(run_by_runtime, model, tables, address, mode, own, trainers)
                for own in range(trainers)
            ]
            if dataset:
                works = [partial(run_by_fleet, model, dataset, address)]
        turn = stack.enter_context(start_workers(works, folder))
        yield lambda: turn() / (STEPS * BATCH * len(works))


CONTENDERS: dict[str, dict[str, Any]] = {
    "numpy": {"tables": 0},
    "no pserver": {},
    "1 trainer, 26 tables": {"tables": SLOTS, "trainers": 1},
    **{f"1 trainer, {mode}": {"trainers": 1, "mode": mode} for mode in MODES},
    **{f"2 trainers, {mode}": {"trainers": 2, "mode": mode} for mode in MODES},
    **{f"1 trainer, lines by {name}": {"trainers": 1, "dataset": name} for name in DATASETS},
}
TARGETS = {
    "thin": {
        "no pserver": ">= 1.2",
        "1 trainer, sync": ">= 0.75",
        "1 trainer, 26 tables": ">= 0.7",
        "2 trainers, async": ">= 3.2",
        "2 trainers, geo": ">= 2.5",
    },
    "deep": {
        "no pserver": ">= 1.0",
        "1 trainer, sync": ">= 0.9",
        "2 trainers, async": ">= 2.2",
        "2 trainers, geo": ">= 2.2",
    },
}


def measure_steps(turns: int) -> None:
    """Print what a step costs beside its operations."""
    program = building.make_program([build_cost("thin", tables=1)])
    feeder = Feeder(building.list_data(program))
    numbers, ids, labels = make_batches(0)[0]
    batch = {"numbers": numbers, "label": labels, **{f"C{i}": one for i, one in enumerate(ids)}}
    paddle.enable_static()
    word = static.data("word", [None, 1], "float32")
    executor = static.Executor(paddle.CPUPlace())
    executor.run(static.default_startup_program())
    feed = {"word": numbers[:1, :1]}
    runs: dict[str, tuple[float, Callable[[], object]]] = {
        f"a batch of {BATCH} x {NUMBERS + SLOTS} as arrays": (50e-6, lambda: feeder(batch)),
        "`exe.run` of a program without an operation": (
            20e-6,
            lambda: executor.run(feed=feed, fetch_list=[word]),
        ),
    }
    table = Table("A step beside its operations", beside="limit")
    for what, (limit, run) in runs.items():
        took = statistics.median(min(timeit.repeat(run, number=10)) / 10 for _ in range(turns))
        table.add_row(what, f"{took * 1e6:.0f} µs", f"{limit * 1e6:.0f} µs", took / limit, "<= 1.0")


def main() -> None:
    """Print the tables."""
    turns = parse_turns(__doc__, 9)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with make_fresh_folder() as folder, contextlib.chdir(folder):
        measure_steps(turns)
    table = Table("Wide-and-deep, examples a second", beside=f"numpy {np.__version__} alone")
    for model in MODELS:
        with ExitStack() as stack:
            folder = stack.enter_context(make_fresh_folder())
            contenders = {
                name: stack.enter_context(start_contender(folder, model, **options))
                for name, options in CONTENDERS.items()
            }
            times = take_turns(contenders, turns)
        plain = times.pop("numpy")
        for name, own in times.items():
            peer = f", Paddle {PADDLE[model][name]:.2f} of it" if name in PADDLE[model] else ""
            table.add_speeds(f"{model}, {name}", own, plain, TARGETS[model].get(name, ""), peer)


if __name__ == "__main__":
    main()
