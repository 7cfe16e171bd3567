"""Trains a model of a folder beside this file, alone or as a job:

    python make_data.py
    python train.py -m din/config.yaml
    pslaunch local --server_num 2 --worker_num 2 train.py -m din/config.yaml -o runner.sync_mode=async

Each worker trains on its share of the files of `runner.train_data_dir`, and shows what the model names every
`runner.print_interval` batches. A model of PaddleRec has the same files; of its imports the lines with paddle
change.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from config import Config, load_module, parse_arguments

import pslaunch.runtime as paddle
import pslaunch.runtime.distributed.fleet as fleet


def make_strategy(config: Config) -> Any:
    """Return the strategy of `runner.sync_mode`: sync, async or geo."""
    mode = config["runner.sync_mode"]
    if mode not in ("sync", "async", "geo"):
        raise SystemExit(f"runner.sync_mode: {mode!r}, expected sync, async or geo")
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = mode != "sync"
    if mode == "geo":
        strategy.a_sync_configs = {"k_steps": config["runner.geo_step"]}
    return strategy


def make_dataset(config: Config, inputs: list[Any], command: str) -> Any:
    """Return this worker's files as a dataset; `command` reads them."""
    folder = Path(config["runner.train_data_dir"])
    files = sorted(str(path) for path in folder.glob("*"))
    if not files:
        raise SystemExit(f"{folder} has no files; make_data.py makes some")
    dataset = paddle.distributed.QueueDataset()
    dataset.init(use_var=inputs, pipe_command=command, batch_size=config["runner.train_batch_size"])
    dataset.set_filelist(fleet.util.get_file_shard(files))
    return dataset


def train(config: Config, inputs: list[Any], shown: dict[str, Any], command: str) -> None:
    """Train as a worker."""
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    for _ in range(config["runner.epochs"]):
        exe.train_from_dataset(
            paddle.static.default_main_program(),
            make_dataset(config, inputs, command),
            fetch_list=list(shown.values()),
            fetch_info=list(shown),
            print_period=config["runner.print_interval"],
        )
    fleet.barrier_worker()
    if fleet.is_first_worker() and config["runner.model_save_path"]:
        fleet.save_persistables(exe, config["runner.model_save_path"])
    fleet.stop_worker()


def main() -> None:
    """Train, or serve."""
    config, options = parse_arguments(__doc__)
    paddle.enable_static()
    fleet.init(is_collective=False)
    model = load_module(options.model.parent, "static_model").StaticModel(config)
    inputs = model.create_feeds()
    shown = model.net(inputs)
    model.create_optimizer(make_strategy(config))
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    else:
        command = ["python", "read.py", "-m", str(options.model), "-o", *options.opt]
        train(config, inputs, shown, shlex.join(command))


if __name__ == "__main__":
    main()
