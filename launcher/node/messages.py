"""Every message between head, agents, observers and `pslaunch check`, in the order of a job.

Only for mypy, which checks both ends; never imported at run time. Received data is still untrusted: the
receiver checks the values it uses (`wire.NONSENSE`). Secrets are in hexadecimal. The name of each message
ends in `Msg`; all other types are parts of messages, or records.
"""

# ruff: noqa: UP013 - a message a line, as a table
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Optional, TypedDict, Union

# fmt: off

# Each side -> the other, at once: its version of the wire.
HelloMsg = TypedDict("HelloMsg", {"type": Literal["hello"], "wire": int, "version": str})

# --- Launcher -> head on node 0 -> launcher: a job is led there ---

# -> Lead this job (job.to_data of job.Placed). secret: None over TCP, where the agent has proved it;
# supplies: a package comes over this line, else over that of an observer that holds the job.
LeadMsg = TypedDict("LeadMsg", {
    "type": Literal["lead"], "placed": dict[str, Any], "secret": Optional[str], "detach": bool,
    "supplies": bool,
})
# <- Address for the other agents; -> they have it; <- folders for logs and state of each node. again: others
# come for agents that are lost; <- let them come, unless the cluster does.
LeadingMsg = TypedDict("LeadingMsg", {"type": Literal["leading"], "port": int, "addrs": list[str]})
ExpectMsg = TypedDict("ExpectMsg", {"type": Literal["expect"], "limit_s": float, "again": bool})
BringMsg = TypedDict("BringMsg", {"type": Literal["bring"], "nodes": list[int]})
PlacesMsg = TypedDict("PlacesMsg", {"type": Literal["places"], "places": list[tuple[str, str]]})


# Starter -> agent, without a hello: dial this address, and tell there all keys after `secret`, which is
# missing over TCP: there it stays the same. own: addresses of the node; trainers: as by `pack_ranks`; of:
# number of trainers on all nodes.
DialMsg = TypedDict("DialMsg", {
    "type": Literal["dial"], "addrs": Sequence[str], "port": int, "secret": str,
    "node": int, "host": str, "own": Sequence[str], "trainers": str, "of": int,
}, total=False)

# --- Head -> agent -> head: a node is made ready ---

Folders = TypedDict("Folders", {"workspace": str, "log_dir": str, "output_dir": str, "state_dir": str})


class PrepareMsg(Folders):
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
    launcher: str  # the process that leads the job, and its host; "" for a head on a node
    keep_logs: int  # of so many earlier jobs
    trace: bool  # keep one beside the logs
    bind_cores: bool  # cores are dealt out


# gpus: devices in the words of CUDA_VISIBLE_DEVICES; gpus_by: what names them; cores: of each NUMA node, the
# threads of a core side by side, if asked for.
Resources = TypedDict("Resources", {"gpus": list[str], "gpus_by": str, "cores": list[list[int]]})


class PreparedMsg(Folders):
    """<- Facts of the node. addrs: the likeliest first; shared: the first node in its folder.

    left: what jobs without guards had left there.
    """

    type: Literal["prepared"]
    host: str
    run_dir: str
    python: str
    addrs: list[str]
    shared: int | None
    left: str
    resources: Resources


# <- Refusal of an observer's request.
RefusedMsg = TypedDict("RefusedMsg", {"type": Literal["refused"], "code": int, "text": str})

# --- A package: from head to agent, from launcher to a head on node 0, from agent to agent ---

# Head -> launcher: send it; launcher -> head: there is none.
WantsMsg = TypedDict("WantsMsg", {"type": Literal["wants"]})
NoPackageMsg = TypedDict("NoPackageMsg", {"type": Literal["no_package"], "code": int, "text": str})
# -> The digest and length of the manifest.
DispatchMsg = TypedDict("DispatchMsg", {"type": Literal["dispatch"], "digest": str, "bytes": int})
# <- Missing parts. files: a bit for each entry, base64; alone: no other node has it.
LacksMsg = TypedDict("LacksMsg", {
    "type": Literal["lacks"], "manifest": bool, "files": str, "offsets": dict[str, int], "alone": bool,
})
# <- Bytes written, so as many more may be sent; progress; all is in place.
ReceivedMsg = TypedDict("ReceivedMsg", {"type": Literal["received"], "bytes": int})
FillingMsg = TypedDict("FillingMsg", {
    "type": Literal["filling"], "state": str, "files": int, "bytes": int, "received": int,
})
DispatchedMsg = TypedDict("DispatchedMsg", {"type": Literal["dispatched"]})
# -> Listen for other nodes; <- at this port; -> get it from a node that listens.
ServeMsg = TypedDict("ServeMsg", {"type": Literal["serve"], "addr": str})
ServingMsg = TypedDict("ServingMsg", {"type": Literal["serving"], "port": int})
FetchMsg = TypedDict("FetchMsg", {"type": Literal["fetch"], "addrs": list[str], "port": int})

# --- Head -> agent -> head: with --install or --setup ---

# -> Make the node ready. key, number: of the output; install: a job.Install.
FurnishMsg = TypedDict("FurnishMsg", {
    "type": Literal["furnish"], "key": str, "number": int, "log": str, "workspace": str, "state_dir": str,
    "install": Optional[dict[str, Any]], "setup": tuple[str, ...], "added_env": dict[str, str],
})
FurnishedMsg = TypedDict("FurnishedMsg", {"type": Literal["furnished"], "python": str})

# --- Head or check -> agent -> head or check: addresses; head -> agent -> head: ports ---

# -> Open a door; <- its port; -> try others' (node, address, port); <- those that opened (node, address).
DoorMsg = TypedDict("DoorMsg", {"type": Literal["door"], "port": int})
OpenedMsg = TypedDict("OpenedMsg", {"type": Literal["opened"], "port": int})
ReachMsg = TypedDict("ReachMsg", {
    "type": Literal["reach"], "doors": list[tuple[int, str, int]], "limit_s": float,
})
ReachedMsg = TypedDict("ReachedMsg", {"type": Literal["reached"], "reached": list[tuple[int, str]]})
# -> Run MPI_Init and an allreduce as the ranks of this node; <- why that failed, or "".
AllreduceMsg = TypedDict("AllreduceMsg", {
    "type": Literal["allreduce"], "python": str, "env": dict[str, str], "limit_s": float,
})
AllreducedMsg = TypedDict("AllreducedMsg", {"type": Literal["allreduced"], "text": str})
# -> Shut the door; <- done.
ShutMsg = TypedDict("ShutMsg", {"type": Literal["shut"]})
# -> Bind all ports of these processes, or none. last: name the holder of a busy one, no proposal follows.
PortsMsg = TypedDict("PortsMsg", {
    "type": Literal["ports"], "addr": str, "ports": dict[str, list[int]], "last": bool,
})
BoundMsg = TypedDict("BoundMsg", {"type": Literal["bound"]})
# <- A port can't be bound. busy: another program has it.
BusyMsg = TypedDict("BusyMsg", {
    "type": Literal["busy"], "key": str, "port": int, "busy": bool, "text": str, "holder": str,
})

# --- Head -> agent -> head: programs ---

# -> Facts for all programs of a node: addresses of all nodes, numbers of outputs.
BeginMsg = TypedDict("BeginMsg", {
    "type": Literal["begin"], "nodes": tuple[str, ...], "numbers": dict[str, int],
})
ProgramOrder = TypedDict("ProgramOrder", {
    "key": str, "role": str, "argv": list[str], "cwd": str, "added_env": dict[str, str],
    "contract": dict[str, str], "log": str, "cores": list[int],
})


class StartMsg(ProgramOrder):
    """-> Start a program; all is literal."""

    type: Literal["start"]
    keep_ports: bool  # hand its bound ports over open; otherwise close them just before


StartedMsg = TypedDict("StartedMsg", {"type": Literal["started"], "key": str, "pid": int})
NotStartedMsg = TypedDict("NotStartedMsg", {"type": Literal["not_started"], "key": str})
# <- The newest report of a program (reports.PROGRESS_FIELDS), and what its processes use.
Report = TypedDict("Report", {
    "pass": int, "passes": int, "batch": int, "batches": int, "cost": float, "samples_per_s": float,
    "dropped": int, "state": str, "why": str, "blames": str, "cpu_percent": float, "memory_bytes": int,
    "gpu_percent": float, "gpu_bytes": int, "waited_s": float, "in_bytes": int, "out_bytes": int,
}, total=False)


class ProgressMsg(Report):
    """<- A report, at most a few times a second."""

    type: Literal["progress"]
    key: str


# <- A failure other than a program's exit, or to obey an order; key: of a program, or empty; -> the head ends
# the job for it.
TroubleMsg = TypedDict("TroubleMsg", {"type": Literal["trouble"], "key": str, "code": int, "text": str})
NotedMsg = TypedDict("NotedMsg", {"type": Literal["noted"]})
SignalMsg = TypedDict("SignalMsg", {"type": Literal["signal"], "keys": list[str], "number": int})
# <- A program has ended; follows its output. asked: after our own signal; written: bytes. ahead: a failure
# that does not wait for the output; the message comes again after that.
ExitedMsg = TypedDict("ExitedMsg", {
    "type": Literal["exited"], "key": str, "code": int, "signal": str, "asked": bool, "oom": bool,
    "written": int, "tail": tuple[str, ...], "ahead": bool,
})
# -> Kill everything left, programs of the next epoch follow; <- it is as for them, processes that survived.
ClearMsg = TypedDict("ClearMsg", {"type": Literal["clear"], "epoch": int})
ClearedMsg = TypedDict("ClearedMsg", {"type": Literal["cleared"], "epoch": int, "left": list[str]})
# A restart: the epoch that it begins, number, the most there may be, cause, step of the snapshot with which
# it began, and seconds since the failure; None until it has.
Restarted = TypedDict("Restarted", {
    "epoch": int, "restart": int, "of": int, "why": str, "step": Optional[int], "lost_s": Optional[float],
})
# Of an epoch, for another head: restarts, equal failures, steps of the newest snapshot and of the newest one
# of this epoch, places of trainers, seconds since its begin, or its failure, and the job's, why it was left.
Memory = TypedDict("Memory", {
    "epoch": int, "told": list[Restarted], "same": list[tuple[str, int, list[int]]],
    "at": dict[str, list[int]], "cut": Optional[int], "sealed": Optional[int], "ran_s": float,
    "job_s": float, "why": str,
})
# -> What another head needs, should this one be lost, and how long a node stays without any; -> of another
# head: is any such known, or told by snapshots in this folder? <- It, and how long ago that head was lost.
RememberMsg = TypedDict("RememberMsg", {"type": Literal["remember"], "memory": Memory, "linger_s": float})
RecallMsg = TypedDict("RecallMsg", {"type": Literal["recall"], "job_id": str, "snapshots": str})
KnownMsg = TypedDict("KnownMsg", {"type": Literal["known"], "memory": Optional[Memory], "ago_s": float})
# -> Kill everything left; <- number killed, and processes that survived. Also of check.
# linger_s: stay so long afterwards, unless a signal comes when all files are fetched.
FinishMsg = TypedDict("FinishMsg", {"type": Literal["finish"], "linger_s": float})
FinishedMsg = TypedDict("FinishedMsg", {"type": Literal["finished"], "killed": int, "left": list[str]})

# --- Observer -> head -> observer ---

# -> Send all events from number `cursor` on (docs/events.md); <- the next ones; <- there will be no more.
# of: time of the first event that was seen: a head whose first one is another sends all.
FollowMsg = TypedDict("FollowMsg", {"type": Literal["follow"], "cursor": int, "of": Optional[float]})
EventsMsg = TypedDict("EventsMsg", {"type": Literal["events"], "events": list[dict[str, Any]]})
OverMsg = TypedDict("OverMsg", {"type": Literal["over"], "code": int})
# -> Ask for the state of the job; <- it.
StatusRequestMsg = TypedDict("StatusRequestMsg", {"type": Literal["status"]})
JobStatus = TypedDict("JobStatus", {
    "job": str, "elapsed_s": float, "events": int, "state": str, "processes": list[dict[str, Any]],
    "begin": dict[str, Any], "restarts": list[Restarted],
})


class StatusMsg(JobStatus):
    """<- State of the job."""

    type: Literal["status"]


# -> End the job, a second time at once. number: of a signal; code: of the job, or 0; <- received.
StopMsg = TypedDict("StopMsg", {"type": Literal["stop"], "number": int, "reason": str, "code": int})
StoppingMsg = TypedDict("StoppingMsg", {"type": Literal["stopping"]})
# Launcher -> head: end the job once no observer has held it for `lease_s`, if that is not 0, and let nodes
# stay for `linger_s` after the end; observer -> head: we hold it.
LeaseMsg = TypedDict("LeaseMsg", {"type": Literal["lease"], "lease_s": float, "linger_s": float})
HoldMsg = TypedDict("HoldMsg", {"type": Literal["hold"]})
# Launcher, or another holder -> head: continue without us; <- agreed.
FreeMsg = TypedDict("FreeMsg", {"type": Literal["free"]})
FreedMsg = TypedDict("FreedMsg", {"type": Literal["freed"]})

# --- Check -> agent -> check ---

InspectQuestion = TypedDict("InspectQuestion", {
    "nic": str, "paths": dict[str, str], "lock": str, "files": list[str], "links": list[str],
    "ports": list[int], "python": str, "modules": list[str], "packages": tuple[str, ...],
    "pins": list[str], "env": dict[str, str], "bind_cores": bool,
})


class InspectMsg(InspectQuestion):
    """-> Report the facts of the node. Only over pipes or SSH."""

    type: Literal["inspect"]
    node: int
    secret: str


# <- Its time, at once.
ClockMsg = TypedDict("ClockMsg", {"type": Literal["clock"], "time": float})
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


# cards: driver, name and bytes of each GPU, as nvidia-smi has them.
NodeFacts = TypedDict("NodeFacts", {
    "host": str, "agent_python": PythonFacts, "machine": str, "processor": str, "libc": str, "cores": int,
    "memory": dict[str, int], "folders": dict[str, FolderFacts], "used_by": str, "files": dict[str, bool],
    "links": dict[str, bool], "interfaces": dict[str, list[str]], "interface_error": str, "addrs": list[str],
    "ports": dict[str, str], "programs": ProgramFacts, "proxies": list[str],
    "starter": str, "resources": Resources, "cards": list[tuple[str, str, int]],
})
InspectedMsg = TypedDict("InspectedMsg", {"type": Literal["inspected"], "facts": NodeFacts})

# --- Kept for later shells: the record of a job ---

# places: of job.Node; path, error: added by the reader; reach, forgotten: of a job led elsewhere;
# unreachable: the reason why its files are gone; held: its launcher removes it; attached: its head is in
# its launcher on this machine, as is the file of its events, if its nodes are on others.
JobRecord = TypedDict("JobRecord", {
    "job": str, "name": str, "backend": str, "workspace": str, "nodes": int, "host": str, "started": float,
    "socket": str, "places": list[dict[str, Any]], "processes": list[dict[str, Any]], "state": str,
    "code": int, "reason": str, "elapsed_s": float, "failure": Optional[dict[str, Any]], "path": str,
    "reach": Any, "forgotten": bool, "error": Any, "unreachable": str,
    "held": bool, "has_setup": bool, "attached": bool, "events": str, "output": str,
    "restarts": list[Restarted],
}, total=False)

# --- All that one side sends to another ---

OfPackage = Union[LacksMsg, ReceivedMsg, FillingMsg]
ToAgent = Union[
    PrepareMsg, DispatchMsg, ServeMsg, FetchMsg, FurnishMsg, DoorMsg, ReachMsg, ShutMsg, PortsMsg, BeginMsg,
    StartMsg, NotedMsg, SignalMsg, ClearMsg, RememberMsg, RecallMsg, FinishMsg,
]
OfCheck = Union[InspectMsg, DoorMsg, ReachMsg, AllreduceMsg, FinishMsg]
OfAgent = Union[
    PreparedMsg, OfPackage, DispatchedMsg, ServingMsg, FurnishedMsg, OpenedMsg, ReachedMsg,
    ShutMsg, BoundMsg, BusyMsg, StartedMsg, NotStartedMsg, TroubleMsg, ProgressMsg, ExitedMsg,
    ClearedMsg, KnownMsg, FinishedMsg, ClockMsg, InspectedMsg, AllreducedMsg,
]
OfObserver = Union[
    LeadMsg, ExpectMsg, FollowMsg, StatusRequestMsg, StopMsg, LeaseMsg, HoldMsg, FreeMsg, DispatchMsg,
    NoPackageMsg,
]
ToObserver = Union[
    LeadingMsg, BringMsg, PlacesMsg, RefusedMsg, WantsMsg, OfPackage, EventsMsg, OverMsg, StatusMsg,
    StoppingMsg, FreedMsg,
]
