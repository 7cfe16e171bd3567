"""The word2vec example's network has the same bits after its training in every build, with any threads.

A build for arm64 runs as Python under qemu-user.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from support.arm64 import make_python
from support.others import NO_ARM64, ROOT

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

for build in map(int, sys.argv[1]):
    _core.choose_build(build)
    for threads in map(int, sys.argv[2]):
        print(_core.get_build(), threads, train(threads), sep=",", flush=True)
"""


def train(python: str, folder: Path, builds: str, threads: str) -> dict[tuple[str, str], str]:
    """Return a digest of the trained model for each build, by its name, and number of threads."""
    argv = [python, "-P", "-c", TRAIN, builds, threads]
    done = subprocess.run(argv, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    lines = [line.split(",") for line in done.stdout.splitlines()]
    return {(build, number): digest for build, number, digest in lines}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """Digests of all builds of this machine."""
    return train(sys.executable, tmp_path_factory.mktemp("here"), "123", "124")


def test_word2vec_has_the_same_bits_in_every_build_with_any_trainer_count(
    here: dict[tuple[str, str], str],
) -> None:
    builds = {build for build, _ in here}
    assert "plain C" in builds
    assert set(here) == set(itertools.product(builds, "124"))
    assert len(set(here.values())) == 1, here


@pytest.mark.may_skip(NO_ARM64)
def test_word2vec_has_the_same_bits_on_arm64(here: dict[tuple[str, str], str], tmp_path: Path) -> None:
    there = train(str(make_python(tmp_path)), tmp_path, "0", "1")
    assert set(there) == {("NEON", "1")}
    assert set(there.values()) == set(here.values())
