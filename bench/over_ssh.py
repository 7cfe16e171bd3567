"""Contenders over SSH on the hosts of the tests: jobs of ours seen by their events, bare Fabric, tar, rsync.

Tar and rsync go over connections that were opened just before, as a job's files do.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed import Host, Hosts
from turns import find_beside_python

# Prints a line; as a pserver, or on request, waits for its end.
SCRIPT = """\
import os, signal, sys
print("here", flush=True)
if os.environ["TRAINING_ROLE"] == "PSERVER" or "wait" in sys.argv:
    signal.pause()
"""
# Its first trainer is killed once.
AGAIN = """\
import os, signal
print("here", flush=True)
if os.environ["PSLAUNCH_EPOCH"] == "0":
    os.kill(os.getpid(), signal.SIGKILL) if os.environ["PSLAUNCH_RANK"] == "0" else signal.pause()
"""
BARE_FABRIC = """\
import resource, sys
from fabric import ThreadingGroup
group = ThreadingGroup(*sys.argv[1:])
names = sorted(result.stdout.strip() for result in group.run("hostname", hide=True).values())
group.close()
assert names == sorted(sys.argv[1:]), names
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
OPENS_S = 20.0
Event = dict[str, Any]
Environ = Mapping[str, str]


def make_command(*words: str) -> list[str]:
    return [find_beside_python("pslaunch"), *words]


@dataclass
class Seen:
    """One run of a job: its events, and when each was read here."""

    begin_s: float
    events: list[tuple[float, Event]] = field(default_factory=list)
    over_s: float = 0.0

    def measure_first_lines_s(self) -> float:
        """Return the time from the command until each trainer has printed a line."""
        said: dict[str, float] = {}
        for at_s, e in self.events:
            if e["event"] == "line" and e["process"].startswith("trainer/"):
                said.setdefault(e["process"], at_s)
        return max(said.values()) - self.begin_s

    def measure_filling_s(self) -> float:
        """Return the time from all nodes connected to all nodes ready, by the head's clock."""
        return self._find_last("ready") - self._find_last("connected")

    def _find_last(self, state: str) -> float:
        times: list[float] = [e["time"] for _, e in self.events if e.get("state") == state]
        return max(times)


def watch_job(argv: Sequence[str], environ: Environ, *, trainers: int = 0) -> Seen:
    """Run a job to its end; with `trainers`, SystemExit where not so many have said a line."""
    seen = Seen(time.time())
    with subprocess.Popen(
        argv,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as launcher:
        assert launcher.stdout
        text = []
        for line in launcher.stdout:
            text.append(line)
            if line.startswith("{"):
                seen.events.append((time.time(), json.loads(line)))
    seen.over_s = time.time() - seen.begin_s
    said = {e["process"] for _, e in seen.events if e["event"] == "line" and e["text"] == "here"}
    if launcher.returncode != 0 or sum(name.startswith("trainer/") for name in said) < trainers:
        raise SystemExit(f"{' '.join(argv)} failed, exit {launcher.returncode}:\n{''.join(text)}")
    return seen


class Jobs:
    """`pslaunch fabric` of a package on some of the hosts."""

    def __init__(self, hosts: Hosts, count: int, environ: Environ, package: Path) -> None:
        self.hosts, self.count, self.environ, self.package = hosts, count, environ, package
        (package / "train.py").write_text(SCRIPT)

    @property
    def chosen(self) -> list[Host]:
        return [self.hosts[i] for i in range(self.count)]

    def make_command(self, *options: str, program: Sequence[str] = ("train.py",)) -> list[str]:
        """A job as the options say."""
        where = f"--hosts={','.join(host.name for host in self.chosen)}", f"--root_dir={self.hosts.root_dir}"
        own = ("--json", f"--job_dispatch_package={self.package}", *where)
        return self.hosts.as_user(make_command("fabric", *own, *options, *program))

    def run(self, *options: str) -> Seen:
        return watch_job(self.make_command(*options), self.environ, trainers=self.count)

    def run_alone(self) -> Seen:
        """Trainers alone, so that what counts is how their files get there."""
        return self.run("--server_num=0", f"--worker_num={self.count}")

    def run_again(self) -> float:
        """Return the time from the death of a trainer until all of the next epoch have printed a line."""
        (self.package / "again.py").write_text(AGAIN)
        options = "--server_num=0", f"--worker_num={self.count}", "--max_restarts=1", "--restart_after=0"
        seen = watch_job(self.make_command(*options, program=("again.py",)), self.environ)
        lines = [e["time"] for _, e in seen.events if e["event"] == "line"]
        killed: list[float] = [e["time"] for _, e in seen.events if e.get("signal") == "SIGKILL"]
        return float(lines[-1] - killed[0])

    def send_first(self, size_bytes: int) -> tuple[float, float]:
        """Fill hosts that have nothing of the package: seconds, and how often it left this machine."""
        self.forget()
        before = self.hosts.sent_bytes()
        filling_s = self.run_alone().measure_filling_s()
        sent = (self.hosts.sent_bytes() - before) / size_bytes
        self.forget()
        return filling_s, sent

    def list_workspaces(self) -> list[Path]:
        return [host.root / self.package.name for host in self.chosen]

    def forget(self) -> None:
        """The next run is the first one, for the hosts and for the package."""
        for folder in (*self.list_workspaces(), self.package / ".pslaunch"):
            shutil.rmtree(folder, ignore_errors=True)


def time_local(package: Path, numbers: int, environ: Environ) -> Callable[[], float]:
    """The same script on this machine: so many pservers and trainers."""
    own = ("--json", "--server=script", f"--server_num={numbers}", f"--worker_num={numbers}")
    argv = make_command("local", *own, str(package / "train.py"))
    return lambda: watch_job(argv, environ, trainers=numbers).measure_first_lines_s()


class BareFabric:
    """Connect, run `hostname`, close, on all of the hosts at once, in a Python of its own."""

    def __init__(self, hosts: Hosts, count: int, environ: Environ) -> None:
        names = [hosts[i].name for i in range(count)]
        self.argv = hosts.as_user([sys.executable, "-c", BARE_FABRIC, *names])
        self.environ = environ
        self.peak_bytes: list[int] = []

    def __call__(self) -> float:
        begin_s = time.perf_counter()
        done = subprocess.run(self.argv, env=self.environ, stdout=subprocess.PIPE, check=True)
        self.peak_bytes.append(int(done.stdout))
        return time.perf_counter() - begin_s


def time_pipes(pack: Sequence[str], unpacks: Sequence[Sequence[str]]) -> float:
    """Seconds until the output of a command, which runs once for each of the others, is read by them."""
    begin_s = time.perf_counter()
    with contextlib.ExitStack() as stack:
        ends = []
        for unpack in unpacks:
            one = stack.enter_context(subprocess.Popen(pack, stdout=subprocess.PIPE))
            ends += [one, stack.enter_context(subprocess.Popen(unpack, stdin=one.stdout))]
            assert one.stdout
            one.stdout.close()
        codes = [end.wait() for end in ends]
    assert not any(codes), codes
    return time.perf_counter() - begin_s


class OpenLines:
    """Transfers through connections of the ssh binary that are opened just before, as a job opens its own."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._folder = Path(tempfile.mkdtemp(prefix="bench-"))

    def __enter__(self) -> OpenLines:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder)

    @contextlib.contextmanager
    def _open(self, hosts: Sequence[Host]) -> Iterator[None]:
        masters = []
        try:
            for host in hosts:
                argv = [*self.make_ssh_command(host), "-M", "-N", host.name]
                masters.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL))
            end_s = time.monotonic() + OPENS_S
            while not all(self._get_socket(host).exists() for host in hosts):
                if time.monotonic() > end_s:
                    raise SystemExit(f"no connections within {OPENS_S:g} s")
                time.sleep(0.01)
            yield
        finally:
            for master in masters:
                master.terminate()
                master.wait()

    def make_ssh_command(self, host: Host) -> list[str]:
        return ["ssh", "-F", str(self._hosts.config), "-S", str(self._get_socket(host))]

    def _get_socket(self, host: Host) -> Path:
        return self._folder / host.name

    def send_tar(self, package: Path, hosts: Sequence[Host]) -> float:
        """Seconds of a tar stream to each of the hosts, all at once, into new folders."""
        pack = ["tar", "c", "-C", str(package), "--exclude=./.pslaunch", "."]
        with self._open(hosts), contextlib.ExitStack() as stack:
            for host in hosts:
                stack.enter_context(make_folder(host.root / "tar"))
            folder = str(self._hosts.root_dir / "tar")
            unpack = [[*self.make_ssh_command(host), host.name, "tar", "x", "-C", folder] for host in hosts]
            return time_pipes(pack, unpack)

    def send_rsync(self, package: Path, host: Host) -> float:
        """Seconds of rsync into a folder, which it makes where it is not there."""
        where = f"{host.name}:{self._hosts.root_dir}/rsync/"
        argv = [
            "rsync",
            "-a",
            "-e",
            " ".join(self.make_ssh_command(host)),
            "--exclude=/.pslaunch",
            f"{package}/",
            where,
        ]
        with self._open([host]):
            begin_s = time.perf_counter()
            subprocess.run(argv, check=True)
            return time.perf_counter() - begin_s


@contextlib.contextmanager
def make_folder(path: Path) -> Iterator[None]:
    """A folder that is gone afterwards."""
    path.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(path)


def write_files(folder: Path, count: int, size_bytes: int) -> None:
    """So many files of this size, no two alike, a hundred to a folder."""
    for i in range(count):
        path = folder / f"part-{i // 100:03d}" / f"{i:06d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as f:
            for begin in range(0, size_bytes, 1 << 20):
                f.write(os.urandom(min(1 << 20, size_bytes - begin)))


def write_sparse(folder: Path, count: int, size_bytes: int, mtime_ns: int) -> list[Path]:
    """So many files that take no room, with equal times wherever they are made."""
    paths = [folder / f"part-{i // 1000:03d}" / f"{i:06d}" for i in range(count)]
    for path in paths:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
        with path.open("wb") as f:
            f.truncate(size_bytes)
        os.utime(path, ns=(mtime_ns, mtime_ns))
    return paths
