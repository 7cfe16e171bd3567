"""Real processes in tests: started, waited for by what they say, gone at the end whatever happens."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from support.clock import Patience

T = TypeVar("T")


def make_script(path: Path, text: str) -> str:
    """Write a program of the shell; return its path."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def poll_until(
    probe: Callable[[], T],
    *,
    describe: Callable[[], str] | str,
    timeout_s: float = 45.0,
    every_s: float = 0.02,
) -> T:
    """The first truthy result of `probe`; for what gives no event to wait on. `describe` ends the message.

    Raises AssertionError after `timeout_s` of this machine's own.
    """
    patience = Patience(timeout_s)
    while True:
        over = not patience.left_s()
        if result := probe():
            return result
        if over:
            text = describe if isinstance(describe, str) else describe()
            raise AssertionError(f"not within {timeout_s:g} s: {text}")
        time.sleep(every_s)


def until_empty(find: Callable[[], Collection[object]], within_s: float) -> None:
    """Wait until nothing is found any more; AssertionError with what is left after `within_s`."""
    poll_until(lambda: not find(), describe=lambda: f"left: {find()}", timeout_s=within_s)


def open_below(folder: Path) -> list[Path]:
    """Files and folders below it that this process has open."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(fd.readlink())
    return [path for path in found if path.is_relative_to(folder)]


def until_gone(pid: int, *, within_s: float) -> None:
    """Wait for the end of a process that need not be our child; AssertionError if it goes on for too long."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    patience = Patience(within_s)
    try:
        while left_s := patience.left_s():
            if select.select([fd], [], [], left_s)[0]:
                return
        raise AssertionError(f"process {pid} still runs after {within_s:g} s")
    finally:
        os.close(fd)


class Started:
    """A process in a session of its own, its stdout and stderr (one stream) read as it comes."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None,
        cwd: Path | None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.argv = list(argv)
        self.proc = subprocess.Popen(
            self.argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
        )
        self._text = ""
        self._ended = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.proc.stdout is not None
        with self.proc.stdout as stream:
            while piece := os.read(stream.fileno(), 65536):
                with self._changed:
                    self._text += piece.decode("utf-8", "replace")
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def pid(self) -> int:
        """Process id, also that of its session and group."""
        return self.proc.pid

    def output(self) -> str:
        """Return the output so far."""
        with self._changed:
            return self._text

    def expect(self, pattern: str, *, timeout_s: float = 60.0) -> re.Match[str]:
        """Wait until the output has `pattern` (`^` and `$` at lines).

        Raises AssertionError with the output when it has not in time.
        """

        return self.until(
            lambda text: re.search(pattern, text, re.MULTILINE), f"no {pattern!r}", timeout_s=timeout_s
        )

    def until(self, probe: Callable[[str], T | None], describe: str, *, timeout_s: float = 60.0) -> T:
        """Wait until `probe` of the output is truthy, and return that.

        Raises AssertionError with `describe` and the output when it is not in time, or never will be.
        """
        patience = Patience(timeout_s)
        with self._changed:
            while not (result := probe(self._text)) and not self._ended and (left_s := patience.left_s()):
                self._changed.wait(left_s)
        assert result, f"{describe} within {timeout_s:g} s from {self._tell()}"
        return result

    def wait(self, *, timeout_s: float = 150.0) -> int:
        """Its exit code, 128+n for a signal; AssertionError with the output if it goes on for too long."""
        patience = Patience(timeout_s)
        while left_s := patience.left_s():
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.proc.wait(left_s)
                self._drain()
                return code if code >= 0 else 128 - code
        raise AssertionError(f"still running after {timeout_s:g} s: {self._tell()}")

    def _drain(self) -> None:
        """Read the rest of the output; a grandchild may hold the pipe open."""
        patience = Patience(2.0)
        while self._reader.is_alive() and (left_s := patience.left_s()):
            self._reader.join(left_s)

    def _tell(self) -> str:
        code = self.proc.poll()
        if code is None:  # with -X faulthandler it says where it is
            self.proc.send_signal(signal.SIGABRT)
            self._drain()
        return f"{' '.join(self.argv)} (exit code {code}), which wrote:\n{self._text}"

    def kill(self) -> None:
        """SIGKILL for its process group; then it is waited for. May be called twice."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.proc.wait()
        self._drain()


@contextlib.contextmanager
def started(
    argv: Sequence[str],
    *,
    ready: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
    timeout_s: float = 60.0,
) -> Iterator[Started]:
    """Run `argv`; yield it when its output has the pattern `ready`. Its group is killed at the end."""
    process = Started(argv, env=env, cwd=cwd, pass_fds=pass_fds)
    try:
        if ready is not None:
            process.expect(ready, timeout_s=timeout_s)
        yield process
    finally:
        process.kill()


def read_memory(pid: int, name: str = "VmHWM") -> int:
    """Return the bytes of memory of a process; by default the most that it has had."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found
    return int(found[1]) << 10


def measure_peak(act: Callable[[], object]) -> int:
    """Return the bytes by which the process's memory rises at most while `act` runs."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = read_memory(os.getpid(), "VmRSS")
    act()
    return read_memory(os.getpid()) - before
