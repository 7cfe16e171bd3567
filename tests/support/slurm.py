"""Slurm on test hosts: its controller on the first, its daemon on each, munge between them.

This machine is a login node of it, by `environ`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support import leaks
from support.jobs import PSLAUNCH, FabricPlace, has
from support.process import Started, poll_until
from testbed import Hosts
from testbed.sweep import PATH

JOB_S = 150.0  # for a job on a busy machine
PROGRAMS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client"}
# A step's processes are those below its first: the hosts share one kernel, so a cgroup of a step would be
# that of three hosts.
CONF = """\
ClusterName=testbed
SlurmctldHost={first}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=20
EpilogMsgTime=1
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
PartitionName=closed Nodes=ALL State=DOWN
"""


class Slurm:
    """A running cluster of Slurm on all hosts of a set; pslaunch is there too, where this machine has it."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.folder = hosts.folder / "slurm"  # which all hosts share
        self._daemons: list[Started] = []

    def start(self, stack: contextlib.ExitStack) -> None:
        """Start all daemons, until `stack` ends, and wait until Slurm takes jobs."""
        self._write_files()
        key = f"--key-file={self.folder / 'munge.key'}"
        for host in self.hosts:
            host.show_installation()
            host.run("mount", "--bind", str(self.folder / "etc"), "/etc/slurm")
            host.run("mkdir", "-m", "755", "/run/munge", "/run/slurmd")
            files = [f"--{name}-file=/run/munge/{name}" for name in ("log", "pid", "seed")]
            self._daemons.append(
                stack.enter_context(host.running("munged", "--foreground", "--force", key, *files))
            )
        files = [f"--{name}-file=/run/munge/{name}-login" for name in ("log", "pid", "seed")]
        munge = ("munged", "--foreground", "--force", key, *files, f"--socket={self._socket}")
        self._daemons.append(stack.enter_context(self.hosts[0].running(*munge)))
        poll_until(self._can_prove, describe=self.describe)
        self._daemons.append(stack.enter_context(self.hosts[0].running("slurmctld", "-D")))
        self._daemons += [stack.enter_context(host.running("slurmd", "-D")) for host in self.hosts]
        poll_until(self._is_idle, describe=self.describe)

    def _write_files(self) -> None:
        for name in ("etc", "state", "login"):
            (self.folder / name).mkdir(parents=True)
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        first = self.hosts[0]
        nodes = "\n".join(f"NodeName={host.name} NodeAddr={host.address} CPUs=8" for host in self.hosts)
        conf = CONF.format(folder=self.folder, first=first.name, address=first.address, nodes=nodes)
        (self.folder / "etc/slurm.conf").write_text(conf)
        (self.folder / "login/slurm.conf").write_text(f"{conf}AuthInfo=socket={self._socket}\n")

    @property
    def _socket(self) -> Path:
        return self.folder / "login/munge"

    @property
    def environ(self) -> dict[str, str]:
        """Environment in which this machine is a login node."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "login/slurm.conf")}

    def _can_prove(self) -> bool:
        return not any(host.run("munge", "-n", check=False).returncode for host in self.hosts)

    def _is_idle(self) -> bool:
        said = self.run("sinfo", "--noheader", "--partition=all", "--format=%D %t").stdout.split()
        return said == [str(len(self.hosts)), "idle"]

    def describe(self) -> str:
        """Return the last words of all daemons."""
        return "\n".join(one.output()[-2000:] for one in self._daemons)

    def run(self, *argv: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command on the first host, with the mark of this run."""
        marked = f"{leaks.MARK}={os.environ[leaks.MARK]}"
        return self.hosts[0].run("env", marked, *argv, check=check)

    def get_job(self, job: str) -> dict[str, str]:
        """Return the fields of a job, as the controller shows them; none if it does not answer."""
        said = self.run("scontrol", "--oneliner", "show", "job", job).stdout
        return dict(word.split("=", 1) for word in said.split() if "=" in word)

    def wait(self, job: str, *, timeout_s: float = JOB_S) -> dict[str, str]:
        """Wait until a job is over on all hosts; return its fields."""

        def find_end() -> dict[str, str]:
            job_ = self.get_job(job)
            return job_ if job_.get("JobState", "PENDING") not in ("PENDING", "RUNNING", "COMPLETING") else {}

        return poll_until(
            find_end,
            describe=lambda: f"{self.get_job(job)}\n{self.describe()}",
            timeout_s=timeout_s,
            every_s=0.2,
        )

    def make_folder(self, name: str) -> Path:
        """Make a folder that all hosts see."""
        folder = self.folder / name
        folder.mkdir()
        return folder

    def submit(self, folder: Path, words: Sequence[str]) -> str:
        """Submit a script that runs this command of the folder for all nodes; return the job's number."""
        script = folder / "job.sh"
        options = "-N3 -n3 --requeue --output=said --open-mode=append"
        script.write_text(f"#!/bin/sh\n#SBATCH {options}\nexec {shlex.join(words)}\n")
        return self.run("sbatch", f"--chdir={folder}", "--parsable", str(script), check=True).stdout.strip()

    def until_said(self, folder: Path, job: str, word: str, times: int) -> None:
        """Wait until a job of this folder has said a word so often."""
        said = folder / "said"
        poll_until(
            lambda: said.exists() and said.read_text().count(word) >= times,
            describe=lambda: f"{self.get_job(job)}: {said.exists() and said.read_text()}",
            timeout_s=JOB_S,
        )

    def end_jobs(self) -> None:
        """End what is left of any job, and wait until the hosts are free."""

        def cancel_all() -> bool:
            queue = self.run("squeue", "--noheader")
            if queue.stdout:
                self.run("scancel", "--user=root")
            return not (queue.returncode or queue.stdout) and self._is_idle()

        poll_until(cancel_all, describe=self.describe, timeout_s=JOB_S, every_s=0.2)


class SlurmPlace(FabricPlace):
    """A cluster of Slurm, from its login node; each job gets an allocation of its own."""

    def __init__(self, slurm: Slurm, *options: str) -> None:
        super().__init__(slurm.hosts, *options)
        self.name, self._slurm = "slurm", slurm

    def command(self, workspace: Path, options: Sequence[str], program: Sequence[str]) -> list[str]:
        own = ["--json", f"--root_dir={self._hosts.root_dir}", *self._options]
        if not has(options, "--job_dispatch_package"):
            own += [f"--job_dispatch_package={workspace}"]
        own += [f"--nodes={self.nodes}"] if not has(options, "--nodes") else []
        own += [f"{name}=1" for name in ("--server_num", "--worker_num") if not has(options, name)]
        conf = f"SLURM_CONF={self._slurm.environ['SLURM_CONF']}"
        return ["env", conf, *PSLAUNCH, "slurm", *own, *options, *program]


def need_slurm() -> None:
    """Skip where Slurm is not installed."""
    for program, package in PROGRAMS.items():
        if not shutil.which(program, path=PATH):
            pytest.skip(f"no {program}; apt-get install {package}, or .ci/run, brings it")


@contextlib.contextmanager
def run_slurm(hosts: Hosts) -> Iterator[Slurm]:
    """Run Slurm on all hosts of a set."""
    with contextlib.ExitStack() as stack:
        slurm = Slurm(hosts)
        slurm.start(stack)
        yield slurm
