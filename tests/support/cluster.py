"""Pservers and trainers in real processes without the launcher, at loopback addresses of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.process import Started, started

PORT = 17164  # a Paddle program of another test listens at all addresses from 7164 on
TESTS = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Numbers of trainers, pservers and ports of a cluster that is started by hand."""

    trainers: int = 1
    pservers: int = 1
    ports_num: int = 1
    ports_num_for_sparse: int = 0
    connect_timeout_s: float = 20.0
    variables: Mapping[str, str] = field(default_factory=dict)  # of all processes

    def address(self, number: int) -> str:
        """Return an address for a pserver that no other run of the tests uses: all its ports are free."""
        pid = os.getpid()
        return f"127.{64 + pid // 65536 % 64}.{pid // 256 % 256}.{pid % 256}:{PORT + 16 * number}"

    def environ(self, trainer: int) -> dict[str, str]:
        """Return the environment of a trainer."""
        return os.environ | {
            "PADDLE_CLUSTER_TRAIN": "True",
            "PADDLE_INIT_PSERVERS": ",".join(self.address(i) for i in range(self.pservers)),
            "PADDLE_INIT_PORTS_NUM": str(self.ports_num),
            "PADDLE_INIT_PORTS_NUM_FOR_SPARSE": str(self.ports_num_for_sparse),
            "PADDLE_INIT_NUM_GRADIENT_SERVERS": str(self.trainers),
            "PADDLE_INIT_TRAINER_ID": str(trainer),
            "PADDLE_INIT_CONNECT_TIMEOUT": str(self.connect_timeout_s),
            "OMPI_COMM_WORLD_RANK": str(trainer),
            "OMPI_COMM_WORLD_SIZE": str(self.trainers),
            "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
            **self.variables,
        }

    @contextlib.contextmanager
    def serving(self, folder: Path) -> Iterator[list[Started]]:
        """All pservers, listening."""
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(self._pserver(i, folder)) for i in range(self.pservers)]

    def _pserver(self, number: int, folder: Path) -> contextlib.AbstractContextManager[Started]:
        host, port = self.address(number).split(":")
        argv = [
            *(sys.executable, "-m", "pslaunch.runtime.pserver", f"--host={host}", f"--port={port}"),
            f"--ports_num={self.ports_num}",
            f"--ports_num_for_sparse={self.ports_num_for_sparse}",
            f"--num_gradient_servers={self.trainers}",
            f"--log_dir={folder / f'pserver{number}'}",
        ]
        environ = os.environ | self.variables
        return started(argv, ready=r"Server listening on .* selected port", cwd=folder, env=environ)

    @contextlib.contextmanager
    def training(
        self, text: str, folder: Path, options: Mapping[str, object] | None = None
    ) -> Iterator[list[Started]]:
        """All trainers, started; `options` reach the program with this text as JSON in its only argument."""
        (folder / "train.py").write_text(text)
        argv = [sys.executable, "train.py", json.dumps(options or {})]
        with contextlib.ExitStack() as stack:
            yield [
                stack.enter_context(started(argv, env=self.environ(i), cwd=folder))
                for i in range(self.trainers)
            ]


def find_digests(said: Sequence[str]) -> set[str]:
    """The digests that trainers have printed."""
    return {found for text in said for found in re.findall(r"^digest (\w+)$", text, re.MULTILINE)}


def run_job(
    cluster: Cluster, text: str, folder: Path, options: Mapping[str, object] | None = None
) -> Sequence[str]:
    """Run a program on a cluster until all have ended with 0; what each trainer wrote."""
    with cluster.serving(folder) as pservers, cluster.training(text, folder, options) as trainers:
        for process in [*trainers, *pservers]:
            assert process.wait() == 0, process.output()
        return [process.output() for process in trainers]
