"""One job on two kinds of processors: the bits are those of one kind."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from support.arm64 import make_python
from support.jobs import LocalPlace, hash_model, succeeded
from support.others import NO_ARM64
from support.word2vec import make_workspace

PROCESSES = ("pserver/0", "pserver/1", "trainer/0", "trainer/1")
NUMBERS = ("--server=script", "--server_num=2", "--worker_num=2")
# The job's interpreter: processes with an odd number run as arm64 code, as if on a host of that kind.
CHOICE = """#!/bin/sh
case $PSLAUNCH_RANK in
1) echo arm64 && exec {arm64} "$@" ;;
*) exec {here} "$@" ;;
esac
"""


def train(folder: Path, python: Path | str) -> tuple[str, set[str]]:
    """Return the digest of a job's model, and the processes that ran as arm64 code."""
    options = (*NUMBERS, f"--python={python}", "--num_passes=1")
    job = succeeded(LocalPlace(1), folder, *options, program=["train.py"], timeout_s=300.0)
    return hash_model(folder), {one for one in PROCESSES if "arm64" in job.lines(one)}


@pytest.mark.timeout(600)  # an emulated processor beside other tests
@pytest.mark.may_skip(NO_ARM64)
def test_word2vec_has_the_same_bits_if_half_of_its_processes_run_on_arm64(tmp_path: Path) -> None:
    arm64, choice, folder = make_python(tmp_path), tmp_path / "choice", tmp_path / "ws"
    choice.write_text(CHOICE.format(arm64=shlex.quote(str(arm64)), here=shlex.quote(sys.executable)))
    choice.chmod(0o755)
    make_workspace(folder)
    digest, on_arm64 = train(folder, choice)
    assert on_arm64 == {"pserver/1", "trainer/1"}
    assert train(folder, sys.executable) == (digest, set())
