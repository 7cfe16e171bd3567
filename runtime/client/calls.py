"""Calls of a client: one at a time, completed after an interruption, with new connections for lost ones."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

from .. import _core
from ..files.manifest import has_file
from ..files.saving import Entry, SaveError
from . import handshake
from .control import Control, Message, take_file
from .dialer import ATTEMPT_S, ClientError, Dialer, PeerVanished, ShardPort

RUN_MS = 500
Report = tuple[str, int, str]  # what, shard, why


class Alone:
    """Guards a call that only one thread may make at a time; a signal handler counts as another thread."""

    __slots__ = ("_forks", "_in_call", "_pid")
    forks = 0  # between the first process and this one

    def __init__(self) -> None:
        self._in_call, self._forks, self._pid = threading.Lock(), Alone.forks, os.getpid()

    @property
    def is_forked(self) -> bool:
        """True in a child made by fork: the connections are its parent's."""
        return self._forks != Alone.forks

    def __enter__(self) -> None:
        if self._forks != Alone.forks:
            raise RuntimeError(
                f"this client belongs to process {self._pid}, which forked this one: pservers know one "
                "process of each trainer"
            )
        if not self._in_call.acquire(False):
            raise RuntimeError("this client is already in a call: only one thread at a time may use a client")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._in_call.release()


os.register_at_fork(after_in_child=lambda: setattr(Alone, "forks", Alone.forks + 1))


class CallRunner:
    """The calls of a client, which add requests to `core`; caller.Caller says what its callers see."""

    def __init__(
        self,
        core: _core.Client,
        dialer: Dialer,
        secret: bytes,
        stall_after_s: float,
        stall_timeout_s: float | None,
        log: Callable[[str], None],
    ) -> None:
        self._core, self.dialer, self._secret, self.log = core, dialer, secret, log
        self._shards = dialer.shards
        self._stall_after_s, self._stall_timeout_s = stall_after_s, stall_timeout_s
        self._begun = False  # the training has: a pserver that is gone will not come back
        self._finishing = False  # this trainer has said that it is finished
        # The call up to which none will be answered, and why: after a refusal the pserver and this client may
        # count requests differently.
        self._lost: tuple[int, Exception] | None = None
        self.waited_s = 0.0  # in all calls, for answers and so for other trainers
        self._interrupted = False  # a call that pservers may know in part is not complete
        self._last_call = 0
        self._alone = Alone()

    def call(self, add: Callable[[], object], *, wait: bool = True) -> int:
        """Let `add` add requests, and carry them out after those of an interrupted call; return their number.

        Without `wait` they only begin. Raises the ClientError of a pserver that has refused one.
        """
        with self._alone:
            call = self._begin(add)
            if wait:
                self._complete(call)
            else:
                self._progress()
            return call

    def _begin(self, add: Callable[[], object]) -> int:
        if self._lost is not None and isinstance(self._lost[1], ClientError):
            raise self._lost[1]
        if self._interrupted:
            self._complete()
        try:
            add()
            call = self._last_call = self._core.begin()
        except BaseException:
            self._core.cancel()
            raise
        return call

    def progress(self) -> None:
        """Send what the connections take at once and receive what is there, for all calls that have begun."""
        with self._alone:
            self._progress()

    def _progress(self) -> None:
        while (report := self._core.progress()) is not None:
            self._mend(*report)

    def is_done(self, call: int) -> bool:
        """Return True if all requests of a call are answered. Raises the error if they never will be."""
        self._check(call)
        return self._core.is_done(call)

    def wait(self, call: int, timeout_s: float = math.inf) -> bool:
        """Wait until a call is done, or for so long; return True if it is."""
        with self._alone:
            if timeout_s < math.inf:
                self._progress()  # also with a timeout of 0
            self._complete(call, timeout_s)
            return self._core.is_done(call)

    def _check(self, call: int) -> None:
        """Raise the error because of which a call is never answered, if there is one."""
        if self._lost is not None and 0 < call <= self._lost[0]:
            raise self._lost[1]

    def _fail(self, why: Exception) -> Exception:
        """Clear all calls, and return the error that they have."""
        self._core.clear()
        self._interrupted, self._lost = False, (self._last_call, why)
        return why

    def _complete(self, call: int = 0, limit_s: float = math.inf) -> None:
        """Carry out a call, 0: all, for so long.

        If a signal's handler raises meanwhile, the next call goes on with it, unless there is a limit.
        """
        self._check(call)
        self._interrupted |= limit_s == math.inf
        began_s = time.monotonic()
        try:
            self._run(lambda ms: self._core.run(ms, call), limit_s)
        finally:
            self.waited_s += time.monotonic() - began_s
        self._interrupted &= limit_s < math.inf

    def ask_pservers(
        self, pservers: Sequence[int], question: Message, error: type[Exception] = ClientError
    ) -> list[Message]:
        """Return the answers of pservers' main threads to a question that they may get twice.

        All calls before are complete then. Raises ClientError, PeerVanished, and `error` for an answer that
        is one.
        """
        found: list[Message] = []

        def ask() -> None:
            with contextlib.ExitStack() as stack:
                left = pservers[len(found) :]
                controls = [stack.enter_context(closing(self.dialer.open_control(i))) for i in left]
                for control in controls:
                    control.send(question)
                for i, control in zip(left, controls, strict=True):
                    found.append(self._listen(i, control))

        with self._alone:
            self._complete()
            try:
                self.dialer.repeat(ask)
            except OSError as e:
                raise PeerVanished(f"a pserver has not answered to {question['ask']}: {e}") from None
        for i, one in zip(pservers, found, strict=True):
            if "error" in one:
                raise error(one["error"] if error is not ClientError else f"pserver {i}: {one['error']}")
        return found

    def take(self, folder: Path, entry: Entry) -> set[int]:
        """Copy a part of a save here; return its pserver, none if it is here. Raises SaveError, OSError."""
        path, pserver = folder / entry.name, int(entry.name.split("-")[1])

        def take() -> None:
            with closing(self.dialer.open_control(pserver)) as control:
                take_file(control, str(folder), path)

        if path.exists():
            return set()
        self.dialer.repeat(take)
        if not has_file(path, entry):
            raise SaveError(f"{path} was damaged on its way from its pserver: save again")
        return {pserver}

    def drop(self, pservers: Iterable[int], save: str) -> None:
        """Let pservers remove their parts of a save, as far as they answer soon."""
        for i in pservers:
            with (
                contextlib.suppress(OSError, ClientError),
                closing(self.dialer.open_control(i)) as control,
            ):
                control.send({"ask": "drop", "save": save})
                control.receive(ATTEMPT_S)

    def _listen(self, pserver: int, control: Control) -> Message:
        """Return the next answer of a pserver's main thread. Raises OSError, PeerVanished."""
        number = next(i for i, shard in enumerate(self._shards) if shard.pserver == pserver)
        heard: list[Message] = []

        def wait(timeout_ms: int) -> Report | None:
            message = control.receive(timeout_ms / 1000)
            heard.extend([] if message is None else [message])
            return None if heard else ("wait", number, "")

        self._run(wait)
        return heard[0]

    def _run(self, go_on: Callable[[int], Report | None], limit_s: float = math.inf) -> None:
        """Let `go_on` send requests and take answers, for some ms each time, until there is no more.

        Connect again where necessary.
        """
        began_s, waited_s, reported = time.monotonic(), 0.0, False
        silent_s = math.inf if self._stall_timeout_s is None else self._stall_timeout_s
        probe_s = silent_s  # time at which to probe a silent pserver, from the start
        while waited_s < limit_s:
            report = go_on(int(min(RUN_MS, 1 + 1000 * (limit_s - waited_s))))
            if report is None:
                return
            what, i, text = report
            waited_s = time.monotonic() - began_s
            if what != "wait":
                self._mend(what, i, text)
                continue
            if waited_s > self._stall_after_s and not reported:
                reported = True
                self.log(f"waiting for pserver {self._shards[i].addr} for {waited_s:.0f} s")
            if waited_s > probe_s:
                probe_s = waited_s + max(silent_s, ATTEMPT_S)
                self._probe(self._shards[i], began_s)

    def _mend(self, what: str, i: int, why: str) -> None:
        """Connect again to a shard, unless it has refused a request.

        That is not necessary when all trainers have reported finished: then a pserver ends.
        """
        if what != "broken":
            raise self._fail(ClientError(f"pserver {self._shards[i].addr}: {why}"))
        sent = self._core.is_sent(i)
        self.log(f"connection to pserver {self._shards[i].addr} broke ({why}); reconnecting")
        try:
            self.dialer.attach([i], begun=self._begun)
        except (ClientError, PeerVanished) as e:
            if isinstance(e, ClientError) or not (self._finishing and sent):
                raise self._fail(e) from None
            self._core.let_go(i)

    def _probe(self, shard: ShardPort, began_s: float) -> None:
        """Probe a pserver: while it waits for trainers, it answers new connections. Raises PeerVanished."""
        if handshake.is_silent((shard.host, shard.port), self._secret, ATTEMPT_S):
            silent_s = time.monotonic() - began_s
            text = (
                f"pserver {shard.pserver} at {shard.addr} has not answered for {silent_s:.0f} s, not even a "
                "new connection: it or its machine is stopped (option --stall_timeout)"
            )
            raise self._fail(PeerVanished(text))
