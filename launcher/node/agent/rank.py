"""A rank process of mpirun: lends its environment to the agent of its node, and ends as its trainer does.

mpirun starts one for each rank. The first on a node forks the keeper out of mpirun's processes; all of them
lend environment and processors to that node's agent, which starts the trainers. A rank process then waits
for its trainer's exit code; it starts nothing and guards nothing.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pslaunch.runtime.shared import env

from .. import codes, procs
from ..marked import Marked
from . import brought
from .brought import SECRET_VARIABLE
from .loan import VERSION, Loan

RANK, SIZE, LOCAL_SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"
CONNECT_LIMIT_S = 10.0
LEND_LIMIT_S = 60.0  # for all ranks of a node to connect
DAEMON_LIMIT_S = 2.0  # for mpirun's daemon to end after its ranks
PARENT_EVERY_S = 0.5  # between two looks for mpirun's daemon, which may end without a word
# For trainers of Open MPI 4 that may not read each other's memory; Open MPI 5 finds that out by itself.
NO_COPIES = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
SESSION = "PMIX_SERVER_TMPDIR"  # the folder of mpirun's daemon on this node
MPIRUN_FOLDER = "pslaunch-mpirun-"  # beginning of the name of its folders
MAX_TEXT_BYTES = 2000  # of a failure
MAX_LOAN_BYTES = 16 * 1024 * 1024


# --- The rank process. ---


def main(argv: Sequence[str]) -> int:
    """Run `rank ORDER`: lend, wait, end; return the trainer's exit code, 76 without one.

    ORDER is JSON: name (of the job, for the socket), addrs, port, lost_after, grace, head (its place:
    launcher, or node for the node of rank 0), tmpdir (the launcher's TMPDIR).
    """
    order, parent = json.loads(argv[0]), os.getppid()
    daemon = _find_daemon(parent)
    secret = os.environ.pop(SECRET_VARIABLE, "")
    if f"/{MPIRUN_FOLDER}" in os.environ.get("TMPDIR", ""):  # beside mpirun of Open MPI 4, whose own it is
        del os.environ["TMPDIR"]
        os.environ.update({"TMPDIR": order["tmpdir"]} if order["tmpdir"] else {})
    address = "@pslaunch-ranks-" + order["name"]
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(procs.name_socket(address))
        except OSError as e:
            if e.errno != errno.EADDRINUSE:  # else another rank process of this node is the first
                raise
        else:
            listener.listen(socket.SOMAXCONN)
            _fork_keeper(listener, order, secret, daemon)
    with _connect(address) as agent:
        cpus = sorted(os.sched_getaffinity(0))
        loan = json.dumps({"environ": dict(os.environ), "cpus": cpus, "secret": secret})
        agent.sendall(f"{loan}\n".encode())
        code, alone, text = _wait(agent, parent)
    with suppress(OSError):
        os.write(2, text.encode())
    # A stopped daemon could not end after us; a daemon that is cut off would wait for minutes.
    for number in (signal.SIGCONT, signal.SIGTERM) if alone else (signal.SIGCONT,):
        if daemon and os.getppid() == parent:
            procs.send(daemon, number)
    return code


def _find_daemon(parent: int) -> procs.Proc | None:
    """Return mpirun's daemon; None if it has ended already, so that our parent is a stranger."""
    with suppress(OSError):
        if os.getsid(parent) == os.getsid(0):  # the daemon starts us in its own session
            return procs.read_proc(parent)
    return None


def _connect(address: str) -> socket.socket:
    """Connect to the collector of this node's loans. Raises OSError."""
    end_s = time.monotonic() + CONNECT_LIMIT_S
    while True:
        try:
            return procs.connect(address)
        except ConnectionRefusedError:  # the first rank is about to listen
            if time.monotonic() >= end_s:
                raise
            time.sleep(0.01)


def _wait(agent: socket.socket, parent: int) -> tuple[int, bool, str]:
    """Return the agent's message of the trainer's end; wait only while mpirun's daemon lives."""
    while os.getppid() == parent:
        if select.select([agent], [], [], PARENT_EVERY_S)[0]:
            try:
                code, alone, text = _read_line(agent)
                return code, alone, text
            except OSError:
                break
    return codes.NODE_LOST, False, ""


def _fork_keeper(
    listener: socket.socket, order: Mapping[str, Any], secret: str, daemon: procs.Proc | None
) -> None:
    """Fork the keeper out of mpirun's processes, without any descriptor that mpirun waits for."""
    first, session = procs.read_proc(os.getpid()), os.environ.get(SESSION, "")
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    code, loans = 70, dict[int, Loan]()
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        _close_inherited({listener.fileno()})
        code = _keep(listener, order, secret, first, loans)
    except BaseException as e:  # border of a process
        sys.excepthook(type(e), e, e.__traceback__)
        procs.complain(f"keeper: {type(e).__name__}: {e}")
    finally:
        if code and loans:
            loans[min(loans)].dismiss(codes.NODE_LOST, text=_read_failure())
        with suppress(OSError):
            _close_inherited(set())  # the lock and all loans: nobody waits for us any more
            _remove_session(session, daemon)
            Marked(loan.spawner for loan in loans.values()).send(signal.SIGKILL)  # started by it at last
        os._exit(code)


def _remove_session(session: str, daemon: procs.Proc | None) -> None:
    """Remove the folder that a killed daemon has left; others remove it as they end."""
    above, name = os.path.split(session)
    if not name.startswith(("pid.", "ompi.", "prte")):
        return
    end_s = time.monotonic() + DAEMON_LIMIT_S
    while daemon and daemon.lives() and os.path.isdir(session) and time.monotonic() < end_s:
        time.sleep(0.02)  # no event when a process ends that is not our child
    shutil.rmtree(session, ignore_errors=True)
    if os.path.basename(above).startswith("ompi."):  # of all jobs of Open MPI 4
        os.rmdir(above)


def _read_failure() -> str:
    """Return the last words of keeper and agent on standard error, as a line for that of a rank process."""
    said = procs.read_text_end(2, MAX_TEXT_BYTES).splitlines()
    ours = [line for line in said if line.startswith(("pslaunch agent: ", "pslaunch keeper: "))]
    return f"pslaunch: {socket.gethostname()}: {(ours or said or ['?'])[0]}\n"


def _close_inherited(kept: set[int]) -> None:
    """Redirect input and output to nowhere, and errors to memory; close all but `kept` and our own zip."""
    null, said = os.open(os.devnull, os.O_RDWR), os.memfd_create("said")
    for fd, new in enumerate((null, null, said)):
        os.dup2(new, fd)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        with suppress(OSError):
            if fd > 2 and fd not in kept and "/memfd:pslaunch" not in os.readlink(f"/proc/self/fd/{name}"):
                os.close(fd)


def _keep(
    listener: socket.socket,
    order: Mapping[str, Any],
    secret: str,
    first: procs.Proc | None,
    lent: dict[int, Loan],
) -> int:
    """Take the loans of all ranks of this node, then be its keeper."""
    with suppress(OSError):  # only trainers are bound
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    size = _take_loans(listener, secret, first, lent)
    listener.close()
    for name in [name for name in os.environ if name.startswith(env.MPI_FAMILIES)]:
        del os.environ[name]
    loans = {f"{env.TRAINER}/{rank}": loan for rank, loan in lent.items()}
    return brought.keep(order, secret, socket.gethostname(), sorted(lent), size, loans)


def _take_loans(
    listener: socket.socket, secret: str, first: procs.Proc | None, loans: dict[int, Loan]
) -> int:
    """Add the loans of this node, by rank; return the number of ranks on all nodes.

    first: the rank process that has forked us; without it, mpirun has ended them all. Raises OSError.
    """
    end_s = time.monotonic() + LEND_LIMIT_S
    shared = int(os.environ[LOCAL_SIZE]) > 1 and VERSION not in os.environ
    settings = NO_COPIES if shared and not _may_read_others() else {}
    while True:
        listener.settimeout(min(PARENT_EVERY_S, max(0.1, end_s - time.monotonic())))
        try:
            sock, _ = listener.accept()
        except socket.timeout:
            if first and first.lives() and time.monotonic() < end_s:
                continue
            raise
        pid, uid = procs.get_peer(sock)
        lender = procs.read_proc(pid)
        if uid != os.getuid() or lender is None:
            sock.close()
            continue
        sock.settimeout(max(0.1, end_s - time.monotonic()))
        try:
            rank, loan = _read_loan(sock, secret, lender, settings)
            if rank in loans or not 0 <= rank < int(os.environ[SIZE]):
                raise ValueError(f"rank {rank} is not among those expected")
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as e:
            procs.complain(f"keeper: refused process {pid}, which is no rank of the job: {e}")
            sock.close()
            continue
        loans[rank] = loan
        if len(loans) == int(os.environ[LOCAL_SIZE]):
            return int(os.environ[SIZE])


def _read_loan(
    sock: socket.socket, secret: str, lender: procs.Proc, settings: Mapping[str, str]
) -> tuple[int, Loan]:
    """Return a rank and its loan. Raises OSError, or another error if it is none."""
    data = _read_line(sock)
    if data["secret"] != secret:
        raise ValueError("it has another secret")
    sock.setblocking(False)
    environ = {**settings, **data["environ"]}
    return int(environ[RANK]), Loan(sock, lender, environ, data["cpus"])


def _may_read_others() -> bool:
    """Return True if a process may read another one's memory here, which most containers forbid."""
    word, found = ctypes.create_string_buffer(b"x", 1), ctypes.create_string_buffer(1)
    theirs, ours = ((ctypes.c_size_t * 2)(ctypes.addressof(one), 1) for one in (word, found))
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if not child:
        os.close(write_fd)
        os.read(read_fd, 1)  # until the end of its parent
        os._exit(0)
    one = ctypes.c_ulong(1)
    ctypes.CDLL(None).process_vm_readv(child, ours, one, theirs, one, ctypes.c_ulong(0))
    for fd in (read_fd, write_fd):
        os.close(fd)
    os.waitpid(child, 0)
    return found.raw == word.raw


def _read_line(sock: socket.socket) -> Any:
    """Return the data of a line of JSON. Raises OSError, or another error for any other line."""
    with sock.makefile("rb") as f:
        line = f.readline(MAX_LOAN_BYTES)
    if len(line) == MAX_LOAN_BYTES:
        raise ValueError(f"it lends {MAX_LOAN_BYTES} bytes or more")
    if not line.endswith(b"\n"):
        raise OSError("a rank process ended before it had lent anything")
    return json.loads(line)
