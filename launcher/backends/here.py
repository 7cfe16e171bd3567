"""This machine: records, files and head of a node on it without a network, and what commands answer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import PslaunchError, SpecError
from ..node.job import Node
from ..node.procs import connect
from .base import Backend
from .lines import Line

# -P: neither the working directory nor the workspace may shadow a module of the agent.
NODE = (sys.executable, "-P", "-m", "pslaunch.node")


class Here(Backend):
    """Backend of later shells on a node: it starts nothing."""

    def __init__(self, name: str, far_hint: str = "") -> None:
        """far_hint: the remedy where only node 0 is here, and the way to the others is not known."""
        self.name, self._far_hint = name, far_hint

    def keep_way(self, path: str) -> Any:
        """Return nothing: the job has its own record on this machine."""

    def open_head_line(self, record: Mapping[str, Any]) -> Line:
        fd = connect(str(record["socket"])).detach()
        return Line(fd, fd)

    def read_records(self) -> Iterator[bytes]:
        return answer("this machine", ["records"])

    def ask(self, node: Node, words: Sequence[str]) -> Iterator[bytes]:
        if node.id and self._far_hint:
            raise SpecError(f"node {node.id} can't be reached: its host is not known here; {self._far_hint}")
        return answer(node.name, words)


def ask_command(
    argv: Sequence[str], limit_s: float, make_error: Callable[[str], PslaunchError]
) -> subprocess.CompletedProcess[str]:
    """Return the end of a command, with its output. Raises the error made of the reason for none in time."""
    try:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="surrogateescape",
            timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise make_error(f"does not answer within {limit_s:.0f} s") from None
    except OSError as e:
        raise make_error(f"can't be started: {e.strerror}") from None


def answer(name: str, words: Sequence[str]) -> Iterator[bytes]:
    """Yield the answer of a mode of node/later/relay.py on this machine. Raises PslaunchError."""
    from .node_answers import read_answer  # only later shells need it

    with subprocess.Popen(
        [*NODE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as answering:
        assert answering.stdout is not None and answering.stderr is not None
        read_fd, said = os.dup(answering.stdout.fileno()), answering.stderr
        try:
            yield from read_answer(read_fd, name, words[0], lambda _cut: said.read().strip())
        finally:
            answering.kill()  # its disk may hang
