"""The Open MPI backend: mpirun starts rank processes, which lend themselves to agents that dial the launcher.

mpirun only places: the first rank process of a host forks an agent out of mpirun's processes
(node/agent/rank.py), which dials our gate and proves the job's secret. mpirun runs on a leash (leash.py); it
ends by itself once its rank processes have ended. For a head on a node the agents come in the same way; then
that of rank 0's host leads, and the others get its address.

While they start, a mark with a random name is in the launcher's folder: agents that see it have the same
folder, and if all do it is used in place.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pslaunch.runtime.shared import prove

from ..errors import (
    HostError,
    NodeLostError,
    PreflightError,
    PslaunchError,
    ServiceError,
    SpecError,
)
from ..node import codes
from ..node.agent.rank import SECRET
from ..node.job import Limits, Node, Plan, parse_node, to_data
from ..node.later import record, relay
from ..node.line import gate, wire
from ..node.listing import make_own_folder
from ..node.loop import Loop
from ..options.mpi_spec import Head, MpiHost, MpiReach, list_expected
from . import mpirun
from .answers import Answered, Ending, read_answer
from .base import CLOSE_EXTRA_S, LAST_WORDS_S, OF_ANOTHER, Dial, Ended, EndLimit, Line
from .leash import LEASH_S, Leashed
from .local import LocalBackend, OnNode0
from .mpi_gate import Arrival, open_gate, send_frame

__all__ = ["MpiBackend", "from_data", "make_backend", "to_data"]

DIAL_S: Final = 5.0  # for a head to answer a later shell
START_S: Final = 30.0  # for Python on all hosts, once they were reached
NOT_STARTED: Final = "mpirun can't be started"
ASK_TRIES: Final = 3


def make_backend(reach: MpiReach | None) -> MpiBackend | OnNode0:
    """Return the backend; without a reach, the one for a shell on node 0 itself."""
    return MpiBackend(reach) if reach else OnNode0("mpi", "ask where the job was started")


def describe_start(reach: MpiReach, _plan: Plan) -> dict[str, Any]:
    """Return mpirun's command line, with symbols for what is made at the start, and its hostfile."""
    argv = mpirun.make_argv(reach, ["/bin/sh", "-c", "{agent}"], "{folder}", [SECRET])
    env = mpirun.make_environ(reach, {}, "{folder}")
    stays = [f"{reach.in_place.workspace} where all hosts see it"] if reach.in_place else []
    return {
        "argv": argv,
        "env": [f"{name}={value}" for name, value in env.items()],
        "hosts": mpirun.make_hostfile(reach.hosts).splitlines(),
        "in place": [*stays, *(f"else it is sent to {reach.node.workspace}" for _ in stays)],
    }


def from_data(data: Any) -> MpiReach:
    """Return the reach from the data of `to_data`. Raises SpecError if another version wrote it."""
    try:
        hosts = tuple(MpiHost(**host) for host in data["hosts"])
        lists = {"version": tuple(data["version"]), "args": tuple(data["args"])}
        head = data["head"] and Head(**data["head"])
        in_place = data["in_place"] and parse_node(data["in_place"])
        fixed = {"hosts": hosts, "node": parse_node(data["node"]), "in_place": in_place, "head": head}
        return MpiReach(**{**data, **lists, **fixed})
    except (KeyError, TypeError):
        raise SpecError(OF_ANOTHER) from None


class _LossyError(NodeLostError):
    """mpirun lost a part of a program's output."""


class MpiBackend(EndLimit):
    """Agents of mpirun's ranks, each with a line over TCP."""

    name = "mpi"

    def __init__(self, reach: MpiReach) -> None:
        super().__init__()
        self._reach = reach
        self._mpirun: Leashed | None = None
        self._cancelled = threading.Event()
        self._asking: set[Leashed] = set()  # small mpiruns of `ask`
        self._awaiting: list[tuple[Node, Line]] = []  # agents that do not know the head's address yet
        self._dial: Dial | None = None  # of a head on a node,
        self._first = ""  # with this name
        self._lost_after_s = 0.0
        self.ended: Ended | None = None

    def start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line]]:
        return self._start(limits, os.urandom(32), "launcher")

    def _start(self, limits: Limits, secret: bytes, head: str) -> list[tuple[Node, Line]]:
        self._lost_after_s, self._grace_s = limits.lost_after_s, limits.grace_s
        came: list[Arrival] = []
        refused = list[str]()
        order = {
            "name": os.urandom(8).hex(), "head": head,
            "lost_after": limits.lost_after_s, "grace": limits.grace_s,
        }  # fmt: skip
        with contextlib.closing(Loop()) as loop, hold_folder(self._reach) as folder:
            try:
                with (
                    open_gate(loop, self._reach, secret, came, refused) as offer,
                    _mark_folder(self._reach.in_place) as mark,
                ):
                    order.update(addrs=offer.addrs, port=offer.port, mark=mark)
                    program = offer.make_program(["rank", json.dumps(order)], self._reach)
                    self._mpirun = self._run(self._reach, program, secret, folder, mark=mark)
                    self.ended = Ended(self._mpirun.fd, "mpirun", self._describe_end)
                    if self._cancelled.is_set():
                        self._mpirun.end_now()
                    self._wait(loop, self._mpirun, came, refused)
                came.sort(key=lambda one: one.trainers[0])
                template = self._reach.node
                if self._reach.in_place and all(one.sees_mark for one in came):
                    template = self._reach.in_place
                return [(self._make_node(template, i, one), one.line) for i, one in enumerate(came)]
            except BaseException:
                for one in came:
                    one.line.close()
                self._close_mpirun()
                raise

    def _run(
        self,
        reach: MpiReach,
        program: Sequence[str],
        secret: bytes,
        folder: str,
        stdout: int | None = None,
        *,
        mark: str = "",
    ) -> Leashed:
        """Start mpirun. folder: of its files. mark: a file; both are removed with it. Raises ServiceError."""
        argv = mpirun.make_argv(reach, program, folder, [SECRET])
        env = mpirun.make_environ(reach, os.environ, folder)
        env[SECRET] = secret.hex()
        removed = [path for path in (folder, mark) if path]
        try:
            return Leashed(argv, env, self._grace_s, removed=removed, stdout=stdout)
        except OSError as e:
            raise ServiceError(f"{NOT_STARTED}: {e.strerror}") from e

    def _wait(self, loop: Loop, run: Leashed, came: list[Arrival], refused: Sequence[str]) -> None:
        """Run the loop until the agents of all ranks have come; beat on their lines. Raises PslaunchError."""

        def beat() -> None:
            for one in came:
                one.beat()

        over: list[float] = []

        def note_end() -> None:
            loop.watch(run.fd)
            over.append(loop.now())

        loop.watch(run.fd, read=note_end)
        loop.call_every(wire.HEARTBEAT_S, beat)
        limit_s = self._reach.connect_timeout_s + START_S
        loop.call_after(limit_s, lambda: over.append(loop.now()))
        loop.run(lambda: bool(over) or sum(len(one.trainers) for one in came) >= self._reach.ranks)
        loop.watch(run.fd)
        if over:
            raise self._explain_failure(run, came, refused, limit_s)

    def _explain_failure(
        self, run: Leashed, came: Sequence[Arrival], refused: Sequence[str], limit_s: float
    ) -> PslaunchError:
        """Return the error for ranks that did not come. refused: callers that were not agents of the job."""
        if self._cancelled.is_set():
            return ServiceError("mpirun was ended before its ranks had come")
        there, missing = sum(len(one.trainers) for one in came), ", ".join(self._list_missing(came))
        text = f"{there} of {self._reach.ranks} ranks came" + (f", none from {missing}" if missing else "")
        if not run.wait(0.0):
            text += f" within {limit_s:.0f} s; a host may hang, or need a longer --connect_timeout"
            text += f"; refused: {refused[-1]}" if refused else ""
            said = mpirun.read_last_lines(run.read_said())
            return PreflightError(text + (f"; mpirun said: {said}" if said else ""))
        how, killed = run.describe()
        if killed:
            return NodeLostError(f"{text}; mpirun was lost: {how}")
        cause = mpirun.find_cause(run.read_said(), self._reach)
        # A wrong command line is no fault of a host.
        return PreflightError(
            cause.text if cause.code == codes.USAGE else f"{text}: {cause.text}", cause.code
        )

    def _describe_end(self) -> tuple[str, bool]:
        """Return mpirun's end in words, with its own last ones, and True for an end by a signal."""
        assert self._mpirun
        how, killed = self._mpirun.describe()
        said = "" if killed else mpirun.read_last_lines(self._mpirun.read_said())
        return how + (f"; it said: {said}" if said else ""), killed

    def _list_missing(self, came: Sequence[Arrival]) -> list[str]:
        """Return the names of hosts without an agent."""
        there = {host.name for one in came if (host := self._find_host(one))}
        return [host.name for host in self._reach.hosts if host.name not in there]

    def _find_host(self, one: Arrival) -> MpiHost | None:
        """Return the host of an agent, as the user named it."""
        for host in self._reach.hosts:
            if one.has_name(host.name):
                return host
        # A name that only ssh's configuration knows: its ranks are those planned for it.
        for node, host in zip(list_expected(self._reach), self._reach.hosts, strict=False):
            if (node.name, node.trainers) == (host.name, one.trainers):
                return host
        return None

    def _make_node(self, template: Node, number: int, one: Arrival) -> Node:
        host = self._find_host(one)
        return template._replace(
            id=number, name=host.name if host else one.host, ranks=len(one.trainers), trainers=one.trainers
        )

    def try_start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line | HostError]]:
        return [*self.start(nodes, limits)]  # mpirun starts on all hosts or on none

    def start_head(self, nodes: Sequence[Node], limits: Limits, secret: str) -> tuple[Sequence[Node], Line]:
        started = self._start(limits, bytes.fromhex(secret), "node")
        self._first, self._awaiting = started[0][0].name, started[1:]
        return [node for node, _ in started], started[0][1]

    def start_dialing(self, nodes: Sequence[Node], limits: Limits, dial: Dial) -> None:
        self._dial = dial
        gone = []
        for node, line in self._awaiting:
            try:
                send_frame(line, dial.encode(node, sealed=True))
            except OSError:
                gone.append(node.name)
        self._close_awaiting()
        if gone:
            raise NodeLostError(f"{', '.join(gone)}: the agent ended before the job began")

    def keep_way(self, path: str) -> MpiReach:
        if self._dial is None:  # ended before it led the job
            return self._reach
        record.write_secret(path, self._dial.secret)
        head = Head(self._first, self._dial.addrs, self._dial.port, path)
        return self._reach._replace(head=head)

    def open_head_line(self, _record: Mapping[str, Any]) -> Line:
        head = self._get_head()
        secret = bytes.fromhex(Path(head.secret_file).read_text())
        try:
            fd, seals = gate.dial(head.addrs, head.port, secret, gate.OBSERVER, DIAL_S)
        except prove.ProofError as e:
            raise ConnectionError(0, str(e)) from e
        return Line(fd, fd, str, seals)

    def read_records(self) -> Iterator[bytes]:
        return self.ask(self._reach.node._replace(name=self._get_head().node), ["records"])

    def _get_head(self) -> Head:
        if self._reach.head is None:
            raise SpecError(OF_ANOTHER)
        return self._reach.head

    def ask(self, node: Node, words: Sequence[str]) -> Iterator[bytes]:
        """Return the answer of a small mpirun to the node's host, or from here if its folder is shared."""
        if relay.is_here(*words[2:]):
            return LocalBackend().ask(node, words)
        return self._ask_until_whole(node, words)

    def _ask_until_whole(self, node: Node, words: Sequence[str]) -> Iterator[bytes]:
        """Return an answer from several tries: an mpirun that ends well may have lost some of its output."""
        answered = Answered()
        for left in reversed(range(ASK_TRIES)):
            try:
                yield from answered.skip(self._ask_there(node, words))
                return
            except _LossyError:
                if not left or self._cancelled.is_set():
                    raise

    def _ask_there(self, node: Node, words: Sequence[str]) -> Iterator[bytes]:
        host = next((h for h in self._reach.hosts if h.name == node.name), None)
        if self._reach.hosts and not host:
            raise NodeLostError(f"{node.name} is the name of no given host; give it as `hostname` prints it")
        host = host or MpiHost(node.name, None, 1)
        reach = self._reach._replace(ranks=1, hosts=(host._replace(slots=1),))
        with contextlib.ExitStack() as at_end:
            loop = at_end.enter_context(contextlib.closing(Loop()))
            folder = at_end.enter_context(hold_folder(reach))
            secret = os.urandom(32)
            offer = at_end.enter_context(open_gate(loop, self._reach, secret, [], []))
            program = offer.make_program(words, self._reach)
            read_fd, write_fd = os.pipe()
            answer = at_end.enter_context(os.fdopen(read_fd, "rb"))
            with os.fdopen(write_fd, "wb") as writing:
                run = self._run(reach, program, secret, folder, writing.fileno())
            self._asking.add(run)
            at_end.callback(run.close)
            at_end.callback(self._asking.discard, run)
            at_end.enter_context(_serve_aside(loop))
            find_ending = functools.partial(_find_ending, run, node.name)
            start_s = self._reach.connect_timeout_s
            yield from read_answer(os.dup(answer.fileno()), node.name, words[0], find_ending, start_s)

    def cancel(self) -> None:
        self._cancelled.set()
        run = self._mpirun  # which the other thread may take away meanwhile
        if run:
            run.end_now()

    def prepare_release(self) -> str:
        assert self._mpirun and self._dial
        head = {**self._dial._asdict(), "lost_after": self._lost_after_s}
        if not (why := self._mpirun.follow(head, DIAL_S)):
            return ""
        return (
            f"this machine can't connect to the job's head on {self._first}, as mpirun's leash and later "
            f"shells do: {why}; allow port {self._dial.port} of that host in firewalls (--port chooses it), "
            "choose its network with --nics, or leave --detach out"
        )

    def release(self) -> None:
        """End what is asked; mpirun runs on as long as the job."""
        for run in [*self._asking]:
            run.end_now()
        if self._mpirun and self._dial:
            self._mpirun.leave()
            self._mpirun = self.ended = None

    def close(self) -> None:
        """Wait for mpirun, which ends after its rank processes, and end it if it does not."""
        self._close_awaiting()
        left_s = self.begin_close() - LEASH_S - time.monotonic()
        if self._mpirun:
            self._mpirun.wait(max(LAST_WORDS_S, left_s))
        self._close_mpirun()

    def _close_awaiting(self) -> None:
        for _, line in self._awaiting:
            line.close()
        self._awaiting = []

    def _close_mpirun(self) -> None:
        if self._mpirun:
            self._mpirun.close()
        self._mpirun = self.ended = None


def _find_ending(run: Leashed, name: str, cut: EOFError) -> Ending:
    """Wait for the end of a small mpirun. Raises NodeLostError if its program did not report a failure."""
    if not run.wait(CLOSE_EXTRA_S):
        run.end_now()
        run.wait(LEASH_S)
    said = run.read_said().strip().splitlines() or [str(cut)]
    if run.code == codes.IO:
        return Ending(run.code, ([line for line in said if line.startswith("pslaunch ")] or said)[-1])
    if isinstance(cut, relay.DamagedError) or run.code == 0:
        raise _LossyError(f"{name}: {cut}")
    raise NodeLostError(f"{name}: {said[-1]}")


@contextlib.contextmanager
def hold_folder(reach: MpiReach) -> Iterator[str]:
    """Yield a new folder with mpirun's files, which is removed afterwards. Raises ServiceError."""
    # mpirun splits the words of its agent's command at blanks and colons.
    plain = re.fullmatch(r"[\w/.+-]+", tempfile.gettempdir())
    with contextlib.ExitStack() as at_end:
        try:
            place = tempfile.TemporaryDirectory(
                prefix="pslaunch-mpirun-", dir=None if plain else "/tmp", ignore_cleanup_errors=True
            )
            folder = at_end.enter_context(place)
            for name, text in mpirun.make_files(reach).items():
                Path(folder, name).write_text(text)
        except OSError as e:
            raise ServiceError(f"{NOT_STARTED}: {e.strerror}") from e
        yield folder


@contextlib.contextmanager
def _mark_folder(in_place: Node | None) -> Iterator[str]:
    """Put a mark into the launcher's folder, which nobody can know before; yield its path, "" without one.

    Its name is random, so a host that has looked into the folder before does not remember that it lacks it.
    """
    path = ""
    if in_place:
        folder = Path(in_place.workspace, ".pslaunch")
        with contextlib.suppress(OSError):  # nothing can be written there: it can't be used in place
            make_own_folder(str(folder))
            mark = folder / f"mark-{os.urandom(16).hex()}"
            mark.touch(0o644, exist_ok=False)
            path = str(mark)
    try:
        yield path
    finally:
        if path:
            Path(path).unlink(missing_ok=True)


@contextlib.contextmanager
def _serve_aside(loop: Loop) -> Iterator[None]:
    """Run a loop in a thread."""
    over = threading.Event()
    wake_r, wake_w = os.pipe()
    loop.watch(wake_r, read=lambda: loop.watch(wake_r))
    thread = threading.Thread(target=loop.run, args=(over.is_set,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        os.close(wake_w)
        thread.join()
        os.close(wake_r)
