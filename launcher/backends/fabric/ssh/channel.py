"""An agent's line over SSH, by paramiko or the ssh binary: two file descriptors."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ....node.procs import write_all
from ...lines import Line, choose_last_words

TAIL_BYTES = 4000
_PIECE_BYTES = 64 * 1024
_SENT_BYTES = 4 * (32 * 1024 - 64)  # per write: full paramiko packets without a small remainder
_LAST_WORDS_S = 0.3
STDERR_S = 1.0  # to read the last output of an ended process


class Tail:
    """The last bytes of a stderr, which a thread reads."""

    def __init__(self) -> None:
        self._data, self._thread = b"", threading.Thread()

    def follow(self, read: Callable[[int], bytes], close: Callable[[], object] = lambda: None) -> None:
        """Read to the end, and then close."""

        def run() -> None:
            with contextlib.suppress(OSError, EOFError):
                while data := read(_PIECE_BYTES):
                    self._data = (self._data + data)[-TAIL_BYTES:]
            close()

        self._thread = threading.Thread(target=run, name="ssh-stderr", daemon=True)
        self._thread.start()

    def wait(self, limit_s: float | None = None) -> None:
        """Wait for the end of what is read, if anything is."""
        if self._thread.is_alive():
            self._thread.join(limit_s)

    def get_text(self) -> str:
        return self._data.decode("utf-8", "replace").strip()

    def get_last_words(self) -> str:
        return choose_last_words(self.get_text())


class Channel(ABC):
    """A line to the agent on a host. The caller closes its descriptors.

    When both are closed, or this process dies, the line closes on the host too.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd, self.write_fd, self.tail = read_fd, write_fd, Tail()
        self.line = Line(read_fd, write_fd, self.describe_end)
        self.over = threading.Event()  # set when no more data will come
        self.status: int | None = None  # exit code, 128+n after a signal; None if unknown

    def describe_end(self) -> str:
        """Return the last messages of the other side and its exit, as text."""
        self.over.wait(_LAST_WORDS_S)
        cut = "the SSH connection was cut" if self.over.is_set() and self.status is None else ""
        ended = f"ended with {self.status}" if self.status else ""
        return "; ".join(text for text in (self.tail.get_last_words(), cut, ended) if text)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end; return the exit code, None if still unknown."""
        self.over.wait(timeout_s)
        return self.status

    @abstractmethod
    def close(self) -> None:
        """Cut the line but leave the descriptors open. May be called twice, never raises."""

    def abort(self) -> None:
        """Do so at once, whatever the other end does."""
        self.close()


class ParamikoChannel(Channel):
    """A session of a paramiko connection, copied to and from two pipes by threads."""

    def __init__(self, session: Any) -> None:
        read_fd, self._inward = os.pipe()
        self._outward, write_fd = os.pipe()
        super().__init__(read_fd, write_fd)
        self._session = session
        self.tail.follow(session.recv_stderr)
        for work in (self._send, self._receive):
            threading.Thread(target=work, name="ssh-copy", daemon=True).start()

    def _send(self) -> None:
        with contextlib.suppress(OSError, EOFError):  # the receiving thread reports the cause
            while data := os.read(self._outward, _SENT_BYTES):
                self._session.sendall(data)
        os.close(self._outward)
        with contextlib.suppress(OSError, EOFError):
            self._session.shutdown_write()

    def _receive(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while data := self._session.recv(_PIECE_BYTES):
                with contextlib.suppress(OSError):  # nobody reads it; the sender must not block
                    write_all(self._inward, data)
        os.close(self._inward)
        self.tail.wait()
        status: int = self._session.recv_exit_status()
        self.status = status if status >= 0 else None  # -1: connection cut, or ended by a signal
        self.over.set()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._session.close()


class BinaryChannel(Channel):
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        super().__init__(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()))
        process.stdin.close()
        process.stdout.close()
        self._process = process
        self.tail.follow(process.stderr.read, process.stderr.close)
        threading.Thread(target=self._wait, name="ssh-wait", daemon=True).start()

    def _wait(self) -> None:
        code = self._process.wait()
        self.status = 128 - code if code < 0 else code
        self.tail.wait(STDERR_S)  # bounded: a process left behind may hold stderr open
        self.over.set()

    def close(self) -> None:
        self._process.terminate()

    def abort(self) -> None:
        self._process.kill()
