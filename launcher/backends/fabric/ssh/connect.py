"""One SSH connection by Fabric and paramiko: socket, host key, authentication, session, agent start.

Every error is a HostError that names its step; after a RefusedError the ssh binary may still succeed.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import socket
import subprocess
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fabric
import paramiko

from ....errors import HostError
from . import hostkeys
from .attempt import BusyError, Deadline, RefusedError, boot
from .boot import COMMAND, Boot
from .channel import STDERR_S, ParamikoChannel, Tail
from .proof import Proof, load_key
from .settings import HopSettings

# Kinds of algorithms in the order of settings.ALGORITHMS: paramiko's names, and ours in messages.
KINDS = {"ciphers": "cipher", "digests": "MAC", "kex": "key exchange", "key_types": "host key type"}
FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # else its errors go to stderr


class Connector:
    """Factory of connections, with their shared known hosts and passphrases."""

    def __init__(self, ask: Callable[[str], str] | None, limit_s: float, cancel: threading.Event) -> None:
        self._ask, self._limit_s, self._cancel = ask, limit_s, cancel
        self._lock, self._checking, self._loading = threading.Lock(), threading.Lock(), threading.Lock()
        self._keys: dict[str, Any] = {}  # private ones, by files
        self._opening = weakref.WeakSet[Any]()  # sockets, and channels through jump hosts
        self._proxies: list[subprocess.Popen[bytes]] = []

    def give_up(self) -> None:
        """Abort attempts in progress."""
        with self._lock:
            self._cancel.set()
            for sock in self._opening:
                with contextlib.suppress(Exception):
                    sock.shutdown(socket.SHUT_RDWR)  # also while it connects

    def end_proxies(self) -> None:
        """End ProxyCommands as ssh does; some ignore a closed connection."""
        for process in self._proxies:
            with contextlib.suppress(OSError):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGHUP)  # the whole pipeline of the shell

    def connect(self, settings: HopSettings, via: fabric.Connection | None) -> fabric.Connection:
        """Connect to one hop; retry if a busy sshd closes before its banner."""
        deadline = Deadline(settings.connect_timeout_s or self._limit_s, self._cancel)
        return deadline.keep_trying(settings.name, lambda: self._try_once(settings, via, deadline))

    def _try_once(
        self, settings: HopSettings, via: fabric.Connection | None, deadline: Deadline
    ) -> fabric.Connection:
        proof = Proof(settings, self._load_key, deadline)

        def check(_client: object, _name: str, key: Any) -> None:
            with deadline.stop_clock(), self._checking:  # asks once about a host with two names
                hostkeys.check_key(settings, key, self._ask)

        kwargs: dict[str, Any] = {
            "auth_strategy": proof,
            **dict.fromkeys(("banner_timeout", "auth_timeout", "channel_timeout"), deadline.get_left_s()),
            "compress": settings.compression,
            "transport_factory": functools.partial(self._make_transport, settings),
        }
        proxy = Tail()
        if settings.proxy_command:
            kwargs["sock"], process = open_proxy(settings.proxy_command, proxy)
            self._proxies.append(process)
        elif via is None:
            kwargs["sock"] = self._open_socket(settings, deadline)
        else:
            via.transport.channel_timeout = deadline.get_left_s()
        connection = fabric.Connection(
            settings.hostname,
            settings.user,
            settings.port,
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
            gateway=via,
            connect_timeout=deadline.get_left_s(),
            connect_kwargs=kwargs,
        )
        # For every key: paramiko itself knows none.
        connection.client.set_missing_host_key_policy(SimpleNamespace(missing_host_key=check))
        try:
            connection.open()
        except BaseException as e:
            connection.client.close()
            if "sock" in kwargs:
                kwargs["sock"].close()
            proxy.wait(STDERR_S)
            raise _make_error(settings, e, deadline, proxy.get_last_words()) from None
        with self._lock:
            self._opening.discard(connection.transport.sock)
        connection.transport.set_keepalive(settings.keepalive_s)
        return connection

    def _load_key(self, path: str) -> Any:
        with self._loading:  # asks once for each passphrase
            if path not in self._keys:
                self._keys[path] = load_key(path, self._ask)
            return self._keys[path]

    def start_boot(
        self, connection: fabric.Connection, settings: HopSettings, booted: Boot
    ) -> ParamikoChannel:
        """Boot `pslaunch.node` in a new session. Raises HostError, step "start" or "python"."""
        deadline = Deadline(self._limit_s, self._cancel)
        try:
            session = connection.transport.open_session(timeout=deadline.get_left_s())
            for name, value in settings.env:
                session.set_environment_variable(name, value)
            session.exec_command(COMMAND)
        except (paramiko.SSHException, OSError, EOFError) as e:
            raise HostError(settings.name, "start", str(e) or "the connection was closed") from None
        channel = ParamikoChannel(session)
        boot(channel, settings.name, booted, deadline)
        return channel

    def _make_transport(self, settings: HopSettings, sock: Any, **kwargs: Any) -> paramiko.Transport:
        """Return a transport with the user's algorithms, which `give_up` aborts."""
        transport = paramiko.Transport(sock, **kwargs)
        _choose_algorithms(transport.get_security_options(), settings)
        self._watch(sock)
        return transport

    def _watch(self, sock: Any) -> None:
        """Let `give_up` end what is being opened. Raises ConnectionAbortedError after that."""
        with self._lock:
            if self._cancel.is_set():
                raise ConnectionAbortedError(0, "the job is being ended")
            self._opening.add(sock)

    def _open_socket(self, settings: HopSettings, deadline: Deadline) -> socket.socket:
        """Connect by TCP to the first address that answers."""
        family = FAMILIES.get(settings.family, socket.AF_UNSPEC)
        try:
            found = socket.getaddrinfo(settings.hostname, settings.port, family, socket.SOCK_STREAM)
        except socket.gaierror as e:
            raise HostError(settings.name, "resolve", f"{settings.hostname}: {e.strerror}") from None
        errors: list[str] = []
        for i, (kind, _, _, _, address) in enumerate(found):
            sock = _PromptSocket(kind, socket.SOCK_STREAM)
            try:
                self._watch(sock)
                if settings.bind_address:
                    sock.bind((settings.bind_address, 0))
                sock.settimeout(deadline.get_left_s() / (len(found) - i))
                sock.connect(address)
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
            except OSError as e:
                sock.close()
                words = e.strerror or f"no answer within {deadline.limit_s:g} s"
                errors.append(f"{address[0]} port {settings.port}: {words}")
        raise HostError(settings.name, "connect", "; ".join(dict.fromkeys(errors)))


def _make_error(settings: HopSettings, e: BaseException, deadline: Deadline, proxy: str) -> BaseException:
    if isinstance(e, HostError):
        return e
    name = settings.name
    at = f"[{settings.hostname}]" if ":" in settings.hostname else settings.hostname
    at += f":{settings.port}"
    if proxy:
        at += f"; ProxyCommand: {proxy}"
    if isinstance(e, paramiko.ssh_exception.IncompatiblePeer):
        return RefusedError(name, "connect", f"{e} ({at})")
    if isinstance(e, paramiko.AuthenticationException):
        return RefusedError(name, "authenticate", str(e))
    if isinstance(e, paramiko.ChannelException):
        return HostError(name, "connect", f"the jump host can't reach {at}: {e.text}")
    if isinstance(e, TimeoutError) or (isinstance(e, paramiko.SSHException) and deadline.is_over):
        return HostError(name, "connect", f"no answer from {at} within {deadline.limit_s:g} s")
    if isinstance(e, (EOFError, ConnectionError)) or "banner" in str(e):
        return BusyError(f"{getattr(e, 'strerror', None) or str(e) or 'the connection was closed'} ({at})")
    if isinstance(e, (paramiko.SSHException, OSError)):
        return HostError(name, "connect", f"{e} ({at})")
    return e


def _choose_algorithms(options: Any, settings: HopSettings) -> None:
    """Set the algorithms that the user's configuration allows, in its order."""
    for (kind, what), wanted in zip(KINDS.items(), settings.algorithms, strict=True):
        found = has = getattr(options, kind)
        if wanted and not (found := [name for name in wanted if name in has]):
            raise paramiko.ssh_exception.IncompatiblePeer(f"paramiko has no {what} of {', '.join(wanted)}")
        if kind == "ciphers" and found[0] not in wanted[:1]:  # as with OpenSSH's default list
            # GCM needs one pass over the bytes, not two: paramiko is then as fast as ssh.
            found = sorted(found, key=lambda name: "-gcm@" not in name)
        if kind == "key_types":
            found = hostkeys.sort_key_types(hostkeys.find_entries(settings), found)
        setattr(options, kind, found)


class _PromptSocket(socket.socket):
    """A socket that acknowledges data at once; else sshd, which waits for it, answers 40 ms later."""

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        data = super().recv(bufsize, flags)
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return data


def open_proxy(command: str, tail: Tail) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a ProxyCommand as ssh does: by the shell, with the connection as stdin and stdout."""
    ours, theirs = socket.socketpair()
    with theirs:
        fd, pipe = theirs.fileno(), subprocess.PIPE
        argv = ["/bin/sh", "-c", f"exec {command}"]
        process = subprocess.Popen(argv, stdin=fd, stdout=fd, stderr=pipe, bufsize=0, start_new_session=True)
    assert process.stderr is not None
    tail.follow(process.stderr.read, process.stderr.close)
    threading.Thread(target=process.wait, name="ssh-proxy", daemon=True).start()
    return ours, process
