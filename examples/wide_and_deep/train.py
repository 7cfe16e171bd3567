"""Trains wide-and-deep with parameter servers, alone or as a job:

    python make_data.py
    pslaunch local --server_num 2 --worker_num 2 train.py --mode async

Each worker trains on its share of the files of DIR/train. Before and after each pass all show the AUC for the
lines of DIR/test, which nobody has learned from. For Criteo's own data put labelled lines in both folders, in
DIR/train as several files: one or more for each worker.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from model import WideDeepModel
from reader import Sample, list_files, make_reader

import pslaunch.runtime as paddle
import pslaunch.runtime.fleet as fleet
import pslaunch.runtime.fleet.base.role_maker as role_maker

BATCH = 64
LEARNING_RATE = 0.2
K_STEPS = 10  # of geo, from an exchange to the next
BUCKETS = 4096  # of chances, for the AUC
SHOWN = 100  # batches


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mode", choices=("sync", "async", "geo"), default="sync", help="default: %(default)s"
    )
    parser.add_argument("--data", type=Path, default=Path("data"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--passes", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--output", type=Path, metavar="DIR", help="save the parameters here")
    return parser.parse_args()


def minimize(cost: paddle.static.Variable, mode: str) -> None:
    """Add SGD to the program."""
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = mode != "sync"
    if mode == "geo":
        strategy.a_sync_configs = {"k_steps": K_STEPS}
    # In async each worker's steps count alone; else the workers' mean does, and a pass has fewer steps.
    rate = LEARNING_RATE * (1 if mode == "async" else fleet.worker_num())
    fleet.distributed_optimizer(paddle.optimizer.SGD(learning_rate=rate), strategy).minimize(cost)


def compute_auc(clicks: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> float:
    """Return the area under the ROC curve, from counts by chance, ascending."""
    below = np.cumsum(others) - others / 2
    return float((clicks * below).sum() / max(clicks.sum() * others.sum(), 1.0))


def measure(
    exe: paddle.static.Executor, model: WideDeepModel, program: paddle.static.Program, files: list[str]
) -> float:
    """Return the AUC of the current parameters for the lines of these files, each read by one worker."""

    def read_own() -> Iterator[Sample]:
        return itertools.islice(make_reader(files)(), fleet.worker_index(), None, fleet.worker_num())

    counts = np.zeros((2, BUCKETS))
    for samples in paddle.batch(read_own, batch_size=1024)():
        columns = [np.array(column) for column in zip(*samples, strict=True)]
        feed = {one.name: column for one, column in zip(model.inputs, columns, strict=True)}
        feed["dense_input"] = feed["dense_input"].astype("float32")
        (chances,) = exe.run(program=program, feed=feed, fetch_list=[model.chance])
        places = (chances[:, 0] * (BUCKETS - 1)).astype(int)
        for label in (0, 1):
            counts[label] += np.bincount(places[columns[-1][:, 0] == label], minlength=BUCKETS)
    others, clicks = fleet.util.all_reduce(counts)
    return compute_auc(clicks, others)


def train_pass(exe: paddle.static.Executor, model: WideDeepModel, number: int) -> None:
    """Train on all batches of the loader."""
    costs: list[float] = []
    model.loader.start()
    try:
        while True:
            (cost,) = exe.run(program=paddle.static.default_main_program(), fetch_list=[model.cost.name])
            costs.append(float(np.mean(cost)))
            if len(costs) % SHOWN == 0:
                print(f"pass {number}, batch {len(costs)}: cost {np.mean(costs[-SHOWN:]):.4f}", flush=True)
    except paddle.core.EOFException:
        model.loader.reset()


def train(model: WideDeepModel, options: argparse.Namespace) -> None:
    """Train as a worker."""
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    own = fleet.util.get_file_shard(list_files(options.data / "train"))
    model.loader.set_sample_list_generator(paddle.batch(make_reader(own), batch_size=BATCH))
    test, files = paddle.static.default_main_program().clone(for_test=True), list_files(options.data / "test")
    print(f"before: AUC {measure(exe, model, test, files):.4f}", flush=True)
    for number in range(options.passes):
        train_pass(exe, model, number)
        fleet.barrier_worker()
        print(f"pass {number}: AUC {measure(exe, model, test, files):.4f}", flush=True)
    if options.output is not None and fleet.is_first_worker():
        fleet.save_persistables(exe, str(options.output))
    fleet.stop_worker()


def main() -> None:
    """Train, or serve."""
    options = parse_arguments()
    paddle.enable_static()
    fleet.init(role_maker.PaddleCloudRoleMaker())
    model = WideDeepModel()
    model.net()
    minimize(model.cost, options.mode)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    else:
        train(model, options)


if __name__ == "__main__":
    main()
