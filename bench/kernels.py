"""The kernels of layers next to numpy's, on the shapes of the examples: `python bench/kernels.py`.

Forward, gradient of the weights and of the input of word2vec's layers, for several batches, and of
wide-and-deep's; then softmax with its cost; then steps of 26 slots of 10 ids, whose rows are summed, beside
the operations one by one. One thread on both sides; a turn is the fastest of some calls.
`OPENBLAS_CORETYPE=Haswell` compares the kernels for AVX2 of both.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from unittest import mock

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from ngram import CONTEXT, EMBEDDING, HIDDEN, WORDS
from pslaunch.runtime import _core
from pslaunch.runtime.engine.arrays import Sequences
from pslaunch.runtime.engine.graph import BATCH as FREE
from pslaunch.runtime.engine.graph import Graph, Value
from pslaunch.runtime.engine.ops import Draw, make_value
from pslaunch.runtime.engine.ops.sequence import Pool
from pslaunch.runtime.engine.param_config import ParamConfig
from pslaunch.runtime.engine.plan import Plan
from turns import Table, compute_ratio, parse_turns, take_turns
from wide_and_deep import BATCH, DIM, MODELS, NUMBERS, SLOTS

THIN, DEEP = MODELS["thin"], MODELS["deep"]
# Batches of a layer, its inputs and outputs.
LAYERS = {
    "hidden": ((32, 256, 512), CONTEXT * EMBEDDING, HIDDEN),
    "words": ((32, 256, 512), HIDDEN, WORDS),
    "first of deep": ((BATCH,), NUMBERS + SLOTS * DIM, DEEP[0]),
    "second of deep": ((BATCH,), DEEP[0], DEEP[1]),
    "last of deep": ((BATCH,), DEEP[-1], 2),
    "first of thin": ((BATCH,), NUMBERS + SLOTS * DIM, THIN[0]),
    "last of thin": ((BATCH,), THIN[-1], 2),
}
CALLS = 5  # of a turn
IDS, COLS, VOCABULARY = 10, 16, 1_000_000  # of a slot with several ids
AVX2 = 2  # for choose_build
F32 = npt.NDArray[np.float32]


def find_fastest(call: Callable[[], object]) -> float:
    """Seconds of the fastest of some calls."""
    times = []
    for _ in range(CALLS):
        begin_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin_s)
    return min(times)


def make_products() -> Iterator[tuple[str, F32, F32]]:
    """Yield the name and the factors of each product of a step, with the strides that they have there."""
    rng = np.random.default_rng(1)
    for name, (batches, inputs, outputs) in LAYERS.items():
        for batch in batches:
            x = rng.standard_normal((batch, inputs)).astype(np.float32)
            w = rng.standard_normal((inputs, outputs)).astype(np.float32)
            grad = rng.standard_normal((batch, outputs)).astype(np.float32)
            yield f"{name}, batch {batch}: forward", x, w
            yield f"{name}, batch {batch}: gradient of the weights", x.T, grad
            yield f"{name}, batch {batch}: gradient of the input", grad, w.T


def add_row(
    table: Table, name: str, ours: Callable[[], object], numpy: Callable[[], object], turns: int
) -> None:
    """Measure both sides in turns."""
    ours(), numpy()
    times = take_turns({"ours": lambda: find_fastest(ours), "numpy": lambda: find_fastest(numpy)}, turns)
    found, beside = (f"{statistics.median(times[side]) * 1e6:,.0f} µs" for side in ("ours", "numpy"))
    table.add_row(name, found, beside, compute_ratio(times["numpy"], times["ours"]), ">= 0.9")


def compute_softmax(scores: F32) -> F32:
    """In place; returns the sums of the rows."""
    scores -= scores.max(axis=1)[:, None]
    np.exp(scores, out=scores)
    total: F32 = scores.sum(axis=1)
    scores *= (np.float32(1) / total)[:, None]
    return np.log(total)


def measure(turns: int) -> None:
    """Print one table for the build in use."""
    table = Table(f"Kernels, {_core.get_build()}, speed", beside=f"numpy {np.__version__}")
    for name, a, b in make_products():
        out, other = (np.zeros((len(a), b.shape[1]), np.float32) for _ in range(2))
        add_row(
            table,
            name,
            lambda a=a, b=b, out=out: _core.matmul(a, b, out, None, 1),  # type: ignore[misc]
            lambda a=a, b=b, out=other: np.matmul(a, b, out=out),  # type: ignore[misc]
            turns,
        )
    rng = np.random.default_rng(1)
    scores = rng.standard_normal((512, WORDS)).astype(np.float32)
    labels, cost = rng.integers(0, WORDS, 512), np.empty(512, np.float32)
    add_row(
        table,
        "softmax with cost, 512 x 2,073",
        lambda: _core.cross_entropy(scores, labels, cost, 1),
        lambda: compute_softmax(scores),
        turns,
    )


def make_slots(tables: int, *, apart: bool) -> Callable[[], object]:
    """Return a step of SLOTS slots from their ids to the gradients of the tables' rows."""
    program, rng = Graph(), np.random.default_rng(1)
    pools, feeds = [], {}
    for i in range(SLOTS):
        ids = program.add(Value(name=f"ids{i}", op="data", shape=(FREE,), kind="id", is_sequence=True))
        table = ParamConfig(name=f"table{i % tables}", rows=VOCABULARY, cols=COLS)
        attrs = {"dim": COLS, "padding": None}
        rows = program.add(make_value("lookup", [ids], name=f"rows{i}", attrs=attrs, params=[table]))
        pools.append(program.add(make_value("pool", [rows], name=f"pool{i}", attrs={"by": "sum"})))
        drawn = np.minimum(rng.zipf(1.2, BATCH * IDS), VOCABULARY) - 1
        feeds[ids.name] = Sequences(drawn, np.arange(0, BATCH * IDS + 1, IDS))
    joined = program.add(make_value("concat", pools, name="joined", attrs={"axis": 1}))
    whole = {"axis": None, "keepdim": False}
    loss = program.add(make_value("sum", [joined], name="loss", attrs=whole))
    keep = mock.patch.object(Pool, "choose", lambda value, program, trains: (Pool, value.inputs))
    with keep if apart else nullcontext():
        plan = Plan(program, [loss], loss)
    keys, draw = plan.prepare(feeds).keys, Draw(seed=1, trainer=0, step=1)
    values = {name: np.ones((len(own), COLS), np.float32) for name, own in keys.items()}
    return lambda: plan.compute(plan.prepare(feeds), {}, values, draw, {})


def measure_slots(turns: int) -> None:
    """Print the table of slots with several ids."""
    table = Table(f"{SLOTS} slots of {IDS} ids, batch {BATCH}, rows of {COLS}: a step", beside="one by one")
    for tables in (SLOTS, 1):
        runs = {"ours": make_slots(tables, apart=False), "beside": make_slots(tables, apart=True)}
        times = take_turns({name: lambda run=run: find_fastest(run) for name, run in runs.items()}, turns)  # type: ignore[misc]
        ours, beside = (f"{1e3 * statistics.median(times[name]):.2f} ms" for name in runs)
        table.add_row(
            f"tables: {tables}", ours, beside, compute_ratio(times["beside"], times["ours"]), ">= 2"
        )


def main() -> None:
    """Print the tables."""
    turns = parse_turns(__doc__, 9)
    if os.environ.get("OPENBLAS_CORETYPE") == "Haswell":
        _core.choose_build(AVX2)
    with threadpool_limits(limits=1):
        measure(turns)
        measure_slots(turns)


if __name__ == "__main__":
    main()
