"""From a login shell to `pslaunch.node`: finds a Python on the host and hands it the zipapp by stdin.

The command is one word list that sh, csh and fish take alike. What login files say before the marker is
discarded; after the marker every byte is the node's.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..ship.zipapp import make_zipapp

# Inside these quotes is nothing that any of the shells would touch.
COMMAND = "exec /bin/sh -c 'IFS= read -r line; eval \"$line\"'"
PYTHONS = (
    "python3",
    *(f"python3.{minor}" for minor in range(14, 8, -1)),
    *("/usr/bin/python3", "/usr/local/bin/python3"),
)
MAX_NOISE_BYTES = 256 * 1024
NOISE_SHOWN_BYTES = 500

_VERSION = "import sys; print('%d.%d.%d' % sys.version_info[:3]); sys.exit(sys.version_info < (3, 9))"
# A Python whose file has its version in its name is not asked for it: that would take as long as the boot.
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
            raise SystemExit("pslaunch boot: the line was closed")
        data += piece
    return data
exec(take(int(take(8), 16)))
"""
# The program's own: a file without a name, which nobody has to remove, and which no program inherits.
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
    from _blake2 import blake2b  # hashlib brings OpenSSL with it, which costs megabytes
    app = take(size)
    if blake2b(app).hexdigest() != digest:
        raise SystemExit("pslaunch boot: what arrived is not what was sent")
    sys.path.insert(0, hold(app))
    sys.argv[:] = ["pslaunch.node", *argv]
    from pslaunch.node.__main__ import main
    os.write(1, marker[16:] + marker[:16])  # turned around: an echo of what we sent is no answer
    sys.exit(main(argv))

"""


class NoMarkerError(Exception):
    """The line closed, or noise came without end, before the marker; `noise` is what came, its end."""

    def __init__(self, noise: bytes, *, endless: bool = False) -> None:
        super().__init__("the marker did not come")
        self.noise = noise[-NOISE_SHOWN_BYTES:].decode("utf-8", "replace").strip()
        self.endless = endless


class Boot(NamedTuple):
    """What to send to the command, and the marker that comes back."""

    payload: bytes
    marker: bytes


def _quote_path(path: str) -> str:
    """For the shell there, where `~` is the home folder there."""
    return f'"$HOME"{shlex.quote(path[1:])}' if path.startswith("~/") else shlex.quote(path)


def make_boot(argv: Sequence[str], agent_python: str | None) -> Boot:
    """The boot of one channel. The word `argv` reaches `pslaunch.node` byte for byte."""
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
    """Read up to the marker and not a byte further; returns what came before it.

    `read` returns at most as many bytes as it is asked for, none at the end. Raises NoMarkerError.
    """
    seen = bytearray()
    while True:
        # As long as the end of what was seen could begin the marker, no more than its rest may be read.
        kept = next(n for n in range(len(marker), -1, -1) if seen.endswith(marker[:n]))
        if kept == len(marker):
            return bytes(seen[: -len(marker)])
        if len(seen) > MAX_NOISE_BYTES:
            raise NoMarkerError(bytes(seen), endless=True)
        piece = read(len(marker) - kept)
        if not piece:
            raise NoMarkerError(bytes(seen))
        seen += piece
