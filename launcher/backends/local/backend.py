"""The local backend: a keeper and its agent on this machine, with the wire protocol of all backends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence

from ...errors import ServiceError
from ...node import procs
from ...node.codes import describe_error
from ...node.job import Limits, Node
from ...node.line.beats import keep_beating
from ...node.line.wire import BEAT
from ..here import NODE, Here
from ..lines import Dial, KeptOutput, Line


class LocalBackend(Here):
    """Agents as children of the launcher; their lines are pipes, which close when the launcher dies."""

    starts_again = True

    def __init__(self, _reach: None = None) -> None:
        super().__init__("local")
        self._keepers: list[tuple[subprocess.Popen[bytes], KeptOutput]] = []

    def _open(self, nodes: Sequence[Node], limits: Limits, mode: str) -> list[Line]:
        lines: list[Line] = []
        with contextlib.ExitStack() as at_failure, keep_beating(BEAT) as beaten:
            for node in nodes:
                lines.append(self._start(node, limits, mode))
                at_failure.callback(lines[-1].close)
                beaten(lines[-1].write_fd)
            at_failure.pop_all()
        return lines

    def start_dialing(self, nodes: Sequence[Node], limits: Limits, dial: Dial) -> None:
        for node, line in zip(nodes, self._open(nodes, limits, "dial"), strict=True):
            if why := dial.send_over(line, node):
                raise _make_error(node, why)

    def _start(self, node: Node, limits: Limits, mode: str) -> Line:
        """Start a keeper in a session of its own. Raises ServiceError."""
        self._grace_s, pipe = limits.grace_s, subprocess.PIPE
        argv = [*NODE, "keeper", str(limits.lost_after_s), str(limits.grace_s), mode]
        try:
            said = KeptOutput()
            keeper = subprocess.Popen(
                argv, stdin=pipe, stdout=pipe, stderr=said.file, start_new_session=True, bufsize=0
            )
            self._keepers.append((keeper, said))
            assert keeper.stdin is not None and keeper.stdout is not None
            with keeper.stdin, keeper.stdout:
                write_fd, read_fd = os.dup(keeper.stdin.fileno()), os.dup(keeper.stdout.fileno())
        except OSError as e:
            raise _make_error(node, describe_error(e)) from e
        return Line(read_fd, write_fd, said.read_last_words)

    def release(self) -> None:
        for keeper, said in self._keepers:
            keeper.returncode = 0  # no longer waited for here
            said.file.close()
        self._keepers.clear()

    def close(self) -> None:
        """Wait for the keepers; the head has closed their lines already."""
        end_s = self.begin_close()
        for keeper, _ in self._keepers:
            try:
                keeper.wait(max(0.0, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                # KILL only a stopped keeper: any other still guards the processes of its agent, and a
                # stopped one guards nothing, so its agent, if any, ends them.
                found = procs.read_proc(keeper.pid)
                with contextlib.suppress(ProcessLookupError):
                    keeper.send_signal(signal.SIGKILL if found and found.state in "Tt" else signal.SIGTERM)
        self.release()


def _make_error(node: Node, why: str) -> ServiceError:
    return ServiceError(f"no agent for node {node.id} ({node.name}): {why}")
