"""Every message between head, agents, observers and `pslaunch check`, in the order of a job.

Only for mypy, which checks both ends; never imported at run time. Received data is still untrusted: the
receiver checks the values it uses (`wire.NONSENSE`). Secrets are in hexadecimal.
"""

# ruff: noqa: UP013 - a message a line, as a table
from __future__ import annotations

from typing import Any, Literal, Optional, TypedDict, Union

# fmt: off

# Each side -> the other, at once: its version of the wire.
Hello = TypedDict("Hello", {"type": Literal["hello"], "wire": int, "version": str})

# --- Launcher -> head on node 0 -> launcher: a job is led there ---

# -> Lead this job (job.to_data of job.Placed). Only over pipes or SSH.
Lead = TypedDict("Lead", {"type": Literal["lead"], "placed": dict[str, Any], "secret": str, "detach": bool})
# <- Address for the other agents; -> they have it; <- folders for logs and state of each node.
Leading = TypedDict("Leading", {"type": Literal["leading"], "port": int, "addrs": list[str]})
Expect = TypedDict("Expect", {"type": Literal["expect"]})
Places = TypedDict("Places", {"type": Literal["places"], "places": list[tuple[str, str]]})

# --- Head -> agent -> head: a node is made ready ---

Folders = TypedDict("Folders", {"workspace": str, "log_dir": str, "output_dir": str, "state_dir": str})


class Prepare(Folders):
    """-> Make the folders, which may begin with `~`, and lock them."""

    type: Literal["prepare"]
    job_id: str
    node: int
    nodes: int
    dispatched: bool  # its workspace is filled from the package,
    filled: bool  # by the head or a node that it names
    secret: str | None  # None over TCP, where the agent has proved that it knows it
    addr: str
    nic: str
    lost_after_s: float
    grace_s: float
    trace: bool  # keep one beside the logs


class Prepared(Folders):
    """<- Facts of the node. addrs: the likeliest first; shared: the node that was first in its folder."""

    type: Literal["prepared"]
    host: str
    run_dir: str
    python: str
    addrs: list[str]
    shared: int | None


# <- Refusal of an order, also by the head of an observer's request.
Refused = TypedDict("Refused", {"type": Literal["refused"], "code": int, "text": str})

# --- A package: from head to agent, from launcher to a head on node 0, from agent to agent ---

# Head -> launcher: send it; launcher -> head: there is none.
Wants = TypedDict("Wants", {"type": Literal["wants"]})
NoPackage = TypedDict("NoPackage", {"type": Literal["no_package"], "code": int, "text": str})
# -> The digest and length of the manifest.
Dispatch = TypedDict("Dispatch", {"type": Literal["dispatch"], "digest": str, "bytes": int})
# <- Missing parts. files: counts of skipped, wanted, skipped ... files; alone: no other node has it.
Lacks = TypedDict("Lacks", {
    "type": Literal["lacks"], "manifest": bool, "files": list[int], "offsets": dict[str, int], "alone": bool,
})
# <- Bytes written, so as many more may be sent; progress; all is in place.
Received = TypedDict("Received", {"type": Literal["received"], "bytes": int})
Filling = TypedDict("Filling", {
    "type": Literal["filling"], "state": str, "files": int, "bytes": int, "received": int,
})
Dispatched = TypedDict("Dispatched", {"type": Literal["dispatched"]})
# -> Listen for other nodes; <- at this port; -> get it from a node that listens.
Serve = TypedDict("Serve", {"type": Literal["serve"], "addr": str})
Serving = TypedDict("Serving", {"type": Literal["serving"], "port": int})
Fetch = TypedDict("Fetch", {"type": Literal["fetch"], "addrs": list[str], "port": int})

# --- Head -> agent -> head: with --install or --setup ---

# -> Make the node ready. key, number: of the output; install: a job.Install.
Furnish = TypedDict("Furnish", {
    "type": Literal["furnish"], "key": str, "number": int, "log": str, "workspace": str, "state_dir": str,
    "install": Optional[dict[str, Any]], "setup": tuple[str, ...], "added_env": dict[str, str],
})
Furnished = TypedDict("Furnished", {"type": Literal["furnished"], "python": str})

# --- Head or check -> agent -> head or check: addresses; head -> agent -> head: ports ---

# -> Open a door; <- its port; -> try others' (node, address, port); <- those that opened (node, address).
Door = TypedDict("Door", {"type": Literal["door"], "port": int})
Opened = TypedDict("Opened", {"type": Literal["opened"], "port": int})
Reach = TypedDict("Reach", {"type": Literal["reach"], "doors": list[tuple[int, str, int]], "limit_s": float})
Reached = TypedDict("Reached", {"type": Literal["reached"], "reached": list[tuple[int, str]]})
# -> Shut the door; <- done.
Shut = TypedDict("Shut", {"type": Literal["shut"]})
# -> Bind all ports of these processes, or none. last: name the holder of a busy one, no proposal follows.
Ports = TypedDict("Ports", {
    "type": Literal["ports"], "addr": str, "ports": dict[str, list[int]], "last": bool,
})
Bound = TypedDict("Bound", {"type": Literal["bound"]})
# <- A port can't be bound. busy: another program has it.
Busy = TypedDict("Busy", {
    "type": Literal["busy"], "key": str, "port": int, "busy": bool, "text": str, "holder": str,
})

# --- Head -> agent -> head: programs ---

# -> Facts for all programs of a node: addresses of all nodes, numbers of outputs.
Begin = TypedDict("Begin", {
    "type": Literal["begin"], "workspace": str, "nodes": tuple[str, ...], "numbers": dict[str, int],
})
ProgramOrder = TypedDict("ProgramOrder", {
    "key": str, "role": str, "argv": list[str], "cwd": str, "added_env": dict[str, str],
    "contract": dict[str, str], "log": str, "keep_ports": bool,
})


class Start(ProgramOrder):
    """-> Start a program; all is literal."""

    type: Literal["start"]


Started = TypedDict("Started", {"type": Literal["started"], "key": str, "pid": int})
NotStarted = TypedDict("NotStarted", {"type": Literal["not_started"], "key": str})
# <- The newest report of a program (env.PROGRESS_FIELDS).
Report = TypedDict("Report", {
    "pass": int, "batch": int, "cost": float, "samples_per_s": float, "state": str, "why": str,
    "blames": str,
}, total=False)


class Progress(Report):
    """<- A report, at most a few times a second."""

    type: Literal["progress"]
    key: str


# <- A failure other than a program's exit; key: of a program, or empty.
Trouble = TypedDict("Trouble", {"type": Literal["trouble"], "key": str, "code": int, "text": str})
Signal = TypedDict("Signal", {"type": Literal["signal"], "keys": list[str], "number": int})
# <- A program has ended; follows its output. asked: after our own signal; written: bytes.
Exited = TypedDict("Exited", {
    "type": Literal["exited"], "key": str, "code": int, "signal": str, "asked": bool, "oom": bool,
    "written": int, "tail": tuple[str, ...],
})
# -> Kill everything left; <- number killed, and processes that survived. Also of check.
Finish = TypedDict("Finish", {"type": Literal["finish"]})
Finished = TypedDict("Finished", {"type": Literal["finished"], "killed": int, "left": list[str]})

# --- Observer -> head -> observer ---

# -> Send all events from number `cursor` on (docs/events.md); <- the next ones; <- there will be no more.
Follow = TypedDict("Follow", {"type": Literal["follow"], "cursor": int})
Events = TypedDict("Events", {"type": Literal["events"], "events": list[dict[str, Any]]})
Over = TypedDict("Over", {"type": Literal["over"], "code": int})
# -> Ask for the state of the job; <- it.
StatusRequest = TypedDict("StatusRequest", {"type": Literal["status"]})
JobStatus = TypedDict("JobStatus", {
    "job": str, "elapsed_s": float, "events": int, "state": str, "processes": list[dict[str, Any]],
})


class Status(JobStatus):
    """<- State of the job."""

    type: Literal["status"]


# -> End the job, a second time at once. number: of a signal; code: of the job, or 0; <- received.
Stop = TypedDict("Stop", {"type": Literal["stop"], "number": int, "reason": str, "code": int})
Stopping = TypedDict("Stopping", {"type": Literal["stopping"]})
# Launcher -> head: continue without us; <- agreed.
Free = TypedDict("Free", {"type": Literal["free"]})
Freed = TypedDict("Freed", {"type": Literal["freed"]})

# --- Check -> agent -> check ---

Question = TypedDict("Question", {
    "nic": str, "paths": dict[str, str], "lock": str, "files": list[str], "links": list[str],
    "ports": list[int], "python": str, "modules": list[str], "packages": tuple[str, ...],
    "pins": list[str], "env": dict[str, str],
})


class Inspect(Question):
    """-> Report the facts of the node. Only over pipes or SSH."""

    type: Literal["inspect"]
    node: int
    secret: str


# <- Its time, at once.
Clock = TypedDict("Clock", {"type": Literal["clock"], "time": float})
FolderFacts = TypedDict("FolderFacts", {
    "path": str, "there": bool, "parent": str, "error": str, "owner": str, "free_bytes": Optional[int],
})
PythonFacts = TypedDict("PythonFacts", {"executable": str, "version": str})


class ProgramFacts(PythonFacts):
    """The Python of the programs."""

    error: str
    missing: list[str]
    versions: dict[str, str]
    unavailable: str  # why `pins` can't be installed


NodeFacts = TypedDict("NodeFacts", {
    "host": str, "agent_python": PythonFacts, "machine": str, "processor": str, "libc": str, "cores": int,
    "memory": dict[str, int], "folders": dict[str, FolderFacts], "used_by": str, "files": dict[str, bool],
    "links": dict[str, bool], "interfaces": dict[str, list[str]], "interface_error": str, "addrs": list[str],
    "ports": dict[str, str], "programs": ProgramFacts, "proxies": list[str],
})
Inspected = TypedDict("Inspected", {"type": Literal["inspected"], "facts": NodeFacts})

# --- Kept for later shells: the record of a job ---

# places: of job.Node; path, error: added by the reader; reach, forgotten: of a job led elsewhere.
JobRecord = TypedDict("JobRecord", {
    "job": str, "name": str, "backend": str, "workspace": str, "nodes": int, "host": str, "started": float,
    "socket": str, "places": list[dict[str, Any]], "processes": list[dict[str, Any]], "state": str,
    "code": int, "reason": str, "elapsed_s": float, "failure": Optional[dict[str, Any]], "path": str,
    "reach": Any, "forgotten": bool, "error": Any,
}, total=False)

# --- All that one side sends to another ---

OfPackage = Union[Lacks, Received, Filling]
ToAgent = Union[
    Prepare, Dispatch, Serve, Fetch, Furnish, Door, Reach, Shut, Ports, Begin, Start, Signal, Finish,
]
OfCheck = Union[Inspect, Door, Reach, Finish]
OfAgent = Union[
    Prepared, Refused, OfPackage, Dispatched, Serving, Furnished, Opened, Reached, Shut, Bound, Busy, Started,
    NotStarted, Trouble, Progress, Exited, Finished, Clock, Inspected,
]
OfObserver = Union[Lead, Expect, Follow, StatusRequest, Stop, Free, Dispatch, NoPackage]
ToObserver = Union[Leading, Places, Refused, Wants, OfPackage, Events, Over, Status, Stopping, Freed]
