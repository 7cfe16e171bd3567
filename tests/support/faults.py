"""Faults in jobs: processes held at a chosen moment, lines that are cut or silent, what is left of a job."""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import shlex
import shutil
import signal
import socket
import struct
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support import leaks
from support.process import poll_until, until_empty

HOOKS = Path(__file__).parents[1] / "faults" / "hooks"
MARK = "PSLAUNCH_TEST_CASE"  # in the environment of every process of one job under test


@dataclass(frozen=True)
class Fault:
    """One cell of a matrix: who is hit, when, and how."""

    who: str
    when: str
    how: str
    node: int = 0  # of a keeper, an agent or a host

    def __str__(self) -> str:
        return f"{self.who}-{self.when}-{self.how}" + (f"-{self.node}" if self.node else "")

    @property
    def number(self) -> int:
        """The signal by which it is done; 0: by none."""
        return int(getattr(signal, f"SIG{self.how}", 0))


class Held:
    """A process that waits at its moment until it gets an order."""

    def __init__(self, sock: socket.socket) -> None:
        data, self.fds, _, _ = socket.recv_fds(sock, 1000, 4)
        self.who, self.event = data.decode().split()
        told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid: int = struct.unpack("3i", told)[0]  # as this machine calls it, also if it is on a host
        self._sock = sock
        for fd in self.fds:
            os.set_inheritable(fd, False)

    def tell(self, what: str = "go on") -> None:
        """Have it go on, `exit 3`, or eat memory, all (`oom`) or up to a limit of its own (`eat`).

        A process that was killed hears nothing.
        """
        with contextlib.suppress(OSError):
            self._sock.send(what.encode())
        self._sock.close()


class Control:
    """Server that processes of a job ask at each moment. Takes each moment once: others go on unasked."""

    def __init__(self, path: str, moments: Sequence[str]) -> None:
        self.mark = uuid.uuid4().hex
        self._path, self._moments = path, moments
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._held: queue.Queue[Held] = queue.Queue()
        self._taken: list[Held] = []
        self._lines: list[LineProxy] = []  # of further keepers, which nobody asked for
        self._seen: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def env(self, *, line: bool = False, dial: bool = False) -> dict[str, str]:
        """Return the variables that the job's launcher needs in its environment."""
        return {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HOOKS), os.environ.get("PYTHONPATH")])),
            "PSLAUNCH_TEST_SOCKET": self._path,
            "PSLAUNCH_TEST_HOLD": "\n".join(self._moments),
            MARK: self.mark,
            **({"PSLAUNCH_TEST_LINE": "1"} if line else {}),
            **({"PSLAUNCH_TEST_DIAL": "1"} if dial else {}),
        }

    def python(self, folder: Path) -> str:
        """Text of a program for a host's `--agent_python`: has whom it starts come here. Puts hooks there."""
        shutil.copy(HOOKS / "sitecustomize.py", folder)
        env = self.env() | {"PYTHONPATH": str(folder), "PSLAUNCH_TEST_HOST": "1"}
        words = shlex.join(["env", *(f"{name}={value}" for name, value in env.items()), "python3"])
        return f'#!/bin/sh\nshift 2 # -I -S, which keep hooks out\nexec {words} "$@"\n'

    def _serve(self) -> None:
        while True:
            try:
                held = Held(self._listener.accept()[0])
            except (OSError, ValueError):  # closed; or killed before it said a word
                if self._listener.fileno() < 0:
                    return
                continue
            if (held.who, held.event) in self._seen:
                if held.fds:
                    self._lines.append(LineProxy(held.fds))
                held.tell()
            else:
                self._seen.add((held.who, held.event))
                self._held.put(held)

    def held(self, *, within_s: float = 60.0) -> Held:
        """The next process that has come to its moment."""
        try:
            held = self._held.get(timeout=within_s)
        except queue.Empty:
            raise AssertionError(f"nobody came to {self._moments} within {within_s:g} s") from None
        self._taken.append(held)
        return held

    def processes(self) -> dict[int, str]:
        """Command line by pid of what is alive of the job."""
        return leaks.marked_processes(f"{MARK}={self.mark}")

    def until_gone(self, within_s: float, *, but: Sequence[int] = ()) -> None:
        """Wait until nothing of the job is alive, `but` excepted; AssertionError after `within_s`."""
        until_empty(
            lambda: {pid: words for pid, words in self.processes().items() if pid not in but}, within_s
        )

    def close(self) -> None:
        """Let everyone go on, and hear nobody any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        while not self._held.empty():
            self._taken.append(self._held.get())
        for held in self._taken:
            held.tell()
        for line in self._lines:
            line.close()


@contextlib.contextmanager
def control(*moments: str, below: Path | None = None) -> Iterator[Control]:
    """A control of one job; each of `moments` is `who event number`. `below`: a folder that hosts see too."""
    with tempfile.TemporaryDirectory(prefix="pslt-", dir=below) as folder:
        found = Control(f"{folder}/c", moments)
        try:
            yield found
        finally:
            found.close()


class LineProxy:
    """Stands in a keeper's line: forwards, until the test has it swallow all bytes, or close."""

    def __init__(self, fds: Sequence[int]) -> None:
        from_head, to_agent, from_agent, to_head = fds
        self._ways: Mapping[int, int] = {from_head: to_agent, from_agent: to_head}
        self._fds = set(fds)
        self._order, self._orders = socket.socketpair()
        self.swallowing = False
        self.longest_silence_s = [0.0, 0.0]  # of head and agent
        self.heard = [0, 0]  # how often
        self._heard_s = [time.monotonic()] * 2
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, ctl: Control) -> LineProxy:
        """In the line of the job's keeper, which waits for it."""
        held = ctl.held()
        proxy = cls(held.fds)
        held.tell()
        return proxy

    def swallow(self) -> None:
        """Be silent from now on."""
        self.swallowing = True

    def close(self) -> None:
        """Close all that is open. May be called twice."""
        self._order.close()
        self._thread.join()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, self._orders:
            selector.register(self._orders, selectors.EVENT_READ)
            for fd in self._ways:
                selector.register(fd, selectors.EVENT_READ)
            while True:
                ready = [key.fd for key, _ in selector.select()]
                if self._orders.fileno() in ready:
                    break
                for fd in ready:
                    if not self._forward(fd):
                        selector.unregister(fd)
        for fd in self._fds:
            os.close(fd)

    def _note(self, side: int) -> None:
        now_s = time.monotonic()
        self.longest_silence_s[side] = max(self.longest_silence_s[side], now_s - self._heard_s[side])
        self._heard_s[side] = now_s
        self.heard[side] += 1

    def _forward(self, fd: int) -> bool:
        """Pass on what is there; at an end close the other side too."""
        data = os.read(fd, 65536)
        self._note(list(self._ways).index(fd))
        if self.swallowing:
            return bool(data)
        other = self._ways[fd]
        try:
            if not data:
                raise BrokenPipeError
            while data:
                data = data[os.write(other, data) :]
        except OSError:
            if other in self._fds:
                self._fds.discard(other)
                os.close(other)
            return False
        return True


class MemoryLimit:
    """The kernel's limit to the memory of a job, where we may make a cgroup."""

    LIMIT_BYTES = 400 << 20
    _FILES = (("memory/memory.limit_in_bytes", "memory/"), ("memory.max", ""))  # cgroup v1, v2

    def __init__(self) -> None:
        self._folder: Path | None = None
        base = Path("/sys/fs/cgroup")
        for file, below in self._FILES:
            folder = base / below / f"pslt-{uuid.uuid4().hex}"
            with contextlib.suppress(OSError):
                folder.mkdir()
                try:
                    (folder / Path(file).name).write_text(str(self.LIMIT_BYTES))
                except OSError:
                    folder.rmdir()
                    raise
                self._folder = folder
                break

    @property
    def by_kernel(self) -> bool:
        """Return True if the kernel has a limit: a process above it is killed, not refused."""
        return self._folder is not None

    def take(self, pid: int) -> None:
        """This process, and what it starts from here on."""
        if self._folder:
            (self._folder / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        if self._folder:
            folder = self._folder
            poll_until(lambda: not folder.joinpath("cgroup.procs").read_text(), describe="cgroup is empty")
            folder.rmdir()


@contextlib.contextmanager
def memory_limit() -> Iterator[MemoryLimit]:
    """A limit that is gone in the end."""
    limit = MemoryLimit()
    try:
        yield limit
    finally:
        limit.close()
