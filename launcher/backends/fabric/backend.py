"""The SSH backend: the node's zipapp on every host, its line a channel of one SSH connection.

ssh/ reaches the hosts; node/ runs there. A node's `name` is `Host.text`, as the user wrote it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import HostError, HostsError, SpecError
from ...node import codes
from ...node.job import Limits, Node
from ...node.line import wire
from ...options.hosts import Host
from ..base import Backend
from ..lines import CLOSE_EXTRA_S, Line
from ..node_answers import read_answer
from .spec import FabricReach
from .ssh.channel import Channel
from .ssh.fleet import Fleet
from .ssh.questions import Prompt


class FabricBackend(Backend):
    """Agents on hosts reached by SSH; a line closes with its connection, also if the launcher is killed."""

    name = "fabric"
    starts_again = True

    def __init__(self, reach: FabricReach) -> None:
        self._reach, self._prompt = reach, Prompt()
        on_terminal = sys.stdin is not None and sys.stdin.isatty()
        ask = self._prompt.ask if on_terminal else None
        self._fleet = Fleet(reach, ask=ask, give_up=self._prompt.give_up)

    def try_start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line | HostError]]:
        return list(zip(nodes, self._try_open(nodes, limits, "serve"), strict=True))

    def keep_way(self, path: str) -> FabricReach:
        return self._reach

    def open_head_line(self, record: Mapping[str, Any]) -> Line:
        return self._run(self._reach.hosts[0], ["relay", str(record["socket"])]).line

    def read_records(self) -> Iterator[bytes]:
        return self._answer(self._reach.hosts[0], ["records"])

    def ask(self, node: Node, words: Sequence[str]) -> Iterator[bytes]:
        address = node.name.rpartition("@")[2]  # the user may be another one now
        host = next((host for host in self._reach.hosts if host.address == address), None)
        if host is None:
            what = f"node {node.id} of the job ({node.name})"
            raise SpecError(f"{what} is not among the hosts of this command; --conf conf.py names others")
        return self._answer(host, words)

    def _answer(self, host: Host, words: Sequence[str]) -> Iterator[bytes]:
        channel = self._run(host, words)

        def find_words(_cut: EOFError) -> str:
            code = channel.wait(CLOSE_EXTRA_S)
            return channel.tail.get_last_words() if code == codes.IO else channel.describe_end()

        os.close(channel.write_fd)
        return read_answer(channel.read_fd, host.text, words[0], find_words)

    def cancel(self) -> None:
        self._fleet.cancel()

    def release(self) -> None:
        self._fleet.close()

    def close(self) -> None:
        """Wait for agents that still end; the head has closed their lines already."""
        self._prompt.give_up()
        end_s = self.begin_close()
        for channel in self._fleet.channels:
            channel.wait(max(0.0, end_s - time.monotonic()))
        self.release()

    def _open(self, nodes: Sequence[Node], limits: Limits, mode: str) -> list[Line]:
        opened = self._try_open(nodes, limits, mode)
        lines = [line for line in opened if isinstance(line, Line)]
        failed = {n.id: e for n, e in zip(nodes, opened, strict=True) if isinstance(e, HostError)}
        if failed:
            for line in lines:
                line.close()
            raise HostsError(failed, len(nodes))
        return lines

    def _try_open(self, nodes: Sequence[Node], limits: Limits, mode: str) -> list[Line | HostError]:
        self._grace_s = limits.grace_s
        argv = ["keeper", str(limits.lost_after_s), str(limits.grace_s), mode]
        hosts = [self._reach.hosts[node.id] for node in nodes]
        opened = self._fleet.open(hosts, argv, wire.BEAT)
        return [c if isinstance(c, HostError) else c.line for c in opened]

    def _run(self, host: Host, argv: Sequence[str]) -> Channel:
        opened = self._fleet.open([host], argv)[0]
        if isinstance(opened, HostError):
            raise opened
        return opened
