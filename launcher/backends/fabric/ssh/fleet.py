"""The SSH connections of one job: all hosts in parallel, bounded, at most one connection per host."""

from __future__ import annotations

import contextlib
import functools
import resource
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ....errors import HostError, HostRightsError
from ....node.line.beats import keep_beating
from ....ship.zipapp import make_zipapp
from . import binary, hostkeys
from .attempt import RefusedError
from .boot import Boot, make_boot
from .channel import Channel
from .questions import Askpass
from .settings import Config, HopSettings, Route

if TYPE_CHECKING:
    import fabric

    from ....options.hosts import Host
    from ..spec import FabricReach
    from .connect import Connector

DESCRIPTORS = 10  # upper bound for a connection and its channel
PER_DOOR = 8  # parallel connection attempts to one sshd: its MaxStartups drops some from 10 on


class Fleet:
    """Opener of channels to hosts; channels to one host share its connection."""

    def __init__(
        self,
        reach: FabricReach,
        *,
        ask: Callable[[str], str] | None,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the fleet; connects in open().

        ask: puts a question (passphrase, host key) to the user; None: no terminal.
        give_up: aborts a pending question.
        """
        self._reach, self._ask, self._give_up = reach, ask, give_up
        self._config = Config(reach.host_key_policy)
        self._lock = threading.Lock()
        self._connections: dict[Route, Future[fabric.Connection]] = {}
        self._doors: dict[tuple[Route, str, int], threading.Semaphore] = {}
        self.channels: list[Channel] = []  # those opened
        self._at_end = contextlib.ExitStack()  # closes all that was opened: channels, hosts, then jump hosts
        self._shared: Connector | None = None
        self._askpass: Askpass | None = None
        self._cancel = threading.Event()  # ends every attempt soon
        self._closed = False

    def open(
        self, hosts: Sequence[Host], argv: Sequence[str], beat: bytes = b""
    ) -> list[Channel | HostError]:
        """Start `pslaunch.node` with these arguments on every host; return channels in the order of `hosts`.

        Several threads may call it. A failed host gives a HostError in its place, HostRightsError if keys
        were refused. `beat` is sent on each line at once and every second until all have been tried.
        """
        _allow_descriptors(len(hosts))
        if not self._config.ssh:
            self._prepare()  # paramiko then reads the configuration: load it in one thread
        threads = max(1, min(self._reach.max_connections, len(hosts)))
        with keep_beating(beat) as beaten, ThreadPoolExecutor(threads) as pool:
            try:
                # ssh -G runs while the libraries load.
                routes = [pool.submit(self._config.find_route, host) for host in hosts]
                self._prepare()
                return list(pool.map(functools.partial(self._try, beaten, argv), hosts, routes))
            except BaseException:  # Ctrl+C: the pool waits for its threads
                self.cancel()
                raise

    def cancel(self) -> None:
        """Make a running `open` fail soon; open channels stay open. May be called at any time."""
        self._cancel.set()
        self._give_up()
        if self._shared:
            self._shared.give_up()

    def close(self) -> None:
        """Close all channels and connections; a running `open` fails soon. May be called twice."""
        self.cancel()
        with self._lock:
            self._closed, self.channels = True, []
        if self._shared:
            self._shared.end_proxies()  # first: a channel to a proxy that reads no more would close never
        with contextlib.suppress(Exception):  # of paramiko, once all are closed
            self._at_end.close()

    def _prepare(self) -> None:
        """Load slow libraries once and make the state that all threads share. May be called twice."""
        with contextlib.suppress(ImportError):
            import yaml  # noqa: F401 - all of it: Fabric takes a part, and fails if a thread is importing it
        from .connect import Connector

        make_zipapp()  # cached for all threads
        with self._lock:
            if not self._shared:
                self._shared = Connector(self._ask, self._reach.connect_timeout_s, self._cancel)

    def _try(
        self, beaten: Callable[[int], None], argv: Sequence[str], host: Host, route: Future[Route]
    ) -> Channel | HostError:
        try:
            channel = self._open(route.result(), argv)
            self._keep(host.name, channel.close)
        except HostError as e:
            kind = HostRightsError if e.step == "authenticate" else HostError
            detail = e.detail if e.host == host.name else f"jump host {e.host}: {e.detail}"
            return kind(host.name, e.step, detail)
        except OSError as e:  # remote errors are HostErrors by now
            return HostError(host.name, "start", f"on this machine: {e.strerror or e}")
        self.channels.append(channel)
        beaten(channel.write_fd)
        return channel

    def _keep(self, name: str, close: Callable[[], None]) -> None:
        """Let `close` close what was opened to a host. Raises HostError if all is closed already."""
        with self._lock:
            if not self._closed:
                self._at_end.callback(close)
                return
        close()
        raise HostError(name, "connect", "the job is being ended")

    def _open(self, route: Route, argv: Sequence[str]) -> Channel:
        assert self._shared is not None
        booted = make_boot(argv, self._reach.agent_python)
        if any(hop.only_ssh for hop in route) or self._has_authority(route):
            return self._start_binary(route, booted)
        try:
            connection = self._get_connection(route)
        except RefusedError as refused:
            if not self._config.ssh:
                raise
            try:
                return self._start_binary(route, booted)
            except HostError as e:
                raise HostError(e.host, e.step, f"{e.detail} (paramiko: {refused.detail})") from None
        return self._shared.start_boot(connection, route[-1], booted)

    def _start_binary(self, route: Route, booted: Boot) -> Channel:
        assert self._config.ssh is not None
        with self._lock:
            if self._ask and not self._askpass and not self._closed:
                self._askpass = Askpass(self._ask)
                self._at_end.callback(self._askpass.close)
        limit_s = self._reach.connect_timeout_s
        with self._get_door((), route[0]):  # each opens its own connections
            return binary.boot_by_binary(
                self._config.ssh, route[-1], booted, limit_s, self._cancel, self._askpass
            )

    def _has_authority(self, route: Route) -> bool:
        """Return True if a certificate may prove a host of this route, which only ssh checks."""
        entries = [entry for hop in route for entry in hostkeys.find_entries(hop)]
        authority = next((entry for entry in entries if entry.marker == "@cert-authority"), None)
        if authority and not self._config.ssh:
            detail = f"{authority.where}: @cert-authority: this needs OpenSSH's ssh: install it here"
            raise HostError(route[-1].name, "host key", detail)
        return authority is not None

    def _get_connection(self, hops: Route) -> fabric.Connection:
        """Return the shared connection to the last of these hops; the first caller opens it."""
        with self._lock:
            future = self._connections.get(hops)
            if future and future.done() and not future.result().transport.is_active():
                future = None  # it was cut
            mine = future is None
            if future is None:
                future = self._connections[hops] = Future()
        if mine:
            self._make(hops, future)
        return future.result()

    def _make(self, hops: Route, future: Future[fabric.Connection]) -> None:
        assert self._shared is not None
        try:
            via = self._get_connection(hops[:-1]) if len(hops) > 1 else None
            with self._get_door(hops[:-1], hops[-1]):
                connection = self._shared.connect(hops[-1], via)
            self._keep(hops[-1].name, connection.client.close)
            future.set_result(connection)
        except BaseException as e:
            with self._lock:
                self._connections.pop(hops, None)
            future.set_exception(e)

    def _get_door(self, way: Route, to: HopSettings) -> threading.Semaphore:
        """Return the limit of parallel attempts at one sshd, counted per route to it."""
        with self._lock:
            return self._doors.setdefault((way, to.hostname, to.port), threading.Semaphore(PER_DOOR))


def _allow_descriptors(hosts: int) -> None:
    """Raise the soft limit of descriptors as needed: the usual one is enough for 100 connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(list(Path("/proc/self/fd").iterdir())) + DESCRIPTORS * hosts + 64
    if resource.RLIM_INFINITY != soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
