"""Interface of the backends, which start agents on nodes and give the head a line to each.

A backend knows nothing about pservers, trainers, logs or restarts. Its contract, which
tests/integration/test_contract.py checks for every backend:

1. `start` returns once every node has an agent or has an error. Declared nodes keep their order; if
   none is declared, the agents define the nodes, and node 0 has trainer 0.
2. A line is two descriptors that carry bytes both ways, unchanged, without a terminal in between. Over TCP
   it has seals: the peer has proved that it knows a secret of the job. While `start` still works on other
   nodes, it sends heartbeats on the lines that exist.
3. A line whose launcher end is closed closes on the node, also when the launcher is killed.
4. `Line.diagnosis` returns the node's last report: its exit, its last lines of output.
5. `ended`, if not None, reports that the carrier of all agents is gone: the job, or its epoch, then ends.
6. `close` ends and waits for what `start` started on this side, within the grace and two seconds
   more; it may be called twice and never raises.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import HostError, HostsError, PslaunchError, SpecError
from ..node.job import Limits, Node
from .lines import CLOSE_EXTRA_S, LAST_WORDS_S, Dial, Ended, Line, Tell

NO_HEAD = "has no head on a node: the launcher leads its jobs"


class Backend:
    """Way to the nodes of a job. Methods that a backend leaves out raise SpecError or have nothing to do."""

    name: str
    ended: Ended | None = None  # valid after `start`; None: each line reports its own end
    starts_again = False  # `start` may be called again, for nodes whose agents are lost, `start_dialing` too
    carrier = ""  # the program that brings all agents, if one does: then `start` is, for all nodes alone
    tell: Tell | None = None  # takes news of a start in progress, in its thread; set by who shows them
    owns_nodes: bool = False  # the nodes are made for one job: `remove` takes them away with its files
    _grace_s: float = 0.0  # of the job that `start` has started
    _end_s: float = float("inf")  # until then `close` waits

    # --- Agents, for a head in the launcher. ---

    def start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line]]:
        """Start an agent on every node, or without nodes on those that the backend finds.

        Raises PslaunchError, and then leaves nothing running.
        """
        return list(zip(nodes, self._open(nodes, limits, "serve"), strict=True))

    def try_start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line | HostError]]:
        """Start as `start` does, but return an error in place of a node that fails, and keep the others."""
        return [*self.start(nodes, limits)]

    def read_output(self, *, last: bool = False) -> list[tuple[str, str]]:
        """Return new output of what brings the agents of a job that runs: who, and a line of text.

        last: wait for its end.
        """
        return []

    def keep_output(self, folder: Path) -> None:
        """Write to a log there what agents can't log, if there is anything. Raises OSError."""

    # --- A head on node 0. ---

    def start_head(self, nodes: Sequence[Node], limits: Limits, secret: str) -> tuple[Sequence[Node], Line]:
        """Start an agent that runs the head on node 0; its observer's line keeps the job alive.

        Returns the declared nodes, or without any those that the backend finds, whose agents prove `secret`.
        """
        return nodes, self._open(nodes[:1], limits, "lead")[0]

    def start_dialing(self, nodes: Sequence[Node], limits: Limits, dial: Dial) -> None:
        """Let agents on the other nodes dial the head. Raises PslaunchError."""
        failed: dict[int, HostError] = {}
        for node, line in zip(nodes, self._open(nodes, limits, "dial"), strict=True):
            if why := dial.send_over(line, node):
                failed[node.id] = HostError(node.name, "start", why)
        if failed:
            raise HostsError(failed, len(nodes))

    def prepare_release(self) -> str:
        """Return why a job that runs can't go on without this launcher, or ""; slow, in a thread."""
        return ""

    # --- Later shells. ---

    def keep_way(self, path: str) -> Any:
        """Return the reach by which later shells find the head; a secret that they need is kept in `path`."""
        raise self._lack(NO_HEAD)

    def open_head_line(self, record: Mapping[str, Any]) -> Line:
        """Open an observer's line to the head of a running job, from any later shell. Raises OSError."""
        raise self._lack(NO_HEAD)

    def read_records(self) -> Iterator[bytes]:
        """Return the records of jobs known to node 0, one JSON object per line. Raises PslaunchError."""
        raise self._lack(NO_HEAD)

    def ask(self, node: Node, words: Sequence[str]) -> Iterator[bytes]:
        """Return the complete answer of a mode of node/later/relay.py on a node. Raises PslaunchError.

        The node is found by its name, since the order of hosts may have changed. Several threads may ask.
        """
        raise self._lack("answers no later shell")

    def explain_forgotten(self) -> PslaunchError | None:
        """Return the error of a job that is gone with its files; None if only its record is forgotten."""
        return None

    def describe_keeping(self) -> str:
        """Return in words until when the files of a job can be fetched, "" for no limit."""
        return ""

    def remove_job(self, job: str) -> list[str]:
        """Remove a job that another launcher began; return in words what remains, and why.

        Raises PslaunchError.
        """
        return []

    # --- The end. ---

    def explain_end(self, code: int) -> tuple[str, int]:
        """Return the cluster's reason for a job's end by the loss of a node or by TERM, "" without one.

        Its exit code too: `code` unless the reason has another.
        """
        return "", code

    def cancel(self) -> None:
        """Let nodes that are being reached fail soon; called from another thread. Never raises.

        After it `release` ends questions to nodes soon.
        """

    def limit_end(self, limit_s: float) -> None:
        """Limit the wait in `close` to `limit_s` and two seconds more."""
        self._end_s = min(self._end_s, time.monotonic() + limit_s + CLOSE_EXTRA_S)

    def begin_close(self) -> float:
        """Limit the wait to the grace; return the time of its end."""
        self.limit_end(self._grace_s)
        return max(self._end_s, time.monotonic() + LAST_WORDS_S)

    def release(self) -> None:
        """Leave the job running: end nothing, wait for nothing."""

    def close(self) -> None:
        """End everything left on this side. May be called twice, never raises."""

    def _open(self, nodes: Sequence[Node], limits: Limits, mode: str) -> list[Line]:
        """Start keepers on all declared nodes or on none, with agents in a mode: serve, lead, or dial.

        All that the methods above need, where each node is started by itself. Raises PslaunchError.
        """
        raise self._lack("starts no agents: its jobs begin by themselves" if mode == "serve" else NO_HEAD)

    def _lack(self, why: str) -> SpecError:
        return SpecError(f"the {self.name} backend {why}")
