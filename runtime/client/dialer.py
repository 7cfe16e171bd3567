"""Connections of a trainer to the ports of its pservers: dials, greets, and tries again."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..shared import env, prove
from . import handshake
from .control import Control

FIRST_WAIT_S = 0.05  # pause between two attempts while pservers are not ready; doubles up to MAX_WAIT_S
MAX_WAIT_S = 3.0
ATTEMPT_S = 5.0  # limit of one connection with its handshake, and of a stopped pserver's answer
LAST_ATTEMPT_S = 1.0  # limit of one connection after connect_timeout has passed
REFUSED_S = 1.0  # if nobody listens for this long after training began, the pserver is gone for good


class ClientError(RuntimeError):
    """A pserver refused a request; the text names both and the cause. v2's trainer exits with exit_code."""

    exit_code = 78  # os.EX_CONFIG: trainer and pserver disagree


class NotReached(ClientError):
    """A pserver was not reached within connect_timeout."""

    exit_code = 69  # os.EX_UNAVAILABLE


class PeerVanished(RuntimeError):
    """A pserver is gone for good; the trainer then exits with exit_code."""

    exit_code = 75  # os.EX_TEMPFAIL: the launcher looks for the first cause


@dataclass(frozen=True, slots=True)
class ShardPort:
    host: str
    port: int
    pserver: int  # its rank
    number: int  # index of the port in its pserver, dense ports first

    @property
    def addr(self) -> str:
        return env.join_addr(self.host, self.port)


def list_shards(
    endpoints: Sequence[tuple[str, int]], ports_num: int, ports_num_for_sparse: int
) -> list[ShardPort]:
    """Return all dense ports, pserver by pserver, then all sparse ones."""
    if not endpoints:
        raise ValueError("no pservers: endpoints is empty")
    ranks = list(enumerate(endpoints))
    dense = [ShardPort(h, p + i, rank, i) for rank, (h, p) in ranks for i in range(ports_num)]
    numbers = range(ports_num, ports_num + ports_num_for_sparse)
    return dense + [ShardPort(h, p + i, rank, i) for rank, (h, p) in ranks for i in numbers]


class Dialer:
    """Connects shards; `hello`: of the trainer, its pserver and shard are replaced for each.

    take(i, fd) gets the descriptor of the shard i after the handshake. log: for progress and unknown names.
    """

    def __init__(
        self,
        shards: Sequence[ShardPort],
        hello: handshake.Hello,
        secret: bytes,
        connect_timeout_s: float,
        take: Callable[[int, int], object],
        log: Callable[[str], None],
    ) -> None:
        self.shards, self._hello, self._secret = shards, hello, secret
        self._connect_timeout_s, self._take, self._log = connect_timeout_s, take, log
        self._loaded: tuple[str, str] | None = None  # the first pserver, and the file that it has loaded

    def attach(self, missing: Sequence[int], *, begun: bool) -> None:
        """Connect to these shards; retry with growing pauses until connect_timeout.

        begun: the training has; then a pserver that is not there is gone for good. Raises NotReached,
        PeerVanished, ClientError.
        """
        began_s, wait_s, told = time.monotonic(), FIRST_WAIT_S, set[str]()
        while failed := self._try(missing, told, began_s + self._connect_timeout_s):
            missing, elapsed_s = [*failed], time.monotonic() - began_s
            names = [self.shards[i].addr for i in missing]
            last, refused = failed[missing[-1]][1], any(refused for refused, _ in failed.values())
            if begun and refused and elapsed_s > REFUSED_S:
                raise PeerVanished(f"pserver {', '.join(names)} is gone: {last}")
            left_s = self._connect_timeout_s - elapsed_s
            if left_s <= 0:
                after = f"after {self._connect_timeout_s:g} s (option connect_timeout)"
                text = f"no connection to pserver {', '.join(names)} {after}: {last}"
                raise PeerVanished(text) if begun else NotReached(text)
            wait_s = min(wait_s, max(left_s, 0.001))  # one last attempt when the time is over
            self._log(f"server not ready, wait {wait_s:.2g} sec to retry...")
            self._log(f"not ready endpoints:{names}")
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, MAX_WAIT_S)

    def _try(self, missing: Sequence[int], told: set[str], end_s: float) -> dict[int, tuple[bool, str]]:
        """Try each shard once; return of those still missing whether the host refused, and why they failed.

        Attempts are short once the clock has passed `end_s`, or many silent ports would exceed the limit.
        """
        failed: dict[int, tuple[bool, str]] = {}
        for i in missing:
            try:
                limit_s = min(ATTEMPT_S, max(end_s - time.monotonic(), LAST_ATTEMPT_S))
                self._take(i, self._dial(self.shards[i], limit_s))
            except OSError as e:
                text = self._explain(self.shards[i].host, e, told)
                failed[i] = isinstance(e, ConnectionRefusedError), text
        return failed

    def _explain(self, host: str, error: OSError, told: set[str]) -> str:
        """Return why an attempt failed. An unknown host name is reported at once, and added to `told`: it may
        be a typo, or DNS may learn it later.
        """
        text = error.strerror or str(error)
        if isinstance(error, TimeoutError):
            text += " (it or its machine is stopped, or strangers keep its port busy; see its log)"
        if isinstance(error, socket.gaierror):
            text = f"unknown host name {host}: {text}"
            if host not in told:
                told.add(host)
                until = f"for up to {self._connect_timeout_s:g} s (option connect_timeout)"
                self._log(f"{text} (option pservers); trying again {until}")
        return text

    def open_control(self, pserver: int) -> Control:
        """Return a connection to a pserver itself, at its first port. Raises OSError, ClientError."""
        own = [shard for shard in self.shards if shard.pserver == pserver]
        first = min(own, key=lambda shard: shard.number)
        fd = self._dial(replace(first, number=len(own)), ATTEMPT_S)
        return Control(socket.socket(fileno=fd))

    def repeat(self, act: Callable[[], None]) -> None:
        """Do `act` again while its connections are slow or lost, for connect_timeout. Raises OSError."""
        began_s: float | None = None  # of the trouble
        while True:
            try:
                return act()
            except (ConnectionError, TimeoutError) as e:
                if began_s is None:
                    began_s = time.monotonic()
                    self._log(f"connection to a pserver: {e}; trying again")
                limit_s = REFUSED_S if isinstance(e, ConnectionRefusedError) else self._connect_timeout_s
                if time.monotonic() - began_s > limit_s:
                    raise
            time.sleep(FIRST_WAIT_S)

    def _dial(self, shard: ShardPort, limit_s: float) -> int:
        """Return a connected descriptor after the handshake. Raises OSError, or ClientError if refused."""
        hello = replace(self._hello, pserver=shard.pserver, shard=shard.number)
        with socket.create_connection((shard.host, shard.port), timeout=limit_s) as sock:
            if sock.getsockname() == sock.getpeername():  # a free local port may connect to itself
                raise ConnectionRefusedError(f"no process listens at {shard.addr}")
            try:
                loaded = handshake.greet(sock, self._secret, hello)
            except prove.ProofError as e:
                raise ClientError(f"pserver {shard.addr} refuses trainer {hello.trainer_id}: {e}") from None
            self._compare_loaded(shard, loaded)
            return sock.detach()

    def _compare_loaded(self, shard: ShardPort, loaded: str) -> None:
        """Raise ClientError if this pserver has loaded another file than the first one."""
        self._loaded = self._loaded or (shard.addr, loaded)
        addr, first = self._loaded
        if loaded != first:
            raise ClientError(
                f"pserver {shard.addr} has loaded {_describe_file(loaded)}, pserver {addr} "
                f"{_describe_file(first)}: every server needs a copy of one file (fleet.init_server)"
            )


def _describe_file(sha256: str) -> str:
    return f"a file with the sha256 {sha256:.12}" if sha256 else "no file"
