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
5. `ended`, if not None, reports that the carrier of all agents is gone: the job then ends with 76.
6. `close` ends and waits for what `start` started on this side, within the grace and two seconds
   more; it may be called twice and never raises.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast, runtime_checkable

from ..errors import HostError, PslaunchError, SpecError
from ..node import codes
from ..node.job import Limits, Node, Plan
from ..node.line.wire import encode_control

if TYPE_CHECKING:
    import threading

    from ..node.head.events import Event
    from ..node.line.gate import Seals
    from ..node.messages import DialMsg

CLOSE_EXTRA_S = 2.0
LAST_WORDS_S = 0.5  # for a node to end its line after its job
OF_ANOTHER = "another version of pslaunch recorded where it runs: use that version, or --conf conf.py"


class News(NamedTuple):
    """News of a start in progress."""

    text: str
    code: int = codes.OK  # any other ends the job
    level: str = "warning"  # as of a note


Tell = Callable[[News], None]  # called from any thread


class Line(NamedTuple):
    """Line to an agent or to a head. The taker of the descriptors closes them."""

    read_fd: int
    write_fd: int
    diagnosis: Callable[[], str] = str
    seals: Seals | None = None  # None: nobody else can reach it

    def close(self) -> None:
        """Close a line that nobody took; its agent then ends."""
        for fd in {self.read_fd, self.write_fd}:
            os.close(fd)


class Dial(NamedTuple):
    """Address of a head on a node, and the secret by which agents prove themselves."""

    addrs: tuple[str, ...]  # of node 0, most likely first
    port: int
    secret: str  # hexadecimal

    def encode(self, node: Node, *, sealed: bool = False) -> bytes:
        """Return the frame by which the agent of a node gets it; `sealed`: over TCP."""
        message: DialMsg = {"type": "dial", "addrs": self.addrs, "port": self.port, "node": node.id}
        (frame,) = encode_control(message if sealed else {**message, "secret": self.secret})
        return frame


class Ended(NamedTuple):
    """Signal of a backend that the carrier of the job is gone."""

    fd: int  # readable from then on; owned by the backend
    carrier: str  # its name in messages
    describe: Callable[[], tuple[str, bool]]  # the end in words, and True for one by a signal


class Backend(Protocol):
    """Way to the nodes of a job."""

    name: str
    ended: Ended | None  # valid after `start`; None: each line reports its own end

    def ask(self, node: Node, words: Sequence[str]) -> Iterator[bytes]:
        """Return the complete answer of a mode of node/later/relay.py on a node. Raises PslaunchError.

        The node is found by its name, since the order of hosts may have changed. Several threads may ask.
        """
        ...

    def cancel(self) -> None:
        """Let nodes that are being reached fail soon; called from another thread. Never raises.

        After it `release` ends questions to nodes soon.
        """
        ...

    def limit_end(self, limit_s: float) -> None:
        """Limit the wait in `close` to `limit_s` and two seconds more."""
        ...

    def release(self) -> None:
        """Leave the job running: end nothing, wait for nothing."""
        ...

    def close(self) -> None:
        """End everything left on this side. May be called twice, never raises."""
        ...


@runtime_checkable
class StartingBackend(Backend, Protocol):
    """Starter of agents on the nodes of a job."""

    def start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line]]:
        """Start an agent on every node, or without nodes on those that the backend finds.

        Raises PslaunchError, and then leaves nothing running.
        """
        ...

    def try_start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line | HostError]]:
        """Start as `start` does, but return an error in place of a node that fails, and keep the others."""
        ...


@runtime_checkable
class LaterBackend(Backend, Protocol):
    """Backend whose jobs may have their head on a node, where later shells find it."""

    def keep_way(self, path: str) -> Any:
        """Return the reach by which later shells find the head; a secret that they need is kept in `path`."""
        ...

    def open_head_line(self, record: Mapping[str, Any]) -> Line:
        """Open an observer's line to the head of a running job, from any later shell. Raises OSError."""
        ...

    def read_records(self) -> Iterator[bytes]:
        """Return the records of jobs known to node 0, one JSON object per line. Raises PslaunchError."""
        ...


@runtime_checkable
class BeginningBackend(LaterBackend, Protocol):
    """Backend whose jobs begin by themselves, from a file (node/beginning.py); their head is on node 0."""

    def begin(self, plan: Plan, tell: Tell) -> Line | Event | None:
        """Begin the job; return an observer's line to its head, None without the right to one.

        A job that is over by then gives its event `end`.

        Raises PslaunchError.
        """
        ...

    def reopen(self) -> Line | Event:
        """Return a new line in place of a lost one, or the event `end` of an ended job.

        Raises PslaunchError.
        """
        ...

    def confirm(self, over: threading.Event) -> None:
        """Do what is due once all programs of the job run, unless it is over. Raises PslaunchError."""
        ...

    def explain_loss(self) -> tuple[str, int]:
        """Return the carrier's reason for the loss of a node, "" if it has none, and the job's exit code."""
        ...

    def remove(self) -> list[str]:
        """Remove the job; return in words the parts of it that remain, and the reasons."""
        ...

    def adopt(self, job: str) -> None:
        """Take over an earlier launcher's job, for `remove`. Raises PslaunchError."""
        ...

    @property
    def keeps_files(self) -> bool:
        """True if the files of a detached job stay for a time after its end."""
        ...

    def describe_keeping(self) -> str:
        """Return in words until when the files of a detached job can be fetched."""
        ...

    def explain_forgotten(self) -> PslaunchError:
        """Return the error of a job that is not there any more, with its files."""
        ...


@runtime_checkable
class LeadingBackend(StartingBackend, LaterBackend, Protocol):
    """Backend that starts heads on nodes."""

    def start_head(self, nodes: Sequence[Node], limits: Limits, secret: str) -> tuple[Sequence[Node], Line]:
        """Start an agent that runs the head on node 0; its observer's line keeps the job alive.

        Returns the declared nodes, or without any those that the backend finds, whose agents prove `secret`.
        """
        ...

    def start_dialing(self, nodes: Sequence[Node], limits: Limits, dial: Dial) -> None:
        """Let agents on the other nodes dial the head. Raises PslaunchError."""
        ...

    def prepare_release(self) -> str:
        """Return why a job that runs can't go on without this launcher, or ""; slow, in a thread."""
        ...


class EndLimit:
    """Time until which `close` of a backend waits for what it has started."""

    def __init__(self) -> None:
        self._grace_s, self._end_s = 0.0, float("inf")

    def limit_end(self, limit_s: float) -> None:
        self._end_s = min(self._end_s, time.monotonic() + limit_s + CLOSE_EXTRA_S)

    def begin_close(self) -> float:
        """Limit the wait to the grace; return the time of its end."""
        self.limit_end(self._grace_s)
        return max(self._end_s, time.monotonic() + LAST_WORDS_S)


class BackendModule(Protocol):
    """Module of a backend. `reach`: as in Site; None if unknown."""

    def make_backend(self, reach: Any) -> Backend: ...

    def describe_start(self, reach: Any, plan: Plan) -> Mapping[str, Any] | None:
        """Return what is of this backend alone, as data for a dry run: lists of lines by their names.

        `argv`: the command that brings all agents.
        """
        ...

    def to_data(self, reach: Any) -> Any:
        """Return `reach` as JSON data for the record by which later shells find the job."""
        ...

    def from_data(self, data: Any) -> Any:
        """Return the reach in a record. Raises SpecError if another version wrote it."""
        ...


BUILT_IN = ("local", "fabric", "mpi", "k8s")


def make_starting_backend(name: str, reach: Any) -> StartingBackend:
    """Return a backend that starts agents. Raises SpecError if it can't."""
    backend = find_backend(name).make_backend(reach)
    if not isinstance(backend, StartingBackend):
        raise SpecError(f"the {name} backend starts no agents: its jobs begin by themselves")
    return backend


def make_later_backend(name: str, reach: Any) -> LaterBackend:
    """Return a backend that finds jobs for later shells. Raises SpecError if it can't."""
    backend = find_backend(name).make_backend(reach)
    if not isinstance(backend, LaterBackend):
        raise SpecError(f"the {name} backend has no head on a node: the launcher leads its jobs")
    return backend


def make_leading_backend(name: str, reach: Any) -> LeadingBackend:
    """Return a backend that starts heads on nodes and reaches them. Raises SpecError if it can't."""
    backend = find_backend(name).make_backend(reach)
    if not isinstance(backend, LeadingBackend):
        raise SpecError(f"the {name} backend has no head on a node: the launcher leads its jobs")
    return backend


def find_backend(name: str) -> BackendModule:
    """Return the module of a backend, imported only now; others add theirs as entry points."""
    if name in BUILT_IN:
        return cast(BackendModule, importlib.import_module(f".{name}", __package__))
    from importlib.metadata import entry_points  # slow to import

    added = entry_points(group="pslaunch.backends")
    if name not in added.names:
        raise SpecError(
            f"no backend {name!r}; expected one of {', '.join(sorted({*BUILT_IN, *added.names}))}"
        )
    return cast(BackendModule, added[name].load())
