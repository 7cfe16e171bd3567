"""Lines to agents and heads, and what else backends give: addresses, news of a start, ends, last words."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..node import codes, procs
from ..node.job import Node
from ..node.line.wire import Line as Line
from ..node.line.wire import encode_control

if TYPE_CHECKING:
    from ..node.messages import DialMsg

CLOSE_EXTRA_S = 2.0
LAST_WORDS_S = 0.5  # for a node to end its line after its job
_SHOWN_BYTES, _READ_BYTES = 4000, 1 << 20
OF_ANOTHER = "another version of pslaunch recorded where it runs: use that version, or --conf conf.py"


class News(NamedTuple):
    """News of a start in progress."""

    text: str
    code: int = codes.OK  # any other ends the job
    level: str = "warning"  # as of a note


Tell = Callable[[News], None]  # called from any thread


class Dial(NamedTuple):
    """Address of a head on a node, and the secret by which agents prove themselves."""

    addrs: tuple[str, ...]  # of node 0, most likely first
    port: int
    secret: str  # hexadecimal

    def encode(self, node: Node, *, sealed: bool = False) -> bytes:
        """Return the frame by which the agent of a node gets it; `sealed`: over TCP."""
        message: DialMsg = {"type": "dial", "addrs": self.addrs, "port": self.port, "node": node.id}
        return encode_control(message if sealed else {**message, "secret": self.secret})

    def send_over(self, line: Line, node: Node) -> str:
        """Give an agent the address, and close; return why it had ended before that, or ""."""
        try:
            line.send(self.encode(node, sealed=line.seals is not None))
            return ""
        except OSError as e:
            return line.diagnosis() or codes.describe_error(e)
        finally:
            line.close()


class Ended(NamedTuple):
    """Signal of a backend that the carrier of the job is gone."""

    fd: int  # readable from then on; owned by the backend
    carrier: str  # its name in messages
    describe: Callable[[], tuple[str, bool]]  # the end in words, and True for one by a signal


class KeptOutput:
    """Output of a command, in memory."""

    def __init__(self) -> None:
        self.file, self._read = os.fdopen(os.memfd_create("said"), "w+b"), 0

    def read(self, begin: int, size: int) -> bytes:
        return os.pread(self.file.fileno(), size, begin)

    def read_end(self) -> str:
        return procs.read_text_end(self.file.fileno(), _SHOWN_BYTES)

    def read_last_words(self) -> str:
        return "" if self.file.closed else choose_last_words(self.read_end())

    def read_new(self, *, last: bool = False) -> list[str]:
        """Return the whole lines that were not read by this before; last: and the beginning of one."""
        data = self.read(self._read, _READ_BYTES)
        end = data.rfind(b"\n") + 1 or (len(data) if last or len(data) == _READ_BYTES else 0)
        self._read += end
        return data[:end].decode("utf-8", "replace").splitlines()


def choose_last_words(text: str) -> str:
    """Return the last lines of pslaunch itself in an output, else the last line."""
    lines = text.strip().splitlines()
    ours = [line for line in lines if line.startswith("pslaunch ")]
    return "; ".join(ours[-2:] or lines[-1:])
