"""The seam of the backends, one page: put agents on nodes, give the head a line to each, nothing else.

A backend knows nothing about pservers, trainers, logs or restarts. What it promises, and what the
contract suite (tests/integration/test_contract.py) holds every backend to:

1. `start` returns once every node has an agent or has an error; the lines are in the order of `nodes`.
2. A line is two descriptors that carry bytes both ways, unchanged, without a terminal in between.
   While `start` still works on other nodes, it beats on the lines that are there.
3. A line whose launcher end is closed closes on the node, also when the launcher is killed.
4. `Line.diagnosis` says what the node's side told on its way out: its exit, its last words.
5. `close` ends and waits for what `start` started on this side, within the grace and two seconds
   more; it may be called twice and never raises.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..errors import SpecError
from ..node.job import Limits, Node

if TYPE_CHECKING:
    from ..options.spec import Reach

CLOSE_EXTRA_S = 2.0
LAST_WORDS_S = 0.5  # for a node whose job ended in the last moment to end its line too


class Line(NamedTuple):
    """A line to one node's agent. Whoever takes the descriptors closes them."""

    node: Node
    read_fd: int
    write_fd: int
    diagnosis: Callable[[], str]


class Dial(NamedTuple):
    """Where agents find a head that is on a node, and what they prove themselves with."""

    addrs: tuple[str, ...]  # of node 0, the likeliest first
    port: int
    secret: str  # hexadecimal


class Backend(Protocol):
    """Starts agents where a job runs."""

    name: str

    def start(self, nodes: Sequence[Node], limits: Limits) -> list[Line]:
        """Put an agent on every node. Raises PslaunchError; then nothing of it is left running."""
        ...

    def start_head(self, node: Node, limits: Limits) -> Line:
        """Put an agent that runs the head on node 0; the line is an observer's that holds the job."""
        ...

    def start_dialing(self, nodes: Sequence[Node], limits: Limits, dial: Dial) -> None:
        """Put agents on the other nodes; they dial the head. Raises PslaunchError."""
        ...

    def head_line(self, record: Mapping[str, Any]) -> tuple[int, int]:
        """From any later shell: descriptors of a line to the head of a running job. Raises OSError."""
        ...

    def ask(self, node: Node | None, words: Sequence[str]) -> Iterator[bytes]:
        """What a mode of node/relay.py answers on a node, checked to be whole. Raises PslaunchError.

        A node is found by its name: hosts may stand in another order by now. None: on the first host.
        """
        ...

    def cancel(self) -> None:
        """From another thread: nodes that are being reached shall fail soon. Never raises."""
        ...

    def ends_within(self, limit_s: float) -> None:
        """The whole job ends within `limit_s`: `close` waits no longer than that and two seconds more."""
        ...

    def release(self) -> None:
        """The job goes on without us: end nothing, wait for nothing."""
        ...

    def close(self) -> None:
        """End what is left on this side. May be called twice, never raises."""
        ...


BUILT_IN = {
    "local": "pslaunch.backends.local:LocalBackend",
    "fabric": "pslaunch.backends.fabric:fabric_backend",
}


def load_backend(name: str, reach: Reach | None = None) -> Backend:
    """The backend of this name, imported only now; others can add theirs as entry points.

    reach: how hosts are reached, for a backend that does it.
    """
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        backend: Callable[[Reach | None], Backend] = getattr(importlib.import_module(module), attribute)
        return backend(reach)
    from importlib.metadata import entry_points

    added = entry_points(group="pslaunch.backends")
    if name not in added.names:
        raise SpecError(f"no backend {name!r}; there are: {', '.join(sorted({*BUILT_IN, *added.names}))}")
    other: Callable[[Reach | None], Backend] = added[name].load()
    return other(reach)
