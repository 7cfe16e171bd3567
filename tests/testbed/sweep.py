"""Removes everything of a set of hosts, whatever state it is in; may be done again at any time.

Run as a program it is the guard of a set: it waits until the process that made the hosts closes the guard's
standard input or dies, however it dies, and then removes them. Standard library only: it starts in a moment.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
VARIABLE = "PSLAUNCH_TESTBED"  # in the environment of what holds a host up: the id of its set
LINK = "pt"  # how names of all links of all sets begin; the id follows
RUN_DIGITS, ID_DIGITS = 5, 9  # of an id: its first are those of the run that made the set
NAMESPACE = "k8s.io"  # containerd's, for the pods of all its nodes: a folder of containers, and their cgroup
CONTAINERS = f"containerd/io.containerd.runtime.v2.task/{NAMESPACE}"  # in the folder of a node
PATIENCE_S = 10.0


def start_guard(set_id: str, folder: Path, claims: Iterable[socket.socket]) -> subprocess.Popen[bytes]:
    """Start the guard of a set, which holds its subnets until then, too."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, set_id, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[claim.fileno() for claim in claims],
        env={"PATH": PATH, VARIABLE: set_id}, cwd="/", start_new_session=True,
    )  # fmt: skip


def links(set_id: str) -> list[str]:
    """Names of the bridges of sets whose id begins so, and of the links into them."""
    return sorted(name for _, name in socket.if_nameindex() if name.startswith(LINK + set_id))


def read_environs() -> dict[int, bytes]:
    """By process id the environment of every other process, each variable between two NULs."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - around each test: pathlib takes twice as long
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb", buffering=0) as file:  # noqa: PTH123
                found[int(name)] = b"\0" + file.read() + b"\0"
    return found


def outer_processes(set_id: str, environs: Mapping[int, bytes] | None = None) -> dict[int, str]:
    """By process id the set's id: what holds hosts up, and guards, of sets whose id begins so.

    All else on a host ends with what holds it. This process is left out.
    """
    mark = f"\0{VARIABLE}=".encode()
    found = {}
    for pid, environ in (read_environs() if environs is None else environs).items():
        _, there, rest = environ.partition(mark)
        if there and rest.startswith(set_id.encode()):
            found[pid] = rest.partition(b"\0")[0].decode()
    return found


def ip(*lines: str, check: bool = True) -> None:
    """Run lines of the command `ip` in one go; RuntimeError with its own words, unless they may fail."""
    options = [] if check else ["-force"]
    done = subprocess.run(
        ["ip", *options, "-batch", "-"], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    if check and done.returncode:
        raise RuntimeError(f"ip: {done.stderr.strip()}\nof:\n" + "\n".join(lines))


def sweep(set_id: str, folder: str) -> None:
    """Remove the links, then the processes, then the folder. RuntimeError if something stays."""
    # Links first: nobody hears from a host again, not even that its connections are closed.
    if names := links(set_id):
        ip(*(f"link del {name}" for name in reversed(names)), check=False)
    end_s = time.monotonic() + PATIENCE_S
    while pids := [pid for pid in outer_processes(set_id) if not _ended(pid)]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end_s:
            raise RuntimeError(f"processes {pids} do not end")
        time.sleep(0.005)
    remove_cgroups({LINK + set_id, *(path.name for path in Path(folder).glob(f"*/{CONTAINERS}/*"))})
    if any(Path(folder).glob(f"*/{CONTAINERS}")):  # it was a cluster, whose pods may be gone already
        for group in [path for path in Path("/sys/fs/cgroup").glob("**/") if path.name == NAMESPACE]:
            with contextlib.suppress(OSError):  # others are in it
                group.rmdir()
    shutil.rmtree(folder, ignore_errors=True)
    if left := [*links(set_id), *([folder] if Path(folder).exists() else [])]:
        raise RuntimeError(f"can't be removed: {', '.join(left)}")


def remove_cgroups(names: Set[str]) -> None:
    """Remove the cgroups of these names in every hierarchy, with all in them."""
    end_s = time.monotonic() + PATIENCE_S
    for group in [path for path in Path("/sys/fs/cgroup").glob("**/") if path.name in names]:
        for folder, _, _ in os.walk(group, topdown=False):
            _remove_group(Path(folder), end_s)


def _remove_group(group: Path, end_s: float) -> None:
    """Remove a cgroup, whose last process may be about to end. Raises OSError."""
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.005)


def _ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def empty(folder: Path) -> None:
    """Remove what is in a folder."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    sweep(sys.argv[1], sys.argv[2])
