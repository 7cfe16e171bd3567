"""The word2vec example in every mode, next to one process with as many samples: bench/convergence.py.

The cost of the test text after the last pass: 2 and 4 trainers with 2 ports, several seeds. The trainers
share a batch. geo exchanges every 10 steps, is next to one process with SGD, and has its learning rate times
the number of trainers, since it takes the mean of what they did. bench/convergence.svg shows each seed.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import pickle
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pslaunch.runtime as paddle
from exchange import Address, Case, start_pserver
from pslaunch.runtime.engine.strategy import Strategy
from turns import Table, make_fresh_folder

EXAMPLE = Path(__file__).parents[1] / "examples" / "word2vec"
BATCH = 256
ADAGRAD_RATE, SGD_RATE = 3e-2, 2e-3
MODES = {
    "sync": Strategy(),
    "half_async": Strategy(mode="half_async", discard_ratio=1.6),
    "async": Strategy(mode="async", pending=1),
    "geo": Strategy(mode="geo", k_steps=10),
}
SPAWN = mp.get_context("spawn")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One training: trainers 0 means one process without pservers."""

    workspace: Path
    samples: int  # of a pass, of all trainers
    passes: int
    seed: int
    mode: str
    trainers: int = 0

    @property
    def is_geo(self) -> bool:
        return MODES[self.mode].mode == "geo"


def make_reader(plan: Plan, name: str, own: int, count: int) -> Callable[[], Iterator[tuple[int, ...]]]:
    """The samples of every `count`-th line from `own` on."""
    lines = (plan.workspace / f"{name}_data_dir" / name / f"{name}.txt").read_text().splitlines()
    chosen = lines[own : plan.samples if name == "train" else None : count]
    found = [tuple(map(int, line.split(","))) for line in chosen]
    return lambda: iter(found)


def make_optimizer(plan: Plan) -> Any:
    if not plan.is_geo:
        decay = paddle.optimizer.L2Regularization(8e-4)
        made: Any = paddle.optimizer.AdaGrad(learning_rate=ADAGRAD_RATE, regularization=decay)
    else:
        made = paddle.optimizer.SGD(learning_rate=SGD_RATE * max(1, plan.trainers))
    if plan.trainers:
        made.strategy = MODES[plan.mode]
    return made


def run_trainer(plan: Plan, own: int, address: Address | None, folder: Path, answer: Connection) -> None:
    """Train as one trainer of a plan; trainer 0 answers the cost of the test text."""
    os.chdir(folder)  # the runtime writes its log there
    said = os.open(f"said{own}", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.path.insert(0, str(EXAMPLE))
    import train

    count = max(1, plan.trainers)
    pservers = {"pservers": f"{address[0]}:{address[1]}", "ports_num": 2} if address else {}
    paddle.init(num_gradient_servers=count, trainer_id=own, seed=plan.seed, **pservers)
    cost = train.build_network(len(pickle.loads((plan.workspace / "word_dict.pickle").read_bytes())))
    parameters = paddle.parameters.create(cost)
    trainer = paddle.trainer.SGD(cost, parameters, make_optimizer(plan), is_local=address is None)
    trainer.train(paddle.batch(make_reader(plan, "train", own, count), BATCH // count), plan.passes)
    if own == 0:
        answer.send(trainer.test(paddle.batch(make_reader(plan, "test", 0, 1), BATCH)).cost)


def find_cost(plan: Plan) -> float:
    """Run a plan; return the cost of the test text."""
    with ExitStack() as stack:
        folder = stack.enter_context(make_fresh_folder())
        address = None
        if plan.trainers:
            case = Case(what="step", size=0, workers=plan.trainers, ports=2)
            address = stack.enter_context(start_pserver(case))
        ours, theirs = SPAWN.Pipe()
        processes = [
            SPAWN.Process(target=run_trainer, args=(plan, own, address, folder, theirs))
            for own in range(max(1, plan.trainers))
        ]
        for process in processes:
            process.start()
        theirs.close()
        cost = float(ours.recv())
        for process in processes:
            process.join()
        return cost


def draw(points: list[tuple[str, list[float], float]], path: Path) -> None:
    """Write the points of each row, percent above one process, and their limit, as an SVG."""
    low = min(0.0, *(value for _, values, _ in points for value in values)) - 1
    high = max(limit for *_, limit in points) + 1
    left, width, row = 190, 460, 26

    def find_x(value: float) -> float:
        return left + width * (value - low) / (high - low)

    height = row * (len(points) + 2)
    zero = find_x(0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 20}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<path d="M{zero:.1f} 8V{height - 2 * row + 10}" stroke="#888"/>',
    ]
    for i, (name, values, limit) in enumerate(points):
        y = row * (i + 1)
        parts.append(f'<text x="8" y="{y + 4}">{name}</text>')
        parts.append(f'<path d="M{find_x(limit):.1f} {y - 9}v18" stroke="#c33" stroke-width="2"/>')
        parts += [f'<circle cx="{find_x(v):.1f}" cy="{y}" r="4" fill="#247" opacity="0.7"/>' for v in values]
    parts.append(
        f'<text x="8" y="{height - 10}">cost of the test text, in percent above one process with as many '
        "samples (0: grey); red: the limit</text></svg>"
    )
    path.write_text("\n".join(parts) + "\n")


def main() -> None:
    """Print the table and draw it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", nargs="*", help=f"of {', '.join(MODES)} (all)")
    parser.add_argument("--seeds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--passes", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--samples", type=int, default=40_000, help="of a pass (%(default)s)")
    given = parser.parse_args()
    modes = {name: MODES[name] for name in given.mode or MODES}
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    points = []
    with make_fresh_folder() as folder:
        subprocess.run(
            [sys.executable, EXAMPLE / "prepare.py", folder], check=True, stdout=subprocess.DEVNULL
        )

        def find_costs(mode: str, trainers: int) -> list[float]:
            numbers = {"samples": given.samples, "passes": given.passes, "mode": mode}
            return [
                find_cost(Plan(workspace=folder, seed=seed, trainers=trainers, **numbers))
                for seed in range(1, given.seeds + 1)
            ]

        table = Table("Convergence, cost of the test text", beside="one process with as many samples")
        alone: dict[str, list[float]] = {}
        for name, strategy in modes.items():
            kind = "geo" if strategy.mode == "geo" else "sync"
            beside = alone[kind] = alone.get(kind) or find_costs(kind, 0)
            limit = 1.05 if strategy.mode == "geo" else 1.03
            for trainers in (2, 4):
                costs = find_costs(name, trainers)
                ratios = [cost / one for cost, one in zip(costs, beside, strict=True)]
                shown = f"{statistics.mean(costs):.3f}", f"{statistics.mean(beside):.3f}"
                table.add_row(f"{name}, {trainers} trainers", *shown, statistics.mean(ratios), f"<= {limit}")
                points.append(
                    (f"{name}, {trainers} trainers", [100 * (r - 1) for r in ratios], 100 * (limit - 1))
                )
    if not given.mode:
        draw(points, Path(__file__).with_suffix(".svg"))


if __name__ == "__main__":
    main()
