"""Start of `pslaunch.node` from a login shell: finds a Python on the host and sends it the zipapp by stdin.

The command is valid in sh, csh and fish. Output of login files before the marker is discarded; every byte
after the marker is from the node.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ....ship.find_python import make_search
from ....ship.zipapp import make_zipapp

# No shell expands anything inside these quotes.
COMMAND = "exec /bin/sh -c 'IFS= read -r line; eval \"$line\"'"
MAX_NOISE_BYTES = 256 * 1024
NOISE_SHOWN_BYTES = 500

# The zipapp lives in a nameless file: no cleanup, and no other program inherits it.
_BOOT = """
import os, sys
from _blake2 import blake2b  # hashlib would load OpenSSL: megabytes

def take(size):
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            raise SystemExit("pslaunch boot: the connection was closed")
        data += piece
    return data

def hold(app):
    try:
        fd = os.memfd_create("pslaunch")
    except (AttributeError, OSError):
        import tempfile
        file = tempfile.TemporaryFile()
        fd = os.dup(file.fileno())
    view = memoryview(app)
    while view:
        view = view[os.write(fd, view):]
    return "/proc/self/fd/%d" % fd

def boot(argv, size, digest, marker):
    app = take(size)
    if blake2b(app).hexdigest() != digest:
        raise SystemExit("pslaunch boot: the received data differ from what was sent")
    sys.path.insert(0, hold(app))
    sys.argv[:] = ["pslaunch.node", *argv]
    from pslaunch.node.__main__ import main
    os.write(1, marker[16:] + marker[:16])  # halves swapped, so that an echo does not match
    sys.exit(main(argv))

"""


class NoMarkerError(Exception):
    """Missing marker: the line closed, or has the given `error`. `noise` is the end of the output."""

    def __init__(self, noise: bytes, error: str = "") -> None:
        super().__init__(error)
        self.noise = noise[-NOISE_SHOWN_BYTES:].decode("utf-8", "replace").strip()


class Boot(NamedTuple):
    """Bytes to send to the command, and the marker that comes back."""

    payload: bytes
    marker: bytes


def make_boot(argv: Sequence[str], agent_python: str | None) -> Boot:
    """Return the boot of one channel; `argv` reaches `pslaunch.node` unchanged."""
    app, sent = make_zipapp(), os.urandom(16).hex().encode()
    call = f"boot({list(argv)!a}, {len(app)}, {hashlib.blake2b(app).hexdigest()!r}, {sent!r})\n"
    search = make_search(f"exec({_BOOT + call!r})", agent_python)
    return Boot(search.encode("utf-8", "surrogateescape") + b"\n" + app, sent[16:] + sent[:16])


def wait_for_marker(read: Callable[[int], bytes], marker: bytes) -> bytes:
    """Read exactly up to the end of the marker; return the bytes before it. Raises NoMarkerError.

    `read` returns at most the requested number of bytes, none at the end.
    """
    seen = bytearray()
    while True:
        # If the bytes so far end with a part of the marker, read at most the rest of it.
        kept = next(n for n in range(len(marker), -1, -1) if seen.endswith(marker[:n]))
        if kept == len(marker):
            return bytes(seen[: -len(marker)])
        if len(seen) > MAX_NOISE_BYTES:
            raise NoMarkerError(bytes(seen), "too much output of login files")
        piece = read(len(marker) - kept)
        if not piece:
            raise NoMarkerError(bytes(seen))
        seen += piece
