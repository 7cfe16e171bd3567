"""Commands of datasets: programs that read a file and print text of slots, ended with their children."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from .slots import Line

LAST_WORDS_BYTES = 2000  # of a command that failed
_QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_OPERATOR = re.compile("[|&;<>]")


def split_command(text: object, where: str) -> tuple[str, ...]:
    """Return the words of a pipe_command; () for cat, which changes nothing.

    Raises TypeError or ValueError for text that is no program with its arguments.
    """
    expected = "expected a program with its arguments, or cat"
    if not isinstance(text, str):
        raise TypeError(f"{where}: pipe_command={text!r}, {expected}")
    try:
        words = tuple(shlex.split(text))
    except ValueError as e:
        raise ValueError(f"{where}: pipe_command={text!r}: {e}; {expected}") from None
    if not words:
        raise ValueError(f"{where}: pipe_command is empty, {expected}")
    if _OPERATOR.search(_QUOTED.sub("", text)):
        raise ValueError(
            f"{where}: pipe_command={text!r} is run without a shell; give one program, "
            f"or sh -c {shlex.quote(text)}"
        )
    return () if words == ("cat",) else words


class Commands:
    """Running programs of one pass over files. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def read(self, command: Sequence[str], file: str) -> Iterator[Line]:
        """Read the lines that a program prints, with this file as its standard input.

        `python` is this process's. Raises RuntimeError with the program's exit code and last words if it
        fails. The program's process group ends with the reading.
        """
        shown = f"pipe_command {shlex.join(command)!r}"
        with Path(file).open("rb") as source, tempfile.TemporaryFile() as errors:
            with self._start(command, source, errors, shown) as process:
                try:
                    assert process.stdout is not None  # a pipe
                    for number, text in enumerate(process.stdout, 1):
                        if not text.endswith(b"\n") and _wait(process):
                            break  # a failure may have cut off the last line
                        yield f"{file}, {shown}", number, text
                    code = _wait(process)
                finally:
                    self._end(process)
            if code:
                errors.seek(max(0, errors.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
                last = errors.read().decode(errors="replace").strip() or "it printed no error"
                raise RuntimeError(f"{file}: {shown} ended with {code}: {last}")
            errors.seek(0)
            with io.TextIOWrapper(errors, "utf-8", "replace", "") as words:
                shutil.copyfileobj(words, sys.stderr)

    def end(self) -> None:
        """Kill the running programs with their process groups, and start no more."""
        with self._lock:
            self._ended = True
            for process in self._running:
                _kill(process)

    def _start(
        self, command: Sequence[str], source: IO[bytes], errors: IO[bytes], shown: str
    ) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        with self._lock:
            if self._ended:
                raise RuntimeError(f"{shown}: not started, the pass has ended")
            try:
                process = subprocess.Popen(
                    command,
                    stdin=source,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=os.environ | {"PATH": path},
                    process_group=0,
                )
            except OSError as e:
                raise RuntimeError(f"{shown}: {e.strerror}; expected a program of PATH or a path") from None
            self._running.add(process)
            return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            _kill(process)
            process.wait()
            self._running.discard(process)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for its end and return its exit code; its number stays taken, so that its group can be killed."""
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert found is not None  # WNOHANG is not given
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:  # its number is its own until it has been waited for
        os.killpg(process.pid, signal.SIGKILL)
