"""The quick start's program of PaddlePaddle for the bundled runtime, and Fleet programs started by hand."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.others import PROGRAMS
from support.process import Started, started
from support.pservers import find_free_ports

# Lines of the program that change, as docs/fleet.md has them.
IMPORTS = {
    "import paddle": "import pslaunch.runtime as paddle",
    "import paddle.nn as nn": "import pslaunch.runtime.nn as nn",
    "import paddle.nn.functional as F": "import pslaunch.runtime.nn.functional as F",
    "import paddle.distributed.fleet as fleet": "import pslaunch.runtime.distributed.fleet as fleet",
    "import paddle.distributed.fleet.base.role_maker as role_maker": (
        "import pslaunch.runtime.distributed.fleet.base.role_maker as role_maker"
    ),
}


def write_quick_start(workspace: Path) -> None:
    """Put the program into a workspace, only its imports changed."""
    for source in (PROGRAMS / "wide_and_deep").glob("*.py"):
        lines = [IMPORTS.get(line, line) for line in source.read_text().splitlines()]
        (workspace / source.name).write_text("\n".join(lines) + "\n")


def find_auc(text: str) -> float:
    """Return the AUC of all workers, as one of them has printed it."""
    found = re.search(r"^worker \d: loss \S+ -> \S+ after 192 steps of all, AUC (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def make_blocks(servers: list[tuple[str, int]], workers: int) -> list[dict[str, str]]:
    """Return the variables of each process, as somebody sets them by hand: servers, then workers."""
    listed = ",".join(f"{host}:{port}" for host, port in servers)
    common = {"PADDLE_PSERVERS_IP_PORT_LIST": listed, "PADDLE_TRAINERS_NUM": str(workers)}
    return [
        *(
            {**common, "TRAINING_ROLE": "PSERVER", "POD_IP": host, "PADDLE_PORT": str(port)}
            for host, port in servers
        ),
        *({**common, "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(i)} for i in range(workers)),
    ]


def run_by_hand(
    folder: Path, *blocks: Mapping[str, str], program: Sequence[str] = ("train.py",)
) -> list[Started]:
    """Run `python train.py` in each environment to its end, all at once."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PADDLE_", "TRAINING_"))
    }
    with contextlib.ExitStack() as stack:
        argv = [sys.executable, *program]
        found = [stack.enter_context(started(argv, cwd=folder, env=clean | dict(b))) for b in blocks]
        for process in found:
            process.wait()
    return found


def train_by_hand(
    folder: Path, *blocks: Mapping[str, str], text: str = "", program: Sequence[str] = ("train.py",)
) -> list[str]:
    """Do what run_by_hand() does, with this text of train.py if given; all end with 0, and what each says."""
    if text:
        (folder / "train.py").write_text(text)
    processes = run_by_hand(folder, *blocks, program=program)
    said = [process.output() for process in processes]
    assert [process.wait() for process in processes] == [0] * len(blocks), said
    return said


def make_local_blocks(servers: int, workers: int) -> list[dict[str, str]]:
    """Return the variables of processes on this machine."""
    first = find_free_ports(servers)
    return make_blocks([(f"127.0.0.{k + 1}", first + k) for k in range(servers)], workers)
