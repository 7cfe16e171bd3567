"""Questions to the user on the terminal, also those of the ssh binary: passphrases, PINs, host keys.

ssh has no terminal here. For each question it runs a program (SSH_ASKPASS), which passes the question to
this process over a Unix socket and returns the answer.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import socket
import sys
import tempfile
import termios
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from ....node.logs import clean_lines
from .attempt import SLICE_S, Deadline

_TICKET = "PSLAUNCH_ASKPASS"
_PROGRAM = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.connect(os.path.join(os.path.dirname(os.environ["SSH_ASKPASS"]), "socket"))
    s.sendall("\\0".join([os.environ["PSLAUNCH_ASKPASS"], *sys.argv[1:2]]).encode("utf-8", "surrogateescape"))
    s.shutdown(socket.SHUT_WR)
    answer = b"".join(iter(lambda: s.recv(4096), b""))
if not answer:
    sys.exit(1)
os.write(1, answer)
"""


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
                piece = os.read(fd, 4096)
                if not piece:
                    return b""
                data += piece
        return data[:-1]


class Askpass:
    """Server that answers the ssh processes of a job; asks one question at a time and repeated ones once."""

    def __init__(self, ask: Callable[[str], str]) -> None:
        self._ask = ask
        self._folder = Path(tempfile.mkdtemp(prefix="pslaunch-ask-"))  # 0700
        program = self._folder / "askpass"
        words = shlex.join([sys.executable, "-I", "-S", "-c", _PROGRAM])
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        program.chmod(0o700)
        self._tickets: dict[str, tuple[Deadline, set[str]]] = {}
        self._answers: dict[str, str] = {}
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self._folder / "socket"))
        self._server.listen(64)
        threading.Thread(target=self._serve, name="ssh-askpass", daemon=True).start()

    def make_environment(self, deadline: Deadline) -> Mapping[str, str]:
        """Return the environment of one ssh process; its deadline is suspended while the user answers."""
        ticket = os.urandom(16).hex()
        self._tickets[ticket] = deadline, set()
        program = str(self._folder / "askpass")
        # ssh before 8.4 checks DISPLAY instead of SSH_ASKPASS_REQUIRE.
        wanted = {"SSH_ASKPASS": program, "SSH_ASKPASS_REQUIRE": "force", _TICKET: ticket}
        return {"DISPLAY": ":0", **os.environ, **wanted}

    def close(self) -> None:
        """Stop answering. May be called twice."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        with self._server, contextlib.suppress(OSError):
            while True:
                caller, _ = self._server.accept()
                with caller, contextlib.suppress(OSError, ValueError):
                    caller.settimeout(5.0)
                    words = caller.makefile("rb").read().decode("utf-8", "replace")
                    caller.sendall(self._answer(words).encode("utf-8", "surrogateescape"))

    def _answer(self, words: str) -> str:
        """Return the answer to a caller; empty for an unknown ticket."""
        ticket, question = words.split("\0", 1)
        if ticket not in self._tickets:
            return ""
        deadline, asked = self._tickets[ticket]
        # If one process repeats a question, the first answer was wrong.
        if question in asked or question not in self._answers:
            with deadline.stop_clock():
                self._answers[question] = self._ask(question)
        asked.add(question)
        return f"{self._answers[question]}\n"
