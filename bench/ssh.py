"""Jobs over SSH next to what they are made of: `python bench/ssh.py`. Needs root, for hosts of its own.

The hosts are those of the tests: real sshds in namespaces of this machine. So all of them and the launcher
share its processors and its disk, and their network is its memory.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # testbed

from agents import MB, list_children, measure_memory, wait_until
from over_ssh import BareFabric, Environ, Jobs, OpenLines, time_local, write_files, write_sparse
from pslaunch.node.dispatch.into_place import HASHES
from pslaunch.node.dispatch.manifest import Hashes, compute_digest
from testbed import Host, Hosts, why_not
from testbed.hosts import STATE
from turns import Table, Turn, compute_ratio, make_user_environ, parse_parts, take_turns

LONG_AGO_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurements: hosts, files and bytes."""

    few: int = 3  # hosts
    many: int = 30
    small: int = 2_000  # files
    sparse: int = 100_000
    sparse_bytes: int = 200_000  # each
    large_bytes: int = 1 << 30  # in all
    spread: tuple[int, ...] = (1, 4, 8)  # hosts


QUICK = Sizes(many=4, small=200, sparse=2_000, large_bytes=32 << 20, spread=(1, 3))


@contextmanager
def make_package(state: Path = STATE) -> Iterator[Path]:
    """A folder to be sent, on the disk that the hosts use."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=state) as name:
        yield Path(name)


@contextmanager
def use_memory_disk(size: str = "4g") -> Iterator[Path]:
    """A disk for hosts and packages that takes as long for one new file as for the next.

    On ext4 that is 15 to 340 microseconds, by the folder's luck: more than all else that is measured.
    """
    with tempfile.TemporaryDirectory(prefix="bench-", dir=STATE) as name:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "bench", name], check=True)
        try:
            Path(name).chmod(0o755)
            yield Path(name)
        finally:
            subprocess.run(["umount", name], check=True)


def format_seconds(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:,.0f} ms"


# --- from the command to the first line ---


def measure_launches(table: Table, hosts: Hosts, environ: Environ, turns: int) -> None:
    """A pserver and a trainer on each host, as it is by default."""
    count = len(hosts)
    over: list[float] = []
    with make_package() as folder:
        jobs = Jobs(hosts, count, environ, folder)

        def run_ours() -> float:
            run = jobs.run("--server=script", f"--server_num={count}", f"--worker_num={count}")
            over.append(run.over_s)
            return run.measure_first_lines_s()

        fabric = BareFabric(hosts, count, environ)
        alike, one = time_local(folder, count, environ), time_local(folder, 1, environ)
        contenders: dict[str, Turn] = {
            "ours": run_ours,
            "fabric": fabric,
            "alike": alike,
            "one": one,
            "again": jobs.run_again,
        }
        found = take_turns(contenders, turns + 1)
    times = {name: each[1:] for name, each in found.items()}  # the first turn compiled the modules
    what = f"{count} hosts, {count} pservers + {count} trainers"
    for name, said in (("alike", f"{count} + {count}"), ("one", "1 + 1")):
        parts = [a + b for a, b in zip(times["fabric"], times[name], strict=True)]
        beside = f"Fabric {format_seconds(times['fabric'])}, local {said} {format_seconds(times[name])}"
        table.add_row(
            f"{what}: started",
            format_seconds(times["ours"]),
            beside,
            compute_ratio(times["ours"], parts),
            "<= 1.3",
        )
    table.add_row(f"{what}: over", format_seconds(over[1:]))
    table.add_row(f"{count} hosts: all trainers run again after a kill", format_seconds(times["again"]))


# --- memory ---


def measure_job_memory(table: Table, hosts: Hosts, environ: Environ) -> None:
    """The launcher with all of the hosts; keeper and agent of a job with one of them."""
    with make_package() as folder:
        fabric = BareFabric(hosts, len(hosts), environ)
        fabric()
        bare = fabric.peak_bytes[0] / MB
        with hold_job(Jobs(hosts, len(hosts), environ, folder)) as launcher:
            peak = read_launcher_peak(launcher.pid) / MB
        what = f"launcher with {len(hosts)} hosts, peak of RSS"
        table.add_row(what, f"{peak:.0f} MB", f"bare Fabric {bare:.0f} MB", peak / bare)
        with hold_job(Jobs(hosts, 1, environ, folder)):
            pss, rss = (x / MB for x in measure_guards(hosts[0]))
    table.add_row(
        "agent with its keeper on a host, memory (PSS)", f"{pss:.1f} MB", "30 MB", pss / 30, "<= 1.0"
    )
    table.add_row("the same, RSS of both added", f"{rss:.1f} MB", "30 MB", rss / 30)


@contextmanager
def hold_job(jobs: Jobs) -> Iterator[subprocess.Popen[bytes]]:
    """The launcher of a job whose trainers all run, and wait."""
    argv = jobs.make_command("--server_num=0", f"--worker_num={jobs.count}", program=("train.py", "wait"))
    with tempfile.NamedTemporaryFile() as out:
        said = Path(out.name)
        launcher = subprocess.Popen(argv, env=jobs.environ, stdin=subprocess.DEVNULL, stdout=out)
        try:
            wait_until(lambda: said.read_text().count('"here"') == jobs.count or launcher.poll() is not None)
            if launcher.poll() is not None:
                raise SystemExit(f"{' '.join(argv)} failed:\n{said.read_text()}")
            yield launcher
        finally:
            launcher.terminate()
            launcher.wait()


def read_launcher_peak(pid: int) -> float:
    """Bytes of RSS, at most, so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024.0


def measure_guards(host: Host) -> tuple[float, float]:
    """PSS and RSS of the keeper and the agent on a host."""
    (keeper,) = (pid for pid, name in host.processes().items() if name.startswith("keeper of "))
    both = [measure_memory(pid) for pid in (keeper, *list_children(keeper))]
    return sum(pss for pss, _ in both), sum(rss for _, rss in both)


# --- files ---


def measure_files(table: Table, hosts: Hosts, environ: Environ, turns: int, count: int, state: Path) -> None:
    """Files of 4 KB, to a host that has none of them and to a host that has all."""
    host, disk = hosts[0], "on disk" if state == STATE else "in memory"
    with make_package(state) as folder, OpenLines(hosts) as lines:
        jobs = Jobs(hosts, 1, environ, folder)
        write_files(folder, count, 4096)

        def send_cold() -> float:
            jobs.forget()
            return jobs.run_alone().measure_filling_s()

        contenders: dict[str, Callable[[], float]] = {
            "cold": send_cold,
            "tar": lambda: lines.send_tar(folder, [host]),
            "warm": lambda: jobs.run_alone().measure_filling_s(),
            "rsync": lambda: lines.send_rsync(folder, host),
        }
        times = {name: each[1:] for name, each in take_turns(contenders, turns + 1).items()}
    what, found = f"{count:,} files of 4 KB {disk}", compute_ratio(times["cold"], times["tar"])
    table.add_row(
        f"{what}, cold",
        format_seconds(times["cold"]),
        f"tar over ssh {format_seconds(times['tar'])}",
        found,
        "<= 1.3",
    )
    report_warm(table, what, times)


def report_warm(table: Table, what: str, times: dict[str, list[float]]) -> None:
    found = compute_ratio(times["warm"], times["rsync"])
    table.add_row(
        f"{what}, warm",
        format_seconds(times["warm"]),
        f"rsync {format_seconds(times['rsync'])}",
        found,
        "<= 1.0",
    )


def measure_sparse(
    table: Table, hosts: Hosts, environ: Environ, turns: int, sizes: Sizes, state: Path
) -> None:
    """Many large files that take no room, to a host that has them already.

    Reading them once would take longer than all else here, so both sides get the hashes beforehand.
    """
    host = hosts[0]
    with make_package(state) as folder, OpenLines(hosts) as lines:
        jobs = Jobs(hosts, 1, environ, folder)
        (there,) = jobs.list_workspaces()
        content = compute_digest(bytes(sizes.sparse_bytes))
        kept = {folder: folder / ".pslaunch/hashes", there: there / ".pslaunch/dispatch" / HASHES}
        for where, hashes in kept.items():
            paths = write_sparse(where, sizes.sparse, sizes.sparse_bytes, LONG_AGO_NS)
            hashes.parent.mkdir(parents=True)
            told = Hashes(str(hashes))
            for path in paths:
                told.trust(path.stat(), content)
            told.save()
        write_sparse(host.root / "rsync", sizes.sparse, sizes.sparse_bytes, LONG_AGO_NS)
        contenders = {
            "warm": lambda: jobs.run_alone().measure_filling_s(),
            "rsync": lambda: lines.send_rsync(folder, host),
        }
        times = {name: each[1:] for name, each in take_turns(contenders, turns + 1).items()}
    gb = sizes.sparse * sizes.sparse_bytes / 1e9
    report_warm(table, f"{sizes.sparse:,} sparse files in memory, {gb:.3g} GB", times)


def measure_large(table: Table, hosts: Hosts, environ: Environ, sizes: Sizes) -> None:
    """A package to ever more hosts that have nothing of it: how long, and what the launcher sends for it."""
    with make_package() as folder, OpenLines(hosts) as lines:
        write_files(folder, 16, sizes.large_bytes // 16)
        for count in sizes.spread:
            jobs = Jobs(hosts, count, environ, folder)
            filling_s, sent = jobs.send_first(sizes.large_bytes)
            tar_s = lines.send_tar(folder, jobs.chosen)
            what = f"{sizes.large_bytes / 2**20:,.0f} MiB to {count} host{'s'[: count - 1]}"
            beside = f"tar over ssh, at once {tar_s:.1f} s"
            table.add_row(what, f"{filling_s:.1f} s", beside, filling_s / tar_s)
            target = "<= 1.3" if count > 4 else ""
            table.add_row(f"{what}: sent by the launcher", f"{sent:.2f} packages", "1 package", sent, target)


PARTS = ("few", "many", "files", "sparse", "large", "weight")


def main() -> None:
    """Print the tables."""
    options = parse_parts(__doc__, PARTS, turns=5)
    parts = options.parts
    if reason := why_not() or ("" if shutil.which("rsync") else "no rsync: apt-get install rsync"):
        raise SystemExit(f"bench/ssh.py: {reason}")
    run(parts, QUICK if options.quick else Sizes(), options.turns)


def run(parts: Sequence[str], sizes: Sizes, turns: int) -> None:
    """Hosts for each measurement, one set after the other."""
    fewer = (turns + 1) // 2  # where a turn takes long
    with make_user_environ() as environ:
        if chosen := [part for part in PARTS[:2] if part in parts]:
            table = Table("Launch over SSH, time", beside="what it is made of")
            for part in chosen:
                with Hosts(sizes.few if part == "few" else sizes.many) as hosts:
                    measure_launches(table, hosts, environ, turns if part == "few" else fewer)
        if chosen := [part for part in PARTS[2:5] if part in parts]:
            table = Table("Files over SSH, from connected to ready", beside="over an open connection")
            for part in chosen:
                if part == "large":
                    with Hosts(max(sizes.spread)) as hosts:
                        measure_large(table, hosts, environ, sizes)
                    continue
                if part == "files":
                    with Hosts(1) as hosts:
                        measure_files(table, hosts, environ, turns, sizes.small, STATE)
                with use_memory_disk() as state, Hosts(1, state=state) as hosts:
                    if part == "files":
                        measure_files(table, hosts, environ, turns, sizes.small, state)
                    else:
                        measure_sparse(table, hosts, environ, fewer, sizes, state)
        if "weight" in parts:
            with Hosts(sizes.many) as hosts:
                measure_job_memory(Table("Weight over SSH", beside="limit, or bare Fabric"), hosts, environ)


if __name__ == "__main__":
    main()
