"""Facts of a node for `pslaunch check`, without judgement; nothing is changed or left behind."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from pslaunch.runtime.shared import busyport, env, nics

from .. import binding, ports
from ..codes import Refusal
from ..line import reach
from ..listing import read_text
from ..run_dir import end_leftovers
from .loan import VERSION, Loan
from .resources import ask_nvidia, find_resources

if TYPE_CHECKING:
    from ..messages import FolderFacts, InspectMsg, NodeFacts, ProgramFacts

INSPECT_LIMIT_S = 40.0  # for the Python of the programs, which may ask an index
ASK_LIMIT_S = 10.0  # for the version of Open MPI
KIB = 1024
# Without the current folder: any folder in it would pass as a module of its name.
_ASK = """
import json, sys
sys.path[:] = [p for p in sys.path if p]
import importlib.util
from importlib import metadata
def ask(find, name):
    try:
        return find(name)
    except Exception:
        return None
def find_missing(pins):
    import subprocess, tempfile
    with tempfile.TemporaryDirectory() as folder:
        pip = [folder + "/bin/python", "-m", "pip", "install", "--dry-run", "--no-deps", "--no-input",
            "--disable-pip-version-check", "--progress-bar=off", "--retries=0"]
        for argv in ([sys.executable, "-m", "venv", folder], pip + pins):
            done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode:
                return done.stdout.decode("utf-8", "replace").strip().split("\\n")[-1]
    return ""
modules, packages, pins = json.loads(sys.argv[1])
missing = [m for m in modules if ask(importlib.util.find_spec, m) is None]
tried = pins and not missing and sys.version_info >= (3, 11)
versions = {p: ask(metadata.version, p) or "" for p in packages}
print(json.dumps({"executable": sys.executable, "version": sys.version.split()[0], "missing": missing,
    "versions": versions, "unavailable": find_missing(pins) if tried else ""}))
"""


def inspect_node(order: InspectMsg, run_dir: str, loans: Iterable[Loan]) -> NodeFacts:
    """Return the facts of the interface, paths, files, ports, Python and modules in `order`.

    The inspected Python has its temporary files in `run_dir`.
    """
    end_leftovers()  # which may hold ports and memory
    addrs, interface_error = [], ""
    try:
        addrs = reach.list_candidates(order["nic"])
    except Refusal as e:
        interface_error = str(e)
    return {
        "host": socket.gethostname(),
        "agent_python": {"executable": sys.executable, "version": sys.version.split()[0]},
        "machine": os.uname().machine,
        "processor": _read_fields("/proc/cpuinfo").get("model name", ""),
        "libc": _read_libc(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _read_memory(),
        "folders": {name: inspect_folder(path) for name, path in order["paths"].items()},
        "used_by": find_lock_holder(os.path.expanduser(order["lock"])),
        "files": {path: os.path.isfile(os.path.expanduser(path)) for path in order["files"]},
        "links": {path: os.path.exists(path) for path in order["links"]},
        "interfaces": nics.list_addresses(),
        "interface_error": interface_error,
        "addrs": addrs,
        "ports": {str(port): try_port(addrs[0] if addrs else "", port) for port in order["ports"]},
        "programs": inspect_python(os.path.expanduser(order["python"]) or sys.executable, order, run_dir),
        "proxies": sorted(name for name in env.PROXIES if os.environ.get(name)),
        "starter": next(map(describe_starter, loans), ""),
        "resources": find_resources(with_cores=order["bind_cores"]),
        "cards": list_cards(),
    }


def describe_starter(loan: Loan) -> str:
    """Return version and folder of the Open MPI whose daemon has started a rank."""
    try:
        folder = os.path.dirname(os.readlink(f"/proc/{loan.lender.parent}/exe"))
    except OSError as e:
        return f"unknown: {e.strerror}"
    said = b""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        argv = [os.path.join(folder, "mpirun"), "--version"]
        own = {name: value for name, value in loan.environ.items() if not name.startswith(env.MPI_FAMILIES)}
        said = subprocess.run(
            argv, env=own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=ASK_LIMIT_S, check=False
        ).stdout
    match = re.search(r"\(Open MPI\) (\S+)", said.decode("utf-8", "replace"))
    return f"Open MPI {match[1] if match else loan.environ.get(VERSION, '?')}, {folder}"


def list_cards() -> list[tuple[str, str, int]]:
    """Return driver, name and bytes of each GPU of NVIDIA; none without their driver's command."""
    with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
        rows = ask_nvidia("gpu=driver_version,name,memory.total")
        return [(driver, name, int(mib) << 20) for driver, name, mib in rows]
    return []


def inspect_folder(path: str) -> FolderFacts:
    """Check if a folder exists or can be made, and written; a path may begin with ~."""
    path = nearest = os.path.expanduser(path)
    while not os.path.lexists(nearest) and nearest != os.path.dirname(nearest):
        nearest = os.path.dirname(nearest)
    facts: FolderFacts = {
        "path": path, "there": nearest == path, "parent": nearest,
        "error": "", "owner": "", "free_bytes": None,
    }  # fmt: skip
    try:
        state, disk = os.stat(nearest), os.statvfs(nearest)
        facts["owner"] = _get_user(state.st_uid)
        facts["free_bytes"] = disk.f_bavail * disk.f_frsize
        # Rights alone miss root squashing, a read-only disk, a lack of inodes.
        probe = os.path.join(nearest, f".pslaunch-check-{os.urandom(8).hex()}")
        os.mkdir(probe, 0o700)
        os.rmdir(probe)
    except OSError as e:
        facts["error"] = f"{nearest}: {e.strerror}"
    return facts


def find_lock_holder(path: str) -> str:
    """Return the job that holds this lock on this machine, without trying to take it."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as f:
        inode, job = os.fstat(f.fileno()).st_ino, f.readline(200).strip()
        locks = map(str.split, read_text("/proc/locks").splitlines())
        held = [words[5].split(":")[2] for words in locks if words[1] == "FLOCK"]
        return job if str(inode) in held else ""
    return ""


def try_port(addr: str, port: int) -> str:
    """Return the reason that a port is unavailable, with its holder; empty if it is free."""
    try:
        ports.close_all(*ports.hold_all(addr, {"tried": [port]}).values())
    except ports.BusyPort as e:
        holder = busyport.find_holder(addr, port, e.mark)
        return f"{e}, held by {holder}" if holder else str(e)
    return ""


def inspect_python(python: str, order: InspectMsg, run_dir: str) -> ProgramFacts:
    """Ask the programs' Python for its version, the modules that it lacks, their versions."""
    argv = [python, "-c", _ASK, json.dumps([order["modules"], order["packages"], order["pins"]])]
    environ = {**os.environ, "TMPDIR": run_dir, **order["env"]}
    try:
        said = subprocess.run(
            argv, env=environ, cwd="/", stdin=subprocess.DEVNULL, capture_output=True,
            timeout=INSPECT_LIMIT_S, check=False,
        )  # fmt: skip
        # Its exit code may be lost to our reaper; incomplete output is no JSON.
        with contextlib.suppress(ValueError, IndexError):
            # A wrapper or sitecustomize may have printed before.
            facts: Any = json.loads(said.stdout.splitlines()[-1])
            if isinstance(facts, dict):  # it may be any program
                return cast("ProgramFacts", {"error": "", **facts})  # check validates it
        words = said.stderr.decode("utf-8", "replace").strip().splitlines()
        why = words[-1] if words else "it is not Python 3"
    except subprocess.TimeoutExpired:
        why = f"it did not answer within {INSPECT_LIMIT_S:g} s"
    except OSError as e:
        why = str(e.strerror)
    return {"error": f"{python}: {why}", "executable": python, "version": "", "missing": [], "versions": {},
            "unavailable": ""}  # fmt: skip


def _read_fields(path: str) -> dict[str, str]:
    """Return the fields `name: value` of a file of the kernel; the last one of each name."""
    lines = (line.partition(":") for line in read_text(path).splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _read_libc() -> str:
    with contextlib.suppress(ValueError, OSError):
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    return ""


def _read_memory() -> dict[str, int]:
    """Return total and available bytes."""
    fields, names = _read_fields("/proc/meminfo"), {"total": "MemTotal", "available": "MemAvailable"}
    return {key: int(fields[name].split()[0]) * KIB for key, name in names.items() if name in fields}


def _get_user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# --- MPI_Init and one allreduce by the ranks of the node. ---

_DONE = b"pslaunch: added up\n"
_PROGRAM = f"from mpi4py import MPI; MPI.COMM_WORLD.allreduce(1); import os; os.write(1, {_DONE!r})"


def try_allreduce(loans: Iterable[Loan], python: str, own: Mapping[str, str], limit_s: float) -> str:
    """Run it; return why it failed, or "". own: further variables. Raises OSError."""
    argv, said, end_s, pids = [python, "-c", _PROGRAM], b"", time.monotonic() + limit_s, list[int]()
    read_fd, write_fd = os.pipe()
    for loan in loans:
        environ, out = binding.compose(loan.make_environ(argv), own, {}), write_fd
        one = subprocess.Popen(argv, env=environ, stdout=out, stderr=out, start_new_session=True)
        one.returncode = 0  # our reaper waits for it
        pids.append(one.pid)
    os.close(write_fd)
    with open(read_fd, "rb", buffering=0) as f:
        while select.select([f], [], [], max(0.0, end_s - time.monotonic()))[0] and (piece := f.read(4096)):
            said += piece
    for pid in pids:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    if said.count(_DONE) == len(pids):
        return ""
    late = f"MPI_Init and an allreduce do not end within {limit_s:g} s" if time.monotonic() >= end_s else ""
    words = " ".join(said.replace(_DONE, b"").decode("utf-8", "replace").split())
    return ": ".join(filter(None, (late, words[-400:]))) or "its Python ended without a word"
