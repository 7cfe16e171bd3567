"""The word2vec example trains the same bits in every build, with any threads.

A build for arm64 runs as Python under qemu-user.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.arm64 import make_python
from support.others import NO_ARM64
from support.word2vec import make_workspace

TRAIN = """
import runpy, sys
from pslaunch.runtime import _core

_core.choose_build(int(sys.argv[1]))
print("build", _core.get_build())
runpy.run_path("train.py", run_name="__main__")
"""
FLAGS = {"AVX2": {"avx2", "fma"}, "AVX-512": {"avx512f", "avx2", "fma"}}


def train(python: Path | str, folder: Path, build: int, threads: int) -> tuple[str, str]:
    """Return the name of the build, and the digest of the model that it trains with these threads."""
    saved = folder / f"{build}-{threads}"
    settings = {"SAVE_DIR": str(saved), "NUM_PASSES": "1", "TRAINER_COUNT": str(threads)}
    env = os.environ | {f"PADDLE_INIT_{name}": value for name, value in settings.items()}
    argv = [python, "-c", TRAIN, str(build)]
    done = subprocess.run(argv, cwd=folder, env=env, check=True, stdout=subprocess.PIPE, text=True)
    [name] = re.findall(r"^build (.*)$", done.stdout, re.MULTILINE)
    return name, hashlib.sha256((saved / "pass-00000/parameters.tar").read_bytes()).hexdigest()


def list_builds() -> set[str]:
    """Return the builds that this processor can run."""
    if platform.machine() == "aarch64":
        return {"NEON"}
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    assert flags
    return {"plain C", *(build for build, needed in FLAGS.items() if needed <= set(flags[1].split()))}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's workspace."""
    folder = tmp_path_factory.mktemp("word2vec")
    make_workspace(folder)
    return folder


@pytest.fixture(scope="module")
def digest(workspace: Path) -> str:
    """Return the digest of the model that plain C trains."""
    return train(sys.executable, workspace, 1, 1)[1]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_word2vec_has_the_same_bits_in_every_build_with_any_trainer_count(
    workspace: Path, digest: str, threads: int
) -> None:
    found = [train(sys.executable, workspace, build, threads) for build in (1, 2, 3)]
    assert {name for name, _ in found} == list_builds()
    assert {one for _, one in found} == {digest}


@pytest.mark.timeout(600)  # an emulated processor beside other tests
@pytest.mark.may_skip(NO_ARM64)
def test_word2vec_has_the_same_bits_on_arm64(workspace: Path, digest: str, tmp_path: Path) -> None:
    assert train(make_python(tmp_path), workspace, 0, 1) == ("NEON", digest)
