"""One SSH connection by Fabric and paramiko: a socket, the host's key, our own proof, a session that boots.

Every error is a HostError that names its step; after a RefusedError the ssh binary may know another way.
"""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

import fabric
import paramiko

from pslaunch.errors import HostError
from pslaunch.ssh import hostkeys
from pslaunch.ssh.attempt import BusyError, Deadline, RefusedError, failed_start
from pslaunch.ssh.boot import COMMAND, Boot, NoMarkerError, wait_for_marker
from pslaunch.ssh.channel import ParamikoChannel, Tail
from pslaunch.ssh.proof import Passphrases, Proof
from pslaunch.ssh.settings import Settings

FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
RETRY_FIRST_S = 0.2


class Connector:
    """Makes connections, with what all of them share: known hosts, passphrases."""

    def __init__(self, host_keys: hostkeys.Keeper, passphrases: Passphrases) -> None:
        self._host_keys, self._passphrases = host_keys, passphrases

    def connect(self, settings: Settings, via: fabric.Connection | None, limit_s: float) -> fabric.Connection:
        """A connection to one hop; a busy sshd that closes before its banner is asked again."""
        deadline = Deadline(settings.connect_timeout_s or limit_s)
        pause_s = RETRY_FIRST_S
        while True:
            try:
                return self._once(settings, via, deadline)
            except BusyError as e:
                if pause_s > deadline.left_s():
                    raise HostError(
                        settings.name, "connect", f"{e}, again and again ({_at(settings)})"
                    ) from None
                time.sleep(pause_s * random.uniform(0.5, 1.5))
                pause_s *= 2

    def _once(
        self, settings: Settings, via: fabric.Connection | None, deadline: Deadline
    ) -> fabric.Connection:
        proof = Proof(settings, self._passphrases)
        kwargs: dict[str, Any] = {
            "auth_strategy": proof,
            "banner_timeout": deadline.left_s(),
            "auth_timeout": deadline.left_s(),
            "channel_timeout": deadline.left_s(),
            "compress": settings.compression,
            "transport_factory": _transport_factory(settings),
        }
        if via is None:
            kwargs["sock"] = open_socket(settings, deadline)
        else:
            via.transport.channel_timeout = deadline.left_s()
        connection = fabric.Connection(
            settings.hostname,
            settings.user,
            settings.port,
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
            gateway=via,
            connect_timeout=deadline.left_s(),
            connect_kwargs=kwargs,
        )
        connection.client.set_missing_host_key_policy(_Check(settings, self._host_keys))
        try:
            connection.open()
        except BaseException as e:
            connection.client.close()
            if "sock" in kwargs:
                kwargs["sock"].close()
            raise self._told(settings, e, deadline) from None
        connection.transport.set_keepalive(settings.keepalive_s)
        return connection

    @staticmethod
    def _told(settings: Settings, e: BaseException, deadline: Deadline) -> BaseException:
        """What a failed connection means."""
        name, at = settings.name, _at(settings)
        if isinstance(e, HostError):
            return e
        if isinstance(e, paramiko.ssh_exception.IncompatiblePeer):
            return RefusedError(name, "connect", f"{e} ({at})")
        if isinstance(e, paramiko.AuthenticationException):
            return RefusedError(name, "authenticate", str(e))
        if isinstance(e, paramiko.ChannelException):
            return HostError(name, "connect", f"the host before it can't reach {at}: {e.text}")
        if isinstance(e, TimeoutError) or (isinstance(e, paramiko.SSHException) and deadline.over):
            return HostError(name, "connect", f"no answer from {at} within {deadline.limit_s:g} s")
        if isinstance(e, (EOFError, ConnectionError)) or "banner" in str(e):
            return BusyError(str(e) or "the connection was closed")
        if isinstance(e, (paramiko.SSHException, OSError)):
            return HostError(name, "connect", f"{e} ({at})")
        return e


class _Check:
    """Takes the place of paramiko's MissingHostKeyPolicy; no key is known to paramiko itself."""

    def __init__(self, settings: Settings, host_keys: hostkeys.Keeper) -> None:
        self._settings, self._host_keys = settings, host_keys

    def missing_host_key(self, _client: Any, _name: str, key: Any) -> None:
        self._host_keys.check(self._settings, key.get_name(), key.asbytes())


def _transport_factory(settings: Settings) -> Callable[..., Any]:
    def make(sock: Any, **kwargs: Any) -> Any:
        transport = paramiko.Transport(sock, **kwargs)
        options = transport.get_security_options()
        options.key_types = hostkeys.key_types(hostkeys.about(settings), options.key_types)
        return transport

    return make


def _at(settings: Settings) -> str:
    host = f"[{settings.hostname}]" if ":" in settings.hostname else settings.hostname
    return f"{host}:{settings.port}"


def open_socket(settings: Settings, deadline: Deadline) -> socket.socket:
    """TCP to the first address that answers, or what ProxyCommand gives."""
    if settings.proxy_command:
        return _proxy(settings.proxy_command)
    family = FAMILIES.get(settings.family, socket.AF_UNSPEC)
    try:
        found = socket.getaddrinfo(settings.hostname, settings.port, family, socket.SOCK_STREAM)
    except socket.gaierror as e:
        raise HostError(settings.name, "resolve", f"{settings.hostname}: {e.strerror}") from None
    errors: list[str] = []
    for i, (kind, _, _, _, address) in enumerate(found):
        sock = socket.socket(kind, socket.SOCK_STREAM)
        try:
            sock.settimeout(deadline.left_s() / (len(found) - i))
            if settings.bind_address:
                sock.bind((settings.bind_address, 0))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except TimeoutError:
            errors.append(f"{address[0]} port {settings.port}: no answer within {deadline.limit_s:g} s")
        except OSError as e:
            errors.append(f"{address[0]} port {settings.port}: {e.strerror}")
        sock.close()
    raise HostError(settings.name, "connect", "; ".join(dict.fromkeys(errors)))


def _proxy(command: str) -> socket.socket:
    """As ssh does it: by the shell, with the connection as its standard input and output."""
    ours, theirs = socket.socketpair()
    with theirs:
        # It ends when our end closes, or with us; nobody waits for it but init.
        argv = ["/bin/sh", "-c", f"({command}) & exit"]
        fd = theirs.fileno()
        subprocess.run(argv, stdin=fd, stdout=fd, check=False, start_new_session=True)
    return ours


def start(connection: fabric.Connection, settings: Settings, booted: Boot, limit_s: float) -> ParamikoChannel:
    """Boot `pslaunch.node` in a new session of a connection. Raises HostError, step "start" or "python"."""
    deadline = Deadline(limit_s)
    noise, error = "", ""
    session = None
    try:
        session = connection.transport.open_session(timeout=deadline.left_s())
        for name, value in settings.env:
            session.set_environment_variable(name, value)
        session.settimeout(deadline.left_s())
        session.exec_command(COMMAND)
        session.sendall(booted.payload)
        wait_for_marker(lambda n: _read(session, n, deadline), booted.marker)
        return ParamikoChannel(session)
    except NoMarkerError as e:
        noise, error = e.noise, "it said too much before we could speak" if e.endless else ""
    except TimeoutError:
        error = f"no sign of life within {limit_s:g} s; a login file may wait for something"
    except (paramiko.SSHException, OSError, EOFError) as e:
        error = str(e) or "the connection was closed"
    raise failed_start(settings.name, error, noise, *_end_of(session))


def _read(session: Any, n: int, deadline: Deadline) -> bytes:
    session.settimeout(deadline.left_s())
    data: bytes = session.recv(n)
    return data


def _end_of(session: Any) -> tuple[Tail, int | None]:
    """Stderr and exit code of a session that came to nothing."""
    tail = Tail()
    if session is None:
        return tail, None
    session.settimeout(0.5)
    with contextlib.suppress(Exception):
        while data := session.recv_stderr(4096):
            tail.add(data)
    session.status_event.wait(0.5)
    code = session.exit_status if session.exit_status_ready() and session.exit_status >= 0 else None
    session.close()
    return tail, code
