"""The local backend: a keeper and its agent on this machine, with the wire protocol of all backends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from ..errors import HostError, ServiceError, SpecError
from ..node import procs
from ..node.job import Limits, Node, Plan
from ..node.line.beats import keep_beating
from ..node.line.wire import BEAT
from .base import Dial, Ended, EndLimit, Line

# -P: neither the working directory nor the workspace may shadow a module of the agent.
NODE = (sys.executable, "-P", "-m", "pslaunch.node")
_LAST_WORDS_BYTES = 2000


def make_backend(_reach: None) -> LocalBackend:
    return LocalBackend()


def describe_start(_reach: None, _plan: Plan) -> None:
    """Return nothing: each agent is started by itself."""


def to_data(_reach: None) -> None:
    """Return nothing: the job has its own record on this machine."""


def from_data(_data: object) -> None:
    """Return nothing: later shells are on this machine."""


class LocalBackend(EndLimit):
    """Agents as children of the launcher; their lines are pipes, which close when the launcher dies."""

    name = "local"
    ended: Ended | None = None

    def __init__(self) -> None:
        self._keepers: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        super().__init__()

    def start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line]]:
        lines: list[Line] = []
        try:
            with keep_beating(BEAT) as beaten:
                for node in nodes:
                    lines.append(self._start(node, limits, "serve"))
                    beaten(lines[-1].write_fd)
        except ServiceError:
            for line in lines:
                line.close()
            raise
        return list(zip(nodes, lines, strict=True))

    def try_start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line | HostError]]:
        def start(node: Node) -> Line | HostError:
            try:
                return self._start(node, limits, "serve")
            except ServiceError as e:
                return HostError(node.name, "start", str(e))

        return [(node, start(node)) for node in nodes]

    def start_head(self, nodes: Sequence[Node], limits: Limits, secret: str) -> tuple[Sequence[Node], Line]:
        return nodes, self._start(nodes[0], limits, "lead")

    def start_dialing(self, nodes: Sequence[Node], limits: Limits, dial: Dial) -> None:
        for node in nodes:
            keeper = self._start_keeper(node, limits, "dial", stdout=subprocess.DEVNULL)
            assert keeper.stdin is not None
            try:
                keeper.stdin.write(dial.encode(node))
            except OSError as e:  # it ended before it had the address
                raise ServiceError(
                    _format_no_agent(node, _read_last_words(self._keepers[-1][1]) or e.strerror)
                ) from e
            finally:
                keeper.stdin.close()

    def keep_way(self, path: str) -> None:
        """Return nothing: the job has its own record on this machine."""

    def open_head_line(self, record: Mapping[str, Any]) -> Line:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(str(record["socket"]))
        except OSError:
            sock.close()
            raise
        fd = sock.detach()
        return Line(fd, fd)

    def read_records(self) -> Iterator[bytes]:
        return self._answer("this machine", ["records"])

    def ask(self, node: Node, words: Sequence[str]) -> Iterator[bytes]:
        return self._answer(node.name, words)

    @staticmethod
    def _answer(name: str, words: Sequence[str]) -> Iterator[bytes]:
        from .answers import Ending, read_answer

        with subprocess.Popen(
            [*NODE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as answering:
            assert answering.stdout is not None and answering.stderr is not None
            said = answering.stderr

            def find_ending(_cut: EOFError) -> Ending:
                words = said.read().strip()
                return Ending(answering.wait(), words)

            try:
                yield from read_answer(os.dup(answering.stdout.fileno()), name, words[0], find_ending)
            finally:
                answering.kill()  # its disk may hang

    def _start(self, node: Node, limits: Limits, mode: str) -> Line:
        keeper = self._start_keeper(node, limits, mode, stdout=subprocess.PIPE)
        assert keeper.stdin is not None and keeper.stdout is not None
        with keeper.stdin, keeper.stdout:
            try:
                write_fd, read_fd = os.dup(keeper.stdin.fileno()), os.dup(keeper.stdout.fileno())
            except OSError as e:
                raise ServiceError(_format_no_agent(node, e.strerror)) from e
        said = self._keepers[-1][1]
        return Line(read_fd, write_fd, lambda: _read_last_words(said))

    def _start_keeper(self, node: Node, limits: Limits, mode: str, *, stdout: int) -> subprocess.Popen[bytes]:
        """Start a keeper in a session of its own. Raises ServiceError."""
        self._grace_s = limits.grace_s
        argv = [*NODE, "keeper", str(limits.lost_after_s), str(limits.grace_s), mode]
        try:
            said = os.fdopen(os.memfd_create("said"), "w+b")
            keeper = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=stdout, stderr=said, start_new_session=True, bufsize=0
            )
        except OSError as e:
            raise ServiceError(_format_no_agent(node, e.strerror)) from e
        self._keepers.append((keeper, said))
        return keeper

    def cancel(self) -> None:
        """Do nothing: starting is fast here."""

    def prepare_release(self) -> str:
        return ""

    def release(self) -> None:
        for keeper, said in self._keepers:
            keeper.returncode = 0  # no longer waited for here
            said.close()
        self._keepers.clear()

    def close(self) -> None:
        """Wait for the keepers; the head has closed their lines already."""
        end_s = self.begin_close()
        for keeper, said in self._keepers:
            try:
                keeper.wait(max(0.0, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                # KILL only a stopped keeper: any other still guards the processes of its agent, and a
                # stopped one guards nothing, so its agent, if any, ends them.
                found = procs.read_proc(keeper.pid)
                with contextlib.suppress(ProcessLookupError):
                    keeper.send_signal(signal.SIGKILL if found and found.state in "Tt" else signal.SIGTERM)
                keeper.returncode = keeper.returncode or 0
            said.close()
        self._keepers.clear()


class OnNode0(LocalBackend):
    """Backend for a shell on the first host of a job, without a record of the way to the others."""

    def __init__(self, name: str, remedy: str) -> None:
        super().__init__()
        self.name, self._remedy = name, remedy

    def ask(self, node: Node, words: Sequence[str]) -> Iterator[bytes]:
        if node.id:
            raise SpecError(f"node {node.id} can't be reached: its host is not known here; {self._remedy}")
        return super().ask(node, words)


def _format_no_agent(node: Node, why: str | None) -> str:
    return f"no agent for node {node.id} ({node.name}): {why}"


def _read_last_words(said: IO[bytes]) -> str:
    if said.closed:
        return ""
    size = os.fstat(said.fileno()).st_size
    data = os.pread(said.fileno(), _LAST_WORDS_BYTES, max(0, size - _LAST_WORDS_BYTES))
    lines = data.decode("utf-8", "replace").strip().splitlines()
    said_by_us = [line for line in lines if line.startswith("pslaunch ")]
    return "; ".join(said_by_us[-2:] or lines[-1:])
