"""Jobs under mpirun next to mpirun itself and to scp: `python bench/mpi.py`. Needs root, for its own hosts.

The hosts are those of the tests: real sshds in namespaces of this machine. So all of them and the launcher
share its processors, and their network is its memory, but where it is limited; `large` has their folders in
memory, since they would share one disk.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # testbed, support

from agents import MB, list_children, measure_memory
from over_ssh import Environ, Jobs, make_command, write_files
from ssh import format_seconds, hold_job, make_package, measure_guards, use_memory_disk
from support.openmpi import get_prefix, make_options
from testbed import Hosts, why_not
from turns import Table, compute_ratio, make_user_environ, parse_parts, take_turns

MAJORS = (5, 4)
SPREAD = (2, 4, 8)
SIZES = (256 << 20, 1024 << 20)
QUICK = (8 << 20,)
RATE = "1gbit"
ROOM = "10g"  # for the largest package and its copies
BARE = "print('here')"
RANK_MB = 12.0
OWN_S = 0.3  # allowed beside a multiple of mpirun's time


class MpiJobs(Jobs):
    """`pslaunch mpi` of a package on some of the hosts."""

    def __init__(self, hosts: Hosts, count: int, environ: Environ, package: Path, major: int = 5) -> None:
        super().__init__(hosts, count, environ, package)
        self._own = make_options(hosts, major)
        self._where = ("-H", ",".join(host.name for host in self.chosen))

    def make_command(self, *options: str, program: Sequence[str] = ("train.py",)) -> list[str]:
        """A job as the options say."""
        own = ("--json", f"--job_dispatch_package={self.package}", *self._where, *self._own)
        return self.hosts.as_user(make_command("mpi", *own, *options, *program))

    def make_bare_command(self) -> list[str]:
        """The same call of mpirun for Python alone."""
        options = {word.partition("=")[0]: word.partition("=")[2] for word in self._own}
        kept = [word for word in self._own if not word.startswith(("--root_dir", "--mpirun", "--prefix"))]
        prefix = ["--prefix", str(get_prefix(self.hosts))] if "--prefix" in options else []
        # As in a job: this machine connects to all hosts by itself.
        names = ("PRTE_MCA_plm_ssh_no_tree_spawn", "OMPI_MCA_plm_rsh_no_tree_spawn")
        set_both = ["env", *(f"{name}=1" for name in names)]
        mpirun = options.get("--mpirun", "mpirun")
        words = [mpirun, "-n", str(self.count), *self._where, *kept, *prefix, "python3", "-c", BARE]
        return self.hosts.as_user([*set_both, *words])

    def run_bare(self) -> float:
        """Seconds until the last rank has said its line."""
        argv, begin_s, said_s = self.make_bare_command(), time.time(), list[float]()
        with subprocess.Popen(
            argv,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as run:
            assert run.stdout
            said_s += [time.time() for line in run.stdout if line.strip() == "here"]
        if run.returncode or len(said_s) != self.count:
            raise SystemExit(f"{' '.join(argv)} failed, exit {run.returncode}")
        return said_s[-1] - begin_s

    def send_scp(self) -> float:
        """Seconds of scp to each of the hosts, one after the other, into new folders."""
        for host in self.chosen:
            shutil.rmtree(host.root / "scp", ignore_errors=True)
        begin_s = time.perf_counter()
        for host in self.chosen:
            where = f"{host.name}:{self.hosts.root_dir}/scp"
            argv = ["scp", "-q", "-r", "-F", str(self.hosts.config), str(self.package), where]
            subprocess.run(argv, check=True)
        took_s = time.perf_counter() - begin_s
        for host in self.chosen:
            shutil.rmtree(host.root / "scp")
        return took_s


def measure_launches(table: Table, hosts: Hosts, environ: Environ, turns: int) -> None:
    """A trainer on each host, then a pserver too, as it is by default."""
    count = len(hosts)
    for major in MAJORS:
        with make_package() as folder:
            jobs = MpiJobs(hosts, count, environ, folder, major)

            def run(option: str, jobs: MpiJobs = jobs) -> float:
                return jobs.run(option, f"--worker_num={count}").measure_first_lines_s()

            contenders: dict[str, Callable[[], float]] = {
                "bare": jobs.run_bare,
                "0": functools.partial(run, "--server_num=0"),
                f"{count}": functools.partial(run, "--server=script"),
            }
            found = take_turns(contenders, turns + 1)
        times = {name: each[1:] for name, each in found.items()}  # the first turn compiled the modules
        bare = times.pop("bare")
        for servers, ours in times.items():
            table.add_row(
                f"Open MPI {major}, {count} hosts, {servers} pservers + {count} trainers",
                format_seconds(ours),
                f"bare mpirun {format_seconds(bare)}",
                compute_ratio([t - OWN_S for t in ours], bare),
                "<= 1.5",
            )


def measure_large(
    table: Table, hosts: Hosts, environ: Environ, sizes: Sequence[int], spread: Sequence[int], state: Path
) -> None:
    """A package to ever more hosts that have nothing of it."""
    for size in sizes:
        with make_package(state) as folder:
            write_files(folder, 16, size // 16)
            for count in spread:
                jobs = MpiJobs(hosts, count, environ, folder)
                filling_s, sent = jobs.send_first(size)
                scp_s = jobs.send_scp()
                what = f"{size / 2**20:,.0f} MiB to {count} hosts"
                target = ">= 2.0" if count == 4 else ""
                beside = f"scp in a loop {scp_s:.1f} s"
                table.add_row(what, f"{filling_s:.1f} s", beside, scp_s / filling_s, target)
                table.add_row(f"{what}: sent by the launcher", f"{sent:.2f} packages", f"{count} packages")


def measure_job_memory(table: Table, hosts: Hosts, environ: Environ) -> None:
    """The processes of a job on a host: keeper and agent, rank process."""
    with make_package() as folder, hold_job(MpiJobs(hosts, 1, environ, folder)):
        pss, rss = (x / MB for x in measure_guards(hosts[0]))
        said = {pid for pid, words in hosts[0].processes().items() if " rank {" in words}
        (rank_pid,) = (pid for pid in said if not list_children(pid))  # the agent has the trainer
        rank = measure_memory(rank_pid)[0] / MB
    table.add_row("agent with its keeper, memory (PSS)", f"{pss:.1f} MB", "30 MB", pss / 30, "<= 1.0")
    table.add_row("the same, RSS of both added", f"{rss:.1f} MB", "30 MB", rss / 30)
    table.add_row("rank process, memory (PSS)", f"{rank:.1f} MB", f"{RANK_MB:g} MB", rank / RANK_MB, "<= 1.0")


PARTS = ("launch", "large", "weight")


def main() -> None:
    """Print the tables."""
    options = parse_parts(__doc__, PARTS, turns=7)
    parts = options.parts
    if reason := why_not():
        raise SystemExit(f"bench/mpi.py: {reason}")
    with make_user_environ() as environ:
        if "launch" in parts:
            table = Table("Launch under mpirun, time; ratio without 0.3 s", beside="mpirun of Python alone")
            with Hosts(3) as hosts:
                measure_launches(table, hosts, environ, options.turns)
        if "large" in parts:
            spread, sizes = (SPREAD[:1], QUICK) if options.quick else (SPREAD, SIZES)
            what = "Files under mpirun, from connected to ready"
            with use_memory_disk(ROOM) as state, Hosts(spread[-1], state=state) as hosts:
                table = Table(what, beside="scp to host after host")
                measure_large(table, hosts, environ, sizes, spread, state)
                table = Table(f"{what}, {RATE} to and from each host", beside="scp to host after host")
                for host in hosts:
                    host.limit_link(RATE)
                measure_large(table, hosts, environ, sizes[:1], spread, state)
                measure_large(table, hosts, environ, sizes[1:], spread[1:2], state)
        if "weight" in parts:
            with Hosts(1) as hosts:
                measure_job_memory(Table("Weight under mpirun", beside="limit"), hosts, environ)


if __name__ == "__main__":
    main()
