"""Start of `pslaunch.node` from a login shell: finds a Python on the host and sends it the zipapp by stdin.

The command is valid in sh, csh and fish. Output of login files before the marker is discarded; every byte
after the marker is from the node.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..ship.zipapp import make_zipapp

# No shell expands anything inside these quotes.
COMMAND = "exec /bin/sh -c 'IFS= read -r line; eval \"$line\"'"
PYTHONS = (
    "python3",
    *(f"python3.{minor}" for minor in range(14, 8, -1)),
    *("/usr/bin/python3", "/usr/local/bin/python3"),
)
MAX_NOISE_BYTES = 256 * 1024
NOISE_SHOWN_BYTES = 500

_VERSION = "import sys; print('%d.%d.%d' % sys.version_info[:3]); sys.exit(sys.version_info < (3, 9))"
# A version in the file name is trusted: running Python to ask takes as long as the boot.
_SEARCH = (
    "f=; for p in {pythons}; do q=$(command -v \"$p\") || continue;"
    " case $(readlink -f \"$q\" 2>/dev/null) in */python3.9|*/python3.[1-9][0-9]) ;; *)"
    " v=$(\"$q\" -I -S -c {version} 2>&1 </dev/null) || {{ f=\"$f${{f:+, }}$q ($v)\"; continue; }};; esac;"
    " exec \"$q\" -I -S -c {load} pslaunch; done;"
    " echo \"pslaunch boot: no Python 3.9 or later: ${{f:-none}} found; looked for\" {looked} >&2; exit 127"
)  # fmt: skip
_LOAD = """
import os
def take(n):
    data = b""
    while len(data) < n:
        piece = os.read(0, n - len(data))
        if not piece:
            raise SystemExit("pslaunch boot: the connection was closed")
        data += piece
    return data
exec(take(int(take(8), 16)))
"""
# The zipapp lives in a nameless file: no cleanup, and no other program inherits it.
_BOOT = """
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
    import sys
    from _blake2 import blake2b  # hashlib would load OpenSSL: megabytes
    app = take(size)
    if blake2b(app).hexdigest() != digest:
        raise SystemExit("pslaunch boot: what arrived is not what was sent")
    sys.path.insert(0, hold(app))
    sys.argv[:] = ["pslaunch.node", *argv]
    from pslaunch.node.__main__ import main
    os.write(1, marker[16:] + marker[:16])  # halves swapped, so that an echo does not match
    sys.exit(main(argv))

"""


class NoMarkerError(Exception):
    """Missing marker: the line closed, or noise was endless. `noise` is the end of the output."""

    def __init__(self, noise: bytes, *, endless: bool = False) -> None:
        super().__init__("the marker did not come")
        self.noise = noise[-NOISE_SHOWN_BYTES:].decode("utf-8", "replace").strip()
        self.endless = endless


class Boot(NamedTuple):
    """Bytes to send to the command, and the marker that comes back."""

    payload: bytes
    marker: bytes


def _quote_path(path: str) -> str:
    """Quote a path for the remote shell, which expands a leading `~/`."""
    return f'"$HOME"{shlex.quote(path[1:])}' if path.startswith("~/") else shlex.quote(path)


def make_boot(argv: Sequence[str], agent_python: str | None) -> Boot:
    """Return the boot of one channel; `argv` reaches `pslaunch.node` unchanged."""
    app, sent = make_zipapp(), os.urandom(16).hex().encode()
    pythons = [_quote_path(agent_python)] if agent_python else PYTHONS
    search = _SEARCH.format(
        pythons=" ".join(pythons),
        version=shlex.quote(_VERSION),
        looked=shlex.quote(
            agent_python or f"python3 and {PYTHONS[-3]} to {PYTHONS[1]} in PATH, /usr/bin, /usr/local/bin"
        ),
        load=shlex.quote(f"exec({_LOAD!r})"),
    )
    call = f"boot({list(argv)!a}, {len(app)}, {hashlib.blake2b(app).hexdigest()!r}, {sent!r})\n"
    program = (_BOOT + call).encode()
    payload = b"%s\n%08x%s%s" % (search.encode("utf-8", "surrogateescape"), len(program), program, app)
    return Boot(payload, sent[16:] + sent[:16])


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
            raise NoMarkerError(bytes(seen), endless=True)
        piece = read(len(marker) - kept)
        if not piece:
            raise NoMarkerError(bytes(seen))
        seen += piece
