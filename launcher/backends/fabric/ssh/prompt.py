"""Questions to the user on the terminal, without echo; the end of the job cancels them."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading

from ....node.logs import clean_lines

SLICE_S = 0.2  # interval for noticing that the question was cancelled
MAX_BYTES = 4096


class Prompt:
    """Terminal prompt for any number of threads; all prompts together ask one question at a time."""

    _one = threading.Lock()

    def __init__(self, terminal: str = "/dev/tty") -> None:
        self._terminal = terminal
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """Cancel all questions soon, from another thread; restores the terminal."""
        self._given_up.set()

    def ask(self, question: str) -> str:
        """Return the answer, one line; empty if there is none (Ctrl+D)."""
        with self._one:
            return "" if self._given_up.is_set() else self._ask(question)

    def _ask(self, question: str) -> str:
        try:
            fd = os.open(self._terminal, os.O_RDWR | os.O_NOCTTY)
        except OSError:  # no controlling terminal, but stdin is a terminal
            fd = os.dup(sys.stdin.fileno())
        try:
            before = termios.tcgetattr(fd)
            silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
            termios.tcsetattr(fd, termios.TCSAFLUSH, silent)
            try:
                os.write(fd, clean_lines(question).encode())  # its text may come from a host
                return self._read_line(fd).decode("utf-8", "surrogateescape")
            finally:
                termios.tcsetattr(fd, termios.TCSAFLUSH, before)
                os.write(fd, b"\n")
        finally:
            os.close(fd)

    def _read_line(self, fd: int) -> bytes:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        data = b""
        while not data.endswith(b"\n"):
            if self._given_up.is_set():
                return b""
            if poll.poll(SLICE_S * 1000):
                piece = os.read(fd, MAX_BYTES)
                if not piece:
                    return b""
                data += piece
        return data[:-1]
