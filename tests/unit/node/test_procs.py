"""Processes: descendants, exact signals, none left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from pslaunch.node import procs

TREE = """
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"grandchild\\n")
    signal.pause()
os.write(1, b"child\\n")
signal.pause()
"""

# Runs as the subreaper: kills all below itself, and says what is left.
REAPER = """
import subprocess, sys
from pslaunch.node import procs
procs.become_subreaper()
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
for _ in range(2):
    child.stdout.readline()
child.kill()
child.wait()  # the rest is handed to us
killed, _, left = procs.kill_descendants()
print(killed, len(left), len(procs.list_descendants(procs.os.getpid())))
"""


def test_subreaper_kills_double_forked_processes() -> None:
    done = subprocess.run([sys.executable, "-c", REAPER, TREE], capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == ["2", "0", "0"], done.stderr


def test_signal_reaches_only_the_given_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        proc = procs.read_proc(child.pid)
        assert proc is not None and proc.parent == os.getpid()
        assert not procs.send(proc._replace(start=proc.start + 1), signal.SIGKILL)  # another had its pid
        assert child.poll() is None
        assert procs.send(proc, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        assert not procs.send(proc, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()


def test_names_with_brackets_and_spaces_are_read_right() -> None:
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b') R 1 (x', 0, 0, 0); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        proc = procs.read_proc(child.pid)
        assert proc is not None and proc.parent == os.getpid()
        child.stdin.close()


def test_exit_status_is_described() -> None:
    assert procs.describe_exit(3 << 8) == (3, "")
    assert procs.describe_exit(signal.SIGSEGV) == (139, "SIGSEGV")
    assert procs.describe_exit(int(signal.SIGRTMIN) + 1)[0] == 128 + signal.SIGRTMIN + 1


def test_usage_of_a_session_is_that_of_all_its_processes() -> None:
    busy = "import os, time\nos.fork()\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    argv, pipe = [sys.executable, "-c", busy], subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, start_new_session=True) as child:
        assert child.stdout and [child.stdout.readline() for _ in range(2)]
        found = procs.measure_sessions([child.pid, 1 << 30])
        os.killpg(child.pid, signal.SIGKILL)
    cpu_s, memory_bytes = found[child.pid]
    assert 0.38 <= cpu_s < 10 and 2 * 2**20 < memory_bytes < 2**30
    assert found[1 << 30] == (0.0, 0)
