"""Records of jobs led on a node, by which any later shell finds them; replaced by rename."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Callable, cast

from .. import job, procs
from ..codes import find_remedy
from ..listing import KEPT_JOBS, OWNER, read_lines, replace_file, write_text
from ..run_dir import end_leftovers
from ..shapes import check_shape, is_code, is_count, is_name, is_time

if TYPE_CHECKING:
    from ..messages import JobRecord

LED_ELSEWHERE = "elsewhere"  # state of a pointer: a record that only names the node that leads the job
POINTER = ".at.json"  # the end of a pointer's name: node 0 may have its own record in the same folder
WAITING = "waiting"  # state of a job that no head leads yet, and of a program that is not started
STATE_UNKNOWN = "unknown"  # state of a job whose head can't be asked from here
KEPT_RECORDS = 100  # records of ended jobs, and as many pointers to such; older ones are removed
SECRET_SUFFIX = ".secret"  # the end of the name of the secret of such a job
EVENTS_SUFFIX = ".events.jsonl"  # of the events of an attached job whose logs are on other machines
FORGOTTEN = "forgotten"  # key of a pointer whose node 0 did not know the job
OVER = ("ended", "lost")
_PROCESS = {"process": is_name, "node": int, "state?": is_name}
RESTART: dict[str, Any] = {
    "epoch": int, "restart": int, "of": int, "why": str, "step": (is_count, None), "lost_s": (is_time, None),
}  # fmt: skip
# State of a job, from its head or a record.
STATUS_SHAPE: dict[str, Any] = {
    "job": is_name, "state": is_name, "elapsed_s?": is_time, "code?": (is_code, None),
    "reason?": (str, None), "failure?": (dict, None), "processes?": [_PROCESS],
    "restarts?": [RESTART],
}  # fmt: skip
_POINTER = {
    **STATUS_SHAPE, "name?": str, "backend": is_name, "nodes": int, "started": is_time, "workspace?": str,
    "host?": str, "socket?": str, "unreachable?": str, "held?": bool, "has_setup?": bool, "places?": [dict],
    "processes?": [{**_PROCESS, "log": str}], "output?": str, "events?": str,
}  # fmt: skip
_RECORD = {**_POINTER, "processes": [dict]}


def get_folder() -> str:
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "pslaunch", "jobs")


def describe_job(placed: job.Placed, socket_path: str) -> JobRecord:
    """Return the fixed facts of a job."""
    plan, first = placed.plan, placed.nodes[0]
    return {
        "job": plan.job_id,
        "name": plan.name,
        "backend": plan.backend,
        "workspace": first.workspace,
        "output": first.output_dir,
        "nodes": len(placed.nodes),
        "host": socket.gethostname(),
        "started": round(time.time(), 3),
        "socket": socket_path,
        "has_setup": plan.has_setup,
        "places": [n._asdict() for n in placed.nodes],
        "processes": [{"process": p.key, "node": p.node, "log": p.log} for p in placed.processes],
    }


def write_record(path: str, r: JobRecord) -> str:
    """Replace the record of a job; return why that failed, or ""."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        replace_file(path, f"{path}.{os.getpid()}", [json.dumps(r)])
    except OSError as e:
        return f"{path}: {e.strerror}{find_remedy(e)}"
    return ""


def is_pointer(r: JobRecord) -> bool:
    """Return True for a launcher's note of a job led elsewhere."""
    return r["state"] == LED_ELSEWHERE or "reach" in r


def name_secret(pointer: str) -> str:
    return pointer[: -len(POINTER)] + SECRET_SUFFIX


def write_secret(path: str, secret: str) -> None:
    """Keep a secret for later shells of this user. Raises OSError."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    write_text(path, secret, 0o600)


def remove_secret(pointer: str) -> None:
    if pointer.endswith(POINTER):
        with contextlib.suppress(OSError):
            os.unlink(name_secret(pointer))


def read_all(path: str, tell: Callable[[str], None] = lambda _text: None) -> list[JobRecord]:
    """Return the readable records in a folder, oldest first; remove too old ones, and end what is left here.

    Too old are the oldest of many, and those of attached jobs on this machine whose logs are gone.

    `state` is running, ended, lost if no head answers, or unknown if it is on another machine that shares the
    folder. `tell` gets a message for each invalid record, and of what was left.
    """
    found: list[JobRecord] = []
    if left := end_leftovers():
        tell(left)
    with contextlib.suppress(OSError):
        for name in os.listdir(path):
            if name.endswith(".json"):
                found += map(_check_state, _read(os.path.join(path, name), tell))
    found.sort(key=lambda r: float(r["started"]))
    for pointers in (False, True):
        over = [r for r in found if is_pointer(r) == pointers and (r["state"] in OVER or FORGOTTEN in r)]
        for old in [r for i, r in enumerate(reversed(over)) if i >= KEPT_RECORDS or _has_lost_logs(r)]:
            remove_secret(old["path"])
            for gone in filter(None, (old["path"], old.get("events"))):
                with contextlib.suppress(OSError):
                    os.unlink(gone)
            found.remove(old)
    return found


def _has_lost_logs(r: JobRecord) -> bool:
    """Return True for an ended job of this machine alone, led by its launcher, whose logs are not kept."""
    host = socket.gethostname()
    if not r.get("attached") or "reach" in r or r.get("host", host) != host:
        return False
    state_dir = r["places"][0]["state_dir"]
    return f"{r['job']}\n" not in (*read_lines(state_dir, OWNER)[:1], *read_lines(state_dir, KEPT_JOBS))


def _read(path: str, tell: Callable[[str], None] = lambda _text: None) -> list[JobRecord]:
    with contextlib.suppress(OSError), open(path, "rb") as f:
        try:
            return [{**parse_record(f.read()), "path": path}]
        except (ValueError, RecursionError) as e:
            tell(f"{path} is not a record of a job, and is left out: {e}")
    return []


def parse_record(text: str | bytes) -> JobRecord:
    """Return the record in a text, or raise ValueError."""
    r = json.loads(text)
    check_shape(r, {"state": str}, "a record")
    check_shape(r, _POINTER if is_pointer(r) else _RECORD, "a record")
    return cast("JobRecord", r)


def _check_state(r: JobRecord) -> JobRecord:
    if r["state"] != "running" or _has_listener(r):
        return r
    again = (_read(r["path"]) or [r])[0]  # a head records the end before it closes
    if again["state"] != "running":
        return again
    if r.get("host", socket.gethostname()) == socket.gethostname():
        return {**r, "state": "lost"}
    return {**r, "state": STATE_UNKNOWN, "reason": f"it is led on {r['host']}: ask there"}


def _has_listener(r: JobRecord) -> bool:
    with contextlib.suppress(OSError), procs.connect(str(r["socket"])):
        return True
    return False
