"""Listening ports of a pserver."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

from ..shared import busyport, env

BACKLOG = 1024  # all trainers of a large job connect at once


class PortError(OSError):
    """A port is not available; the text names it and its holder."""


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """Return a socket that listens there. Raises PortError, naming the holder of a busy port; EnvError for an
    unknown host name.
    """
    try:
        family, _, _, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as e:
        asked = f"--host={host}" if option == "--port" else f"{option}={host}:{port}"
        raise env.EnvError(f"{asked}: {e.strerror}") from e
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as e:
        text = f"can't listen on port {port} at {host}: {busyport.explain(e, port)}"
        if e.errno == errno.EADDRINUSE:
            who = busyport.find_holder(str(where[0]), port)
            by = f", held by {who}" if who else ""
            text = f"port {port} at {host} is busy{by}; choose another with {option}"
        raise PortError(text) from e


def adopt(descriptors: Sequence[int]) -> list[socket.socket]:
    """Return sockets for listening descriptors inherited from the parent process. Raises PortError."""
    adopted = []
    for fd in descriptors:
        try:
            sock = socket.socket(fileno=fd)
            if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                sock.listen(BACKLOG)
            os.set_inheritable(fd, False)
        except OSError as e:
            raise PortError(f"descriptor {fd} is not a listening socket: {e.strerror}") from e
        adopted.append(sock)
    return adopted
