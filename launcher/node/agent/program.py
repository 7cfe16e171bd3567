"""Programs on a node: their logs, progress sockets, signals to them, their ends, what they use."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pslaunch.runtime.shared import env, reports

from .. import binding, codes, logs, procs
from ..ending import CUT
from ..line.wire import MAX_OUTPUT_BYTES, Output

if TYPE_CHECKING:
    from ..line.wire import MessageLine
    from ..loop import Loop
    from ..messages import ExitedMsg, OfAgent, ProgramOrder, Report
    from .loan import Loan

MAX_METRICS, MAX_METRIC_CHARS = 64, 100  # of one process, whose states the head keeps; others are left out
TURN_REPORTS = 64  # per turn: a program that reports faster than we read must not block us
MAX_REPORTS = 1024  # more than a socket holds
ALONE_EVERY_S = 5.0  # reports of processors and memory alone
PROGRESS_EVERY_S = 0.2  # reports of one process to the head; only the newest is sent
USAGE_EVERY_S = 1.0
REST = 100  # times as long as a measurement, which reads all of /proc: at most 1 % of a processor


class Program:
    """One process of the job on this node: its log, its progress socket, its end."""

    umask = -1  # the user's; ours is stricter
    file_limits = resource.getrlimit(resource.RLIMIT_NOFILE)  # of open files, the user's; ours are higher

    def __init__(
        self,
        loop: Loop,
        line: MessageLine[OfAgent],
        number: int,
        order: ProgramOrder,
        *,
        kept_fds: Sequence[int] = (),
        loan: Loan | None = None,
    ) -> None:
        """kept_fds: its bound ports, which it gets."""
        self._loop, self._line, self._number = loop, line, number
        self.key, self.role, self._log_path = str(order["key"]), str(order["role"]), str(order["log"])
        self._signalled = False  # by us
        self.ended = False
        self._written = 0
        self._log_failed = False
        self._report: Report = {}
        self._metrics: set[str] = set()  # names of its metrics
        self._report_due, self._sent_s, self._has_step = False, loop.now(), False
        self._oom_before = procs.count_oom_kills()
        again = order["contract"].get("PSLAUNCH_EPOCH", "0") != "0"  # its log goes on
        try:
            self._log = open(self._log_path, "ab" if again else "wb", buffering=0)  # noqa: SIM115 - closed in `finish`
        except OSError as e:
            text = f"{self._log_path} can't be written: {e.strerror}{codes.find_remedy(e)}"
            raise codes.Refusal(codes.choose_code(e), text) from None
        self._begin = self._log.tell()
        self._progress = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._progress.bind(order["contract"]["PSLAUNCH_PROGRESS"])
        self._out, out_w = os.pipe()
        os.set_blocking(self._out, False)
        try:
            self.process = _start(order, out_w, kept_fds, loan)
        except BaseException:
            self.finish()
            raise
        finally:
            os.close(out_w)
        if order["role"] != env.TRAINER:  # which has them: pservers are started without a function, faster
            with contextlib.suppress(OSError):  # it runs with the rights of another user, or has ended
                resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, self.file_limits)
        loop.watch(self._out, read=self._read_output)
        loop.watch(self._progress.fileno(), read=self.read_progress)

    # --- output ---

    def _read_available(self) -> None:
        """Read the output up to now, and nothing that a left-over process writes meanwhile."""
        available = bytearray(4)
        fcntl.ioctl(self._out, termios.FIONREAD, available)
        (left,) = struct.unpack("i", available)
        while left > 0 and (taken := self._read_output()):
            left -= taken

    def _read_output(self) -> int:
        try:
            data = os.read(self._out, MAX_OUTPUT_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._loop.watch(self._out)
            return 0
        self._write_log(data)
        self._line.send_output(Output(self._number, self._written, data))
        self._written += len(data)
        return len(data)

    def _write_log(self, data: bytes) -> None:
        if self._log_failed:
            return
        try:
            procs.write_all(self._log.fileno(), data)
        except OSError as e:
            self._log_failed = True
            text = f"{self._log_path} can't be written: {e.strerror}; free space, or choose another --log_dir"
            self._line.send({"type": "trouble", "key": self.key, "code": codes.IO, "text": text})

    # --- progress ---

    def read_progress(self, limit: int = TURN_REPORTS) -> None:
        """Read the reports; send the newest values a few times a second, a state or first step at once."""
        urgent = False
        with contextlib.suppress(BlockingIOError):
            for _ in range(limit):
                for report in reports.parse_progress(self._progress.recv(reports.MAX_PROGRESS_BYTES)):
                    first = "batch" in report and not self._has_step  # which a restart needs
                    urgent, self._has_step = urgent or first or "state" in report, self._has_step or first
                    known = {name: value for name, value in report.items() if self._is_known(name)}
                    self._report.update(known)  # type: ignore[typeddict-item] # its fields are read by env
        if urgent:
            self._send_report()
        else:
            self._send_soon()

    def _is_known(self, name: str) -> bool:
        """Return True for a name that no metric, or one of the first metrics, has."""
        _, is_metric, metric = name.partition("metric.")
        if is_metric and len(metric) <= MAX_METRIC_CHARS and len(self._metrics) < MAX_METRICS:
            self._metrics.add(metric)
        return not is_metric or metric in self._metrics

    def note_usage(self, used: Report) -> None:
        """Send with the next report what its processes use; alone only now and then, as events are kept."""
        self._report.update(used)
        if self._loop.now() - self._sent_s >= ALONE_EVERY_S:
            self._send_soon()

    def _send_soon(self) -> None:
        if self._report and not self._report_due:
            self._report_due = True
            self._loop.call_after(PROGRESS_EVERY_S, self._send_report)

    def _send_report(self) -> None:
        self._report_due = False
        if self._report:
            self._line.send({"type": "progress", "key": self.key, **self._report})
            self._report, self._sent_s = {}, self._loop.now()

    # --- the end ---

    def signal(self, number: int) -> None:
        """Signal its process group; KILL goes to all descendants too."""
        if self.ended:
            return
        if number == CUT:
            with contextlib.suppress(OSError):  # the disk is full: then there is no snapshot either
                open(self._progress.getsockname() + reports.WANTED_CUT, "w").close()
            return
        self._signalled = True
        if number == signal.SIGKILL:
            for proc in procs.list_descendants(self.process.pid):
                procs.send(proc, number)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # we have not waited for it yet
            os.killpg(self.process.pid, number)

    def handle_exit(self, status: int) -> None:
        """Report the end of its main process after its output, a failure also before output that waits."""
        self.ended = True
        code, name = procs.describe_exit(status)
        self.process.returncode = code  # we have waited for it, Popen must not
        self.read_progress(MAX_REPORTS)
        self._send_report()
        self._read_available()
        tail = logs.read_tail(self._log_path, self._begin)
        oom = name == "SIGKILL" and not self._signalled and procs.count_oom_kills() > self._oom_before
        exited: ExitedMsg = {
            "type": "exited", "key": self.key, "code": code, "signal": name, "asked": self._signalled,
            "oom": oom, "written": self._written, "tail": tail, "ahead": False,
        }  # fmt: skip
        if code != codes.OK and not self._signalled and self._line.is_behind:
            self._line.send({**exited, "ahead": True})
        self._line.send(exited, in_order=True)

    def finish(self) -> None:
        """Close all descriptors; the other holders of the pipe were killed before."""
        if not self._log.closed:
            self._read_available()
            self._loop.watch(self._out)
            self._loop.watch(self._progress.fileno())
            os.close(self._out)
            for suffix in ("", reports.WANTED_CUT):  # for the program of the next epoch
                with contextlib.suppress(OSError):
                    os.unlink(self._progress.getsockname() + suffix)
            self._progress.close()
            self._log.close()


def _start(order: ProgramOrder, out: int, kept: Sequence[int], loan: Loan | None) -> subprocess.Popen[bytes]:
    def begin_trainer() -> None:
        procs.end_with_parent()
        # Python closes fewer descriptors below this limit; all of ours close themselves.
        resource.setrlimit(resource.RLIMIT_NOFILE, Program.file_limits)

    argv = [os.path.expanduser(order["argv"][0]), *order["argv"][1:]]
    listening = {env.LISTEN_FDS: ",".join(map(str, kept))} if kept else {}
    inherited = loan.make_environ(argv) if loan else os.environ
    cores, before = order["cores"] or (loan.cpus if loan else ()), os.sched_getaffinity(0)
    try:
        if cores:
            os.sched_setaffinity(0, cores)
        return subprocess.Popen(
            argv,
            cwd=order["cwd"],
            env=binding.compose(inherited, order["added_env"], {**order["contract"], **listening}),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            pass_fds=kept,
            start_new_session=True,
            umask=Program.umask,
            # For an end of both guards at once. Pservers go on, and save once their trainers are gone.
            preexec_fn=begin_trainer if order["role"] == env.TRAINER else None,
        )
    finally:
        os.sched_setaffinity(0, before)


def make_own_argv() -> list[str]:
    """Return the command that starts this package: from our zipapp, or as an installed module."""
    base, inside, _ = str(__spec__.origin).partition("/pslaunch/node/")
    if not inside or not os.path.isfile(base):
        return [sys.executable, "-P", "-m", "pslaunch.node"]
    return [sys.executable, base.replace("/proc/self/", f"/proc/{os.getpid()}/")]


def explain_start_failure(e: codes.Refusal | OSError, program: str) -> tuple[int, str]:
    if isinstance(e, codes.Refusal):
        return e.code, str(e)
    where = f" ({e.filename})" if e.filename else ""
    text = f"{program} can't be started: {e.strerror}{where}{codes.find_remedy(e)}"
    return 127 if e.errno == errno.ENOENT else 126, text


def follow_usage(loop: Loop, programs: Mapping[str, Program], gpus: Mapping[int, Report]) -> None:
    """Measure programs that run, as long as the loop does; their processes are those of their sessions.

    gpus: what sessions use of them, kept up to date.
    """

    def look(then_s: float, before: Mapping[int, tuple[float, int]]) -> None:
        now_s = loop.now()
        running = {p.process.pid: p for p in programs.values() if not p.ended}
        found = procs.measure_sessions(running) if running else {}
        for pid in found.keys() & before.keys():
            then_cpu_s, (cpu_s, size) = before[pid][0], found[pid]
            if size:  # else it has just ended
                percent = round(max(0.0, 100 * (cpu_s - then_cpu_s) / (now_s - then_s)), 1)
                running[pid].note_usage({"cpu_percent": percent, "memory_bytes": size, **gpus.get(pid, {})})
        wait_s = max(USAGE_EVERY_S, REST * (loop.now() - now_s))
        loop.call_after(wait_s, lambda: look(now_s, found))

    loop.call_after(USAGE_EVERY_S, lambda: look(0.0, {}))
