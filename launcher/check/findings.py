"""Findings about the nodes of a job from their facts. Pure.

A problem prevents the job; a warning does not. A test compares the kinds with docs/fabric.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ..errors import HostError
from ..node import codes
from ..node.dealing import LACK_ADVICE
from ..views.table import Level
from ..views.view import show_bytes

if TYPE_CHECKING:
    from ..node.messages import NodeFacts

MAX_CLOCK_OFF_S: Final = 2.0
MIN_MEMORY_BYTES: Final = 10**9


class FindingKind(NamedTuple):
    """A kind of finding: its column in the table, level, advice, and the exit code of a problem."""

    column: str
    level: Level
    advice: str
    code: int = codes.PREFLIGHT


class Finding(NamedTuple):
    """One finding of a check, with the system's own message."""

    kind: str
    text: str
    column: str  # from here on as in its kind
    level: Level
    advice: str
    code: int = codes.PREFLIGHT
    node: int = 0  # whose host it is about


FINDING_KINDS: Final[Mapping[str, FindingKind]] = {
    "name": FindingKind("reached", "problem",
        "correct the host's name (HOSTS, --hosts or the hostfile), or its block in ~/.ssh/config; "
        "ssh -G HOST shows the settings in effect", codes.HOST),
    "connect": FindingKind("reached", "problem",
        "check that the host is on, that sshd listens on this port, and that no firewall blocks it; "
        "ssh -v HOST shows more", codes.HOST),
    "start": FindingKind("reached", "problem",
        "ssh HOST true must work without a question: check its login files, its limits and its "
        "temporary folder", codes.HOST),
    "mpirun": FindingKind("starter", "problem",
        "mpirun -host HOST -n 1 hostname must work"),
    "silent": FindingKind("reached", "problem",
        "check the host's load and its network, then try again", codes.HOST),
    "host key": FindingKind("key", "problem",
        "before that, compare the key with the host administrator's", codes.HOST),
    "key": FindingKind("key", "problem",
        "ssh-copy-id HOST puts your key there; ssh-add -l lists the keys of your agent", codes.RIGHTS),
    "no Python": FindingKind("python", "problem",
        "install Python 3.9 or later there (apt-get install python3), or give its path: "
        "--agent_python"),
    "Python of the programs": FindingKind("python", "problem",
        "give a Python that every host has: --python"),
    "no workspace": FindingKind("disk", "problem",
        "give a folder that every host has (--job_workspace), or send one (--job_dispatch_package)"),
    "no program": FindingKind("disk", "problem",
        "give a program that is in the workspace of every host"),
    "no link": FindingKind("disk", "warning",
        "mount it there, or give a path that every host has: --link NAME=PATH"),
    "no rights": FindingKind("disk", "problem",
        "give the user the right to write there, or choose another ROOT_DIR (--root_dir), or "
        "--log_dir"),
    "in use": FindingKind("disk", "problem",
        "wait for that job, end it (pslaunch stop), or choose another --log_dir or --job_name"),
    "disk full": FindingKind("disk", "problem",
        "free some space, or choose a ROOT_DIR (--root_dir) on a larger disk"),
    "disk nearly full": FindingKind("disk", "warning",
        "free some space: the changed files of the package need room beside the old ones"),
    "no interface": FindingKind("address", "problem",
        "give an interface that every host has (PADDLE_NIC, --nics); without it, pslaunch chooses one"),
    "busy port": FindingKind("ports", "problem",
        "give another --port (PADDLE_PORT), or end the program that holds it; without --port, "
        "pslaunch chooses a free one"),
    "missing modules": FindingKind("imports", "problem",
        "install them there, or use --install (a virtual environment with pslaunch and the "
        "workspace's requirements.txt), or give a Python that has them: --python"),
    "missing later": FindingKind("imports", "warning",
        "a function of the program imports them: install them if it is called"),
    "no venv": FindingKind("imports", "problem",
        "--install needs them: apt-get install python3-venv, or give a Python that has them: "
        "--agent_python"),
    "old Python": FindingKind("imports", "problem",
        "pslaunch's own runtime needs Python 3.11 or later: give one for --install with "
        "--agent_python"),
    "no packages": FindingKind("imports", "problem",
        "give the host access to its index, or give a --wheelhouse that has them"),
    "other pslaunch": FindingKind("imports", "warning",
        "install the same version there as here, or use --install"),
    "unreachable": FindingKind("network", "problem",
        "open the nodes' network to each other for the ports of the job, or give the interface that "
        "they share: PADDLE_NIC (--nics)"),
    "no MPI": FindingKind("network", "problem",
        "give the network that all hosts share, as NETWORK/BITS: --mca btl_tcp_if_include 10.0.0.0/24; "
        "and a Python with the mpi4py of this Open MPI"),
    "few GPUs or cores": FindingKind("gpus", "problem", LACK_ADVICE),
    "little memory": FindingKind("memory", "warning",
        "end the programs that use it, or leave this host out"),
    "clock": FindingKind("clock", "warning",
        "synchronize the clocks by NTP: times in logs can't be compared"),
    "proxies": FindingKind("system", "warning",
        "the programs don't get these variables; --env NAME=VALUE sets one"),
    "other numpy": FindingKind("imports", "warning",
        "programs that compute with libraries of their own may get other bits than on equal hosts: "
        "install the same numpy everywhere"),
    "other Python": FindingKind("python", "warning",
        "install the same Python everywhere, or give the path of an equal one: --python"),
    "other processor": FindingKind("system", "warning",
        "programs that compute with libraries of their own may get other bits than on equal hosts: "
        "use hosts of one kind"),
}  # fmt: skip

# Kinds of findings by steps of a HostError with another name.
STEPS: Final[Mapping[str, str]] = {"resolve": "name", "authenticate": "key", "python": "no Python"}
# Exit codes of problems: the first that one has is that of the check.
CHECK_CODES: Final = (codes.SERVICE, codes.USAGE, codes.PREFLIGHT, codes.HOST, codes.RIGHTS)


@dataclass
class Seen:
    """Observations of one host."""

    host: str
    failed: HostError | None = None  # error of connecting
    lost: str = ""  # reason of a missing answer
    facts: NodeFacts | None = None  # as node/agent/inspect.py gives them
    clock_off_s: float = 0.0  # its clock minus the launcher's
    addr: str = ""  # reachable from the others; empty: none found or needed
    cut_off: str = ""  # the hosts that could not reach it
    mpi: str = ""  # why its ranks failed to add up a number
    lacks: str = ""  # of GPUs or cores for its trainers


class Wanted(NamedTuple):
    """Needs of the job on every node."""

    sent: bool = True  # the workspace is sent; else it must exist there
    port_given: bool = False  # the ports are fixed
    modules: Mapping[str, str] = {}  # name to importing file
    later: Mapping[str, str] = {}
    install: bool = False  # modules are installed by the job
    pins: tuple[str, ...] = ()  # packages to install, as name==version
    wheels: tuple[str, ...] | None = None  # files of the wheelhouse; None: the host's index
    version: str = ""  # of pslaunch here, if the nodes need it


def judge_hosts(seen: Sequence[Seen], wanted: Wanted, sent_bytes: Sequence[int]) -> list[Finding]:
    """Return all findings in the order of hosts; `sent_bytes`: size of the package for each."""
    found = []
    for i, (one, size) in enumerate(zip(seen, sent_bytes, strict=True)):
        found += [(i, *told) for told in _judge_host(one, wanted, size)]
    ordered = sorted((*found, *_find_differences(seen)), key=lambda told: told[0])
    return [Finding(kind, text, *FINDING_KINDS[kind], node=i) for i, kind, text in ordered]


def choose_check_code(findings: Sequence[Finding]) -> int:
    """Return the exit code; 0 without problems."""
    found = {f.code for f in findings if f.level == "problem"}
    return next((code for code in CHECK_CODES if code in found), codes.OK)


def _judge_host(one: Seen, wanted: Wanted, size: int) -> Iterator[tuple[str, str]]:
    if one.failed:
        kind = STEPS.get(one.failed.step, one.failed.step)
        yield kind if kind in FINDING_KINDS else "start", one.failed.detail
    if one.lost:
        yield "silent", one.lost
    facts = one.facts
    if facts is None:
        return
    yield from _judge_disk(facts, wanted, size)
    if facts["interface_error"]:
        yield "no interface", facts["interface_error"]
    if wanted.port_given:
        yield from (("busy port", why) for why in facts["ports"].values() if why)
    yield from _judge_programs(facts, wanted)
    if one.cut_off:
        yield "unreachable", one.cut_off
    if one.mpi:
        yield "no MPI", one.mpi
    if one.lacks:
        yield "few GPUs or cores", one.lacks
    free = facts["memory"].get("available")
    if free is not None and free < MIN_MEMORY_BYTES:
        yield "little memory", f"{show_bytes(free)} are free"
    if abs(one.clock_off_s) > MAX_CLOCK_OFF_S:
        ahead = "ahead of" if one.clock_off_s > 0 else "behind"
        yield "clock", f"{abs(one.clock_off_s):.1f} s {ahead} this machine's"
    if facts["proxies"]:
        yield "proxies", f"{', '.join(facts['proxies'])} set"


def _judge_disk(facts: NodeFacts, wanted: Wanted, size: int) -> Iterator[tuple[str, str]]:
    folders = facts["folders"]
    workspace = folders["workspace"]
    if not wanted.sent and not workspace["there"]:
        yield "no workspace", f"{workspace['path']}: No such file or directory"
        return
    yield from (
        ("no program", f"{path} is not a file") for path, there in facts["files"].items() if not there
    )
    yield from (("no link", f"{path} is not there") for path, there in facts["links"].items() if not there)
    if facts["used_by"]:
        yield "in use", f"job {facts['used_by']} has its logs in {workspace['path']}"
    errors = dict.fromkeys(f"{f['error']} (of {f['owner'] or '?'})" for f in folders.values() if f["error"])
    yield from (("no rights", error) for error in errors)
    free = workspace["free_bytes"]
    if free is not None and free < size:
        kind = "disk nearly full" if workspace["there"] else "disk full"
        sizes = f"{show_bytes(free)} are free, the package has {show_bytes(size)}"
        yield kind, f"{workspace['parent']}: {sizes}"


def _judge_programs(facts: NodeFacts, wanted: Wanted) -> Iterator[tuple[str, str]]:
    programs = facts["programs"]
    if programs["error"]:
        yield "Python of the programs", programs["error"]
        return
    which = f"{programs['executable']} ({programs['version']})"
    missing = programs["missing"]
    if wanted.install:
        if missing:
            yield "no venv", f"{which} has no {', '.join(missing)}"
        if tuple(map(int, programs["version"].split(".")[:2])) < (3, 11):
            yield "old Python", which
        if programs["unavailable"]:
            yield "no packages", programs["unavailable"]
        lacks = [pin for pin in wanted.pins if not _has_wheel(pin, wanted.wheels, facts)]
        if lacks:
            on = f"Python {programs['version']} on {facts['machine']}"
            yield "no packages", f"the wheelhouse has no {', '.join(lacks)} for {on}"
        return
    for kind, named in (("missing modules", wanted.modules), ("missing later", wanted.later)):
        lacks = [f"{name} ({named[name]})" for name in missing if name in named]
        if lacks:
            yield kind, f"{which} has no {', '.join(lacks)}"
    version = programs["versions"].get("pslaunch", "")
    if wanted.version and version and version != wanted.version:
        yield "other pslaunch", f"{version} there, {wanted.version} here"


def _has_wheel(pin: str, wheels: Sequence[str] | None, facts: NodeFacts) -> bool:
    """Check for a wheel of this package for the host's Python and processor."""
    python = "cp" + "".join(facts["programs"]["version"].split(".")[:2])
    begins = f"{pin.replace('==', '-')}-"
    for name in wheels or ():
        if name.startswith(begins) and name.endswith(".whl"):
            made_for, abi, platform = name.removesuffix(".whl").split("-")[-3:]
            fits = {"py3", python} & set(made_for.split(".")) or abi == "abi3"
            if fits and platform.endswith(("any", facts["machine"])):
                return True
    return wheels is None


# Facts that should be equal on all hosts, by kind.
_SAME: Final = (
    ("other Python", lambda facts: ".".join(facts["programs"]["version"].split(".")[:2])),
    ("other numpy", lambda facts: facts["programs"]["versions"].get("numpy", "")),
    ("other processor", lambda facts: facts["processor"] or facts["machine"]),
)


def _find_differences(seen: Sequence[Seen]) -> Iterator[tuple[int, str, str]]:
    """Return the differences to the first host that has the fact."""
    for kind, tell in _SAME:
        told = [(i, value) for i, one in enumerate(seen) if one.facts and (value := tell(one.facts))]
        for i, value in told:
            first, usual = told[0]
            if value != usual:
                yield i, kind, f"{value} there, {usual} on {seen[first].host}"
