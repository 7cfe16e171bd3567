"""Compares the first 20 losses of each model with those of PaddlePaddle 2.6.2 in losses.json:

    python steps.py [MODEL ...]

Prints the first and the last loss, and the greatest difference. With --write the losses are written instead:
record.py calls it with PaddlePaddle. Both begin with the same values, not the models' own, and learn from the
same lines.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from config import Config, load_module, read_config
from make_data import make_lines

import pslaunch.runtime as paddle

HERE = Path(__file__).resolve().parent
LOSSES = HERE / "losses.json"
MODELS = ("dnn", "wide_deep", "deepfm", "dcn", "din", "mmoe", "esmm", "word2vec", "dssm")
STEPS, MOST = 20, 1e-4
KINDS = {int: np.int64, float: np.float32}


def make_values(program: Any) -> dict[str, Any]:
    """Return small values for the parameters, which depend on the order of their names alone."""
    rng, values = np.random.default_rng(1), {}
    for one in sorted(program.all_parameters(), key=lambda one: re.sub(r"\d+", _pad, one.name)):
        spread = 0.5 / min([size for size in one.shape if size > 1], default=1) ** 0.5
        values[one.name] = rng.uniform(-spread, spread, one.shape).astype(np.float32)
    return values


def _pad(number: re.Match[str]) -> str:
    return number[0].zfill(6)


def make_column(variable: Any, values: list[list[Any]]) -> Any:
    """Return the values of all samples of an input as it is fed: an array, or sequences of any length."""
    if not variable.lod_level:
        return np.array(values, KINDS[type(values[0][0])]).reshape(-1, *variable.shape[1:])
    items, lengths = np.concatenate(values).reshape(-1, 1), [len(one) for one in values]
    return paddle.base.create_lod_tensor(items, [lengths], paddle.CPUPlace())


def read_feeds(config: Config, model: str, inputs: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the feed of each step."""
    size = config["runner.train_batch_size"]
    reader = load_module(HERE / model, config["runner.reader"]).Reader()
    reader.init(config)
    lines = make_lines(Path(config["runner.train_data_dir"]).name, 1, 0, STEPS * size)
    samples = (dict(sample) for line in lines for sample in reader.generate_sample(line)())
    for _ in range(STEPS):
        several = list(itertools.islice(samples, size))
        yield {one.name: make_column(one, [sample[one.name] for sample in several]) for one in inputs}


def run_steps(name: str) -> list[float]:
    """Return the loss of each step of a model."""
    config = read_config(HERE / name / "config.yaml")
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        model = load_module(HERE / name, "static_model").StaticModel(config)
        inputs = model.create_feeds()
        shown = model.net(inputs)
        model.create_optimizer()
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup)
    paddle.static.set_program_state(main, make_values(main))
    feeds = read_feeds(config, name, inputs)
    return [float(executor.run(main, feed=feed, fetch_list=[shown["cost"]])[0]) for feed in feeds]


def main() -> None:
    """Compare, or write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL", help="default: all")
    parser.add_argument("--write", action="store_true", help="write losses.json")
    options = parser.parse_args()
    paddle.enable_static()
    if options.write:
        lines = [f'"{name}": {json.dumps([round(one, 7) for one in run_steps(name)])}' for name in MODELS]
        LOSSES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    recorded = json.loads(LOSSES.read_text())
    for name in options.models:
        own = run_steps(name)
        difference = max(abs(one - other) for one, other in zip(own, recorded[name], strict=True))
        print(f"| {name} | {own[0]:.4f} | {own[-1]:.4f} | {difference:.0e} |", flush=True)
        if difference > MOST:
            raise SystemExit(f"{name}: a loss differs from that of PaddlePaddle by more than {MOST}")


if __name__ == "__main__":
    main()
