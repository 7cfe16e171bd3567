"""One program on a node: its log, its progress socket, signals to it, its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import socket
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pslaunch.runtime.shared import env, reports

from .. import codes, logs, ports, procs
from ..line.wire import MAX_OUTPUT_BYTES, Output

if TYPE_CHECKING:
    from ..line.wire import MessageLine
    from ..loop import Loop
    from ..messages import OfAgent, ProgramOrder, Report
    from .loan import Loan

OUTPUT_READ_BYTES = MAX_OUTPUT_BYTES
TURN_REPORTS = 64  # per turn: a program that reports faster than we read must not block us
MAX_REPORTS = 1024  # more than a socket holds
PROGRESS_EVERY_S = 0.2  # reports of one process to the head; only the newest is sent


class Owner(Protocol):
    """The agent as its programs see it."""

    loop: Loop
    line: MessageLine[OfAgent]
    lent: Mapping[str, Loan]  # by key of a program
    program_files: tuple[int, int]  # programs' limits of open files; ours are higher
    held: dict[str, list[socket.socket]]  # bound ports of programs that have not started

    def report_trouble(self, key: str, code: int, text: str) -> None:
        """Report a failure of this program while it runs."""


class Program:
    """One process of the job on this node: its log, its progress socket, its end."""

    def __init__(self, owner: Owner, number: int, order: ProgramOrder) -> None:
        self._owner, self._loop, self.number = owner, owner.loop, number
        self.key, self.role, self.log_path = str(order["key"]), str(order["role"]), str(order["log"])
        self.process: subprocess.Popen[bytes] | None = None
        self.signalled = False  # by us
        self.ended = False
        self._written = 0
        self._log_failed = False
        self._report: Report = {}
        self._report_due = False
        self._oom_before = procs.count_oom_kills()
        contract = dict(order["contract"])
        try:
            self._log = open(self.log_path, "wb", buffering=0)  # noqa: SIM115 - closed in `finish`
        except OSError as e:
            text = f"{self.log_path} can't be written: {e.strerror}{codes.find_remedy(e)}"
            raise codes.Refusal(codes.choose_code(e), text) from None
        self._progress = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._progress.bind(contract["PSLAUNCH_PROGRESS"])
        self._out, out_w = os.pipe()
        os.set_blocking(self._out, False)
        held = owner.held.pop(self.key, [])
        kept = [s.fileno() for s in held] if order["keep_ports"] else []
        if not kept:
            ports.close_all({self.key: held})
        try:
            self._start(order, contract, out_w, kept)
        except BaseException:
            self.finish()
            raise
        finally:
            os.close(out_w)
            ports.close_all({self.key: held})
        self._loop.watch(self._out, read=self._take_output)
        self._loop.watch(self._progress.fileno(), read=self.read_progress)

    def _start(self, order: ProgramOrder, contract: dict[str, str], out: int, kept: Sequence[int]) -> None:
        """Start its process; `kept`: descriptors of its bound ports, which it gets."""
        if kept:
            contract[env.LISTEN_FDS] = ",".join(map(str, kept))
        owner = self._owner
        argv, loan = [os.path.expanduser(order["argv"][0]), *order["argv"][1:]], owner.lent.get(self.key)
        inherited = loan.make_environ(argv) if loan else os.environ
        with loan.bind() if loan else contextlib.nullcontext():
            self.process = subprocess.Popen(
                argv,
                cwd=order["cwd"],
                env=env.compose(inherited, order["added_env"], contract),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=kept,
                start_new_session=True,
            )
        with contextlib.suppress(OSError):  # it runs with the rights of another user, or has ended
            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, owner.program_files)

    # --- output ---

    def _take_output(self) -> None:
        self._read_output()

    def _read_available(self) -> None:
        """Read the output up to now, and nothing that a left-over process writes meanwhile."""
        available = bytearray(4)
        fcntl.ioctl(self._out, termios.FIONREAD, available)
        (left,) = struct.unpack("i", available)
        while left > 0 and (taken := self._read_output()):
            left -= taken

    def _read_output(self) -> int:
        try:
            data = os.read(self._out, OUTPUT_READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._loop.watch(self._out)
            return 0
        self._write_log(data)
        self._owner.line.send_output(Output(self.number, self._written, data))
        self._written += len(data)
        return len(data)

    def _write_log(self, data: bytes) -> None:
        if self._log_failed:
            return
        try:
            procs.write_all(self._log.fileno(), data)
        except OSError as e:
            self._log_failed = True
            text = f"{self.log_path} can't be written: {e.strerror}; free space, or choose another --log_dir"
            self._owner.report_trouble(self.key, codes.IO, text)

    # --- progress ---

    def read_progress(self, limit: int = TURN_REPORTS) -> None:
        """Read the reports; send the newest values a few times a second, a state at once."""
        urgent = False
        with contextlib.suppress(BlockingIOError):
            for _ in range(limit):
                for report in reports.parse_progress(self._progress.recv(reports.MAX_PROGRESS_BYTES)):
                    urgent = urgent or "state" in report
                    self._report.update(report)  # type: ignore[typeddict-item] # its fields are read by env
        if urgent:
            self._send_report()
        elif self._report and not self._report_due:
            self._report_due = True
            self._loop.call_after(PROGRESS_EVERY_S, self._send_report)

    def _send_report(self) -> None:
        self._report_due = False
        if self._report:
            self._owner.line.send({"type": "progress", "key": self.key, **self._report})
            self._report = {}

    # --- the end ---

    def signal(self, number: int) -> None:
        """Signal its process group; KILL goes to all descendants too."""
        if self.ended or self.process is None:
            return
        self.signalled = True
        if number == signal.SIGKILL:
            for proc in procs.list_descendants(self.process.pid):
                procs.send(proc, number)
        procs.send_group(self.process.pid, number)

    def handle_exit(self, status: int) -> None:
        """Report the end of its main process after its output, a failure also before output that waits."""
        assert self.process is not None
        self.ended = True
        code, name = procs.describe_exit(status)
        self.process.returncode = code  # we have waited for it, Popen must not
        self.read_progress(MAX_REPORTS)
        self._send_report()
        self._read_available()
        oom = name == "SIGKILL" and not self.signalled and procs.count_oom_kills() > self._oom_before
        line, tail = self._owner.line, logs.read_tail(self.log_path)
        failed = code != codes.OK and not self.signalled
        for ahead in [True, False] if failed and line.is_behind else [False]:
            line.send(
                {
                    "type": "exited",
                    "key": self.key,
                    "code": code,
                    "signal": name,
                    "asked": self.signalled,
                    "oom": oom,
                    "written": self._written,
                    "tail": tail,
                    "ahead": ahead,
                },
                in_order=not ahead,
            )

    def finish(self) -> None:
        """Close all descriptors; the other holders of the pipe were killed before."""
        if not self._log.closed:
            self._read_available()
            self._loop.watch(self._out)
            self._loop.watch(self._progress.fileno())
            os.close(self._out)
            self._progress.close()
            self._log.close()
