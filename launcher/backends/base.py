"""The seam of the backends, one page: put agents on nodes, give the head a line to each, nothing else.

A backend knows nothing about pservers, trainers, logs or restarts. What it promises, and what the
contract suite (tests/integration/test_contract.py) holds every backend to:

1. `start` returns once every node has an agent or has an error. Declared nodes come in their order; where
   none is declared, the agents that came say which there are, and node 0 has trainer 0.
2. A line is two descriptors that carry bytes both ways, unchanged, without a terminal in between. Over TCP
   it has seals: who is at its other end has proved a secret of the job. While `start` still works on other
   nodes, it beats on the lines that are there.
3. A line whose launcher end is closed closes on the node, also when the launcher is killed.
4. `Line.diagnosis` says what the node's side told on its way out: its exit, its last words.
5. `ended` tells that what carried all agents is gone, if there is such a thing: the job ends then, with 76.
6. `close` ends and waits for what `start` started on this side, within the grace and two seconds
   more; it may be called twice and never raises.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from ..errors import HostError, SpecError
from ..node.job import Limits, Node

if TYPE_CHECKING:
    from ..node.line.gate import Seals

CLOSE_EXTRA_S = 2.0
LAST_WORDS_S = 0.5  # for a node whose job ended in the last moment to end its line too
OF_ANOTHER = "another version of pslaunch has noted where it runs: ask by that one, or by --conf conf.py"


class Line(NamedTuple):
    """A line to an agent or to a head. Whoever takes the descriptors closes them."""

    read_fd: int
    write_fd: int
    diagnosis: Callable[[], str] = str
    seals: Seals | None = None  # None: nobody else can reach it

    def close(self) -> None:
        """Give up a line that nobody has taken: an agent ends when nobody holds its line."""
        for fd in {self.read_fd, self.write_fd}:
            os.close(fd)


class Dial(NamedTuple):
    """Where agents find a head that is on a node, and what they prove themselves with."""

    addrs: tuple[str, ...]  # of node 0, the likeliest first
    port: int
    secret: str  # hexadecimal


class Ended(NamedTuple):
    """How a backend tells that what carried the job is gone."""

    fd: int  # readable from then on; the backend's own
    words: Callable[[], str]  # what is gone, and why


class Backend(Protocol):
    """Starts agents where a job runs."""

    name: str
    ended: Ended | None  # from `start` on; None: each line tells for itself

    def start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line]]:
        """Put an agent on every node, or where none is given on those that the backend finds.

        Raises PslaunchError; then nothing of it is left running.
        """
        ...

    def try_start(self, nodes: Sequence[Node], limits: Limits) -> list[Line | HostError]:
        """As `start`, but a node that can't have an agent is an error in its place, and the others go on."""
        ...

    def start_head(self, node: Node, limits: Limits) -> Line:
        """Put an agent that runs the head on node 0; the line is an observer's that holds the job."""
        ...

    def start_dialing(self, nodes: Sequence[Node], limits: Limits, dial: Dial) -> None:
        """Put agents on the other nodes; they dial the head. Raises PslaunchError."""
        ...

    def head_line(self, record: Mapping[str, Any]) -> Line:
        """From any later shell: an observer's line to the head of a running job. Raises OSError."""
        ...

    def records(self) -> Iterator[bytes]:
        """The records of the jobs that node 0 knows, one JSON object a line. Raises PslaunchError."""
        ...

    def ask(self, node: Node, words: Sequence[str]) -> Iterator[bytes]:
        """What a mode of node/later/relay.py answers on a node, checked to be whole. Raises PslaunchError.

        The node is found by its name: hosts may stand in another order by now.
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


class BackendModule(Protocol):
    """What the module of a backend has. `reach`: as in Site; None where nobody knows it."""

    def make_backend(self, reach: Any) -> Backend: ...

    def to_data(self, reach: Any) -> Any:
        """As JSON has it, for the record by which later shells find the job."""
        ...

    def from_data(self, data: Any) -> Any:
        """The reach of a record. Raises SpecError where that is another version's."""
        ...


BUILT_IN = ("local", "fabric")


def find_backend(name: str) -> BackendModule:
    """Return the module of a backend, imported only now; others add theirs as entry points."""
    if name in BUILT_IN:
        return cast(BackendModule, importlib.import_module(f".{name}", __package__))
    from importlib.metadata import entry_points

    added = entry_points(group="pslaunch.backends")
    if name not in added.names:
        raise SpecError(f"no backend {name!r}; there are: {', '.join(sorted({*BUILT_IN, *added.names}))}")
    return cast(BackendModule, added[name].load())
