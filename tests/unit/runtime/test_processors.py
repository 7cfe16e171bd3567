"""The word2vec example's network has the same bits after its training in every build, with any threads."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
WORDS, BATCH, BATCHES = 1200, 128, 3
TRAIN = f"""
import hashlib, io, sys
sys.path.insert(0, {str(ROOT / "examples/word2vec")!r})
import numpy as np
import pslaunch.runtime as paddle
from pslaunch.runtime import _core
from train import LEARNING_RATE, build_network

cost = build_network({WORDS})

def train(threads):
    paddle.init(trainer_count=threads)
    rule = paddle.optimizer.AdaGrad(LEARNING_RATE, regularization=paddle.optimizer.L2Regularization(8e-4))
    parameters = paddle.parameters.create(cost)
    rows = np.random.default_rng(1).integers(0, {WORDS}, ({BATCH * BATCHES}, 5)).tolist()
    paddle.trainer.SGD(cost, parameters, rule).train(paddle.batch(lambda: map(tuple, rows), {BATCH}))
    file = io.BytesIO()
    parameters.to_tar(file)
    return hashlib.sha256(file.getvalue()).hexdigest()

for build in (1, 2, 3):
    _core.choose_build(build)
    for threads in (1, 2, 4):
        print(_core.get_build(), threads, train(threads), sep=",", flush=True)
"""


def test_word2vec_has_the_same_bits_in_every_build_with_any_trainer_count(tmp_path: Path) -> None:
    argv = [sys.executable, "-P", "-c", TRAIN]
    done = subprocess.run(argv, cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True)
    found = {tuple(line.split(",")[:2]): line.split(",")[2] for line in done.stdout.splitlines()}
    builds = {build for build, _ in found}
    assert "plain C" in builds
    assert set(found) == set(itertools.product(builds, "124"))
    assert len(set(found.values())) == 1, found
