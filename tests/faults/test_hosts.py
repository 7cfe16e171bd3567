"""Every ending, on hosts by SSH: whoever is hit, nothing of the job is left on any host.

On each host runs another job of the same user, which must not notice. The programs of the job under test are
as bad as they can be, and so is what makes its nodes ready.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pslaunch.node import codes
from support import leaks
from support.beside import NAME, STRANGER, Inhabited, inhabited
from support.clock import own_s
from support.faults import Control, Fault, control
from support.jobs import FabricPlace, Job, Place, parent_of, run_pslaunch, running
from support.process import poll_until, until_empty
from support.trainings import STUBBORN
from testbed import Host, Hosts, why_not

GRACE_S, LOST_AFTER_S, EXTRA_S, SLACK_S, CONNECT_S = 1.0, 3.0, 2.0, 1.5, 6.0
GIVE_UP_S = 8.0  # a launcher waits so long for who does not answer its second request
STUBBORN_SETUP = "trap '' TERM; setsid sleep 1000 & echo furnishing; while :; do sleep 1000; done"
# Moments at which a process is held; furnishing and later report themselves.
MOMENTS = {"reaching": "keeper start 1", "dispatching": "agent new 1"}
POWER: dict[str, Callable[[Host], None]] = {"power": Host.crash, "cable": Host.cut_link, "hang": Host.freeze}


@dataclass(frozen=True)
class Case(Fault):
    """One cell of the matrix. node: also where the job is held."""

    node: int = 2

    @property
    def asked(self) -> bool:
        """Return True if the launcher is asked to end, and says so."""
        return self.who == "launcher" and self.how in ("INT", "TERM", "HUP", "twice")

    @property
    def keeps_held(self) -> bool:
        """Return True if the host stays silent: a launcher that is asked to end must not wait for it."""
        return self.asked and self.when == "reaching"

    @property
    def silent(self) -> bool:
        return self.how in ("STOP", *POWER, "network")

    def bound_s(self) -> float:
        """Within this time nothing may be left."""
        if self.how == "twice":
            return EXTRA_S
        return (LOST_AFTER_S if self.silent else 0.0) + GRACE_S + EXTRA_S


PLACED = [
    *(("fabric", Case("launcher", "reaching", how)) for how in ("KILL", "INT")),
    *(("fabric", Case("launcher", "dispatching", how)) for how in ("KILL", "STOP")),
    ("fabric", Case("launcher", "furnishing", "INT")),
    *(("fabric", Case("launcher", "running", how)) for how in ("STOP", "TERM", "HUP", "twice")),
    *(("fabric", Case("launcher", "ending", how)) for how in ("KILL", "twice")),
    ("fabric", Case("keeper", "reaching", "KILL", 0)),
    ("fabric", Case("keeper", "dispatching", "KILL")),
    ("fabric", Case("agent", "dispatching", "KILL", 0)),
    ("fabric", Case("agent", "furnishing", "KILL")),
    ("fabric", Case("keeper", "furnishing", "STOP")),
    ("fabric", Case("keeper", "running", "KILL", 0)),
    ("fabric", Case("agent", "running", "STOP")),
    ("fabric", Case("agent", "ending", "KILL")),
    ("fabric", Case("node", "reaching", "power")),
    ("fabric", Case("node", "dispatching", "hang", 0)),
    ("fabric", Case("node", "furnishing", "cable")),
    ("fabric", Case("node", "running", "power", 0)),
    ("fabric", Case("node", "running", "hang")),
    ("fabric", Case("node", "ending", "power")),
    ("fabric", Case("line", "running", "network", 0)),
    # A head on a node ends the others, and itself, once programs run; before that the launcher does.
    *(("fabric_led", Case("launcher", "running", how)) for how in ("KILL", "STOP", "twice")),
    ("fabric_led", Case("agent", "running", "KILL", 0)),
    ("fabric_led", Case("keeper", "running", "KILL")),
    ("fabric_led", Case("keeper", "running", "STOP", 0)),
    ("fabric_led", Case("node", "running", "power", 0)),
    ("fabric_led", Case("node", "running", "cable")),
    ("fabric_led", Case("node", "running", "hang", 0)),
    ("fabric_led", Case("nodes", "running", "network")),
]


@pytest.fixture(scope="session")
def inhabited_hosts(
    tmp_path_factory: pytest.TempPathFactory, check_leftovers_of_the_run: None
) -> Iterator[Inhabited]:
    """Three hosts for all tests here, each with a job that must not notice them."""
    if reason := why_not():
        pytest.skip(reason)
    package = tmp_path_factory.mktemp("beside") / NAME
    package.mkdir()
    (package / "train.py").write_text(STRANGER)
    with Hosts(3, run_id=os.environ[leaks.MARK]) as own:
        leaks.kept_hosts.add(own.id)
        with inhabited(own, package) as found:
            yield found
    leaks.kept_hosts.discard(own.id)


@pytest.fixture
def hosts(inhabited_hosts: Inhabited) -> Iterator[Hosts]:
    """The hosts, ready for a test; afterwards only those jobs run there, and they have noticed nothing."""
    inhabited_hosts.make_ready()
    yield inhabited_hosts.hosts
    inhabited_hosts.check()


class Hit:
    """A job that has come to its moment."""

    def __init__(self, case: Case, hosts: Hosts, job: Job, ctl: Control) -> None:
        self.case, self.hosts, self.job, self.control = case, hosts, job, ctl
        self.held = ctl.held() if case.when in MOMENTS else None
        everyone = [f"trainer/{i}" for i in range(3)]
        if case.when == "furnishing":
            job.until_printed("furnishing", [f"setup/{i}" for i in range(3)])
        elif self.held is None:
            job.until_printed("ready", everyone)
            job.until_printed("hidden", everyone)
        if case.when == "ending":
            job.launcher.proc.send_signal(signal.SIGINT)
            job.until_printed("told", everyone)

    def pid(self) -> int:
        """Of the process to be hit."""
        if self.case.who == "launcher":
            return self.job.launcher.pid
        if self.held:
            return self.held.pid if self.held.who == self.case.who else parent_of(self.held.pid)
        if self.case.when == "furnishing":
            keeper, agent = self._guards_of_setup()
        else:
            keeper, agent = self.job.guards(f"trainer/{self.case.node}")
        return keeper if self.case.who == "keeper" else agent

    def _guards_of_setup(self) -> tuple[int, int]:
        """Parents of what makes the node ready."""
        found = [pid for pid, words in self.hosts[self.case.node].processes().items() if " furnish " in words]
        agent = parent_of(found[0])
        return parent_of(agent), agent

    def strike(self) -> float:
        """Do it; the time of it."""
        now_s = own_s()
        host = self.hosts[self.case.node]
        if self.case.who == "node":
            POWER[self.case.how](host)
        elif self.case.who == "line":
            host.cut_off()
        elif self.case.who == "nodes":
            host.cut_off(self.hosts[0])
        elif self.case.how == "twice":
            self._twice()
        else:
            os.kill(self.pid(), self.case.number)
        if self.held and not self.case.keeps_held:
            self.held.tell()
        return now_s

    def _twice(self) -> None:
        if self.case.when == "running":
            self.job.launcher.proc.send_signal(signal.SIGINT)
            self.job.until_printed("told", ["trainer/0", "trainer/1", "trainer/2"])
        self.job.launcher.proc.send_signal(signal.SIGINT)


@contextlib.contextmanager
def hit(place: Place, hosts: Hosts, workspace: Path, case: Case) -> Iterator[Hit]:
    """A job at the moment of its fault."""
    grace_s = 30.0 if case.how == "twice" else GRACE_S
    # If nobody falls silent, silence must not end the job.
    lost_after_s = LOST_AFTER_S if case.silent else 60.0
    options = [f"--grace={grace_s}", f"--lost_after={lost_after_s}", f"--connect_timeout={CONNECT_S}"]
    options += ["--server=script", "--server_num=1", "--worker_num=3"]
    if case.when == "furnishing":
        options.append(f"--setup={STUBBORN_SETUP}")
    moments = [MOMENTS[case.when]] if case.when in MOMENTS else []
    with control(*moments, below=hosts.folder) as ctl:
        if moments:
            options.append(f"--agent_python={hosts.root_dir}/python")
            for number, host in enumerate(hosts):
                plain = '#!/bin/sh\nexec python3 "$@"\n'
                python = host.root / "python"
                python.write_text(ctl.python(hosts.folder) if number == case.node else plain)
                python.chmod(0o755)
        with running(place, workspace, *options, env=ctl.env(), text=STUBBORN) as job:
            yield Hit(case, hosts, job, ctl)


def expected_codes(case: Case) -> set[int]:
    """The launcher's exit code is one of these."""
    if case.when == "ending" or case.how == "twice":
        return {137} if case.who == "launcher" and case.how == "KILL" else {codes.INT}
    if case.who == "launcher" and case.how != "STOP":
        return {codes.SIGNAL_BASE + case.number}
    if case.when == "reaching":
        return {codes.HOST}
    return {codes.NODE_LOST}


@pytest.mark.parametrize(("place", "case"), PLACED, ids=str, indirect=["place"])
def test_nothing_is_left_on_any_host(
    place: Place, hosts: Hosts, inhabited_hosts: Inhabited, workspace: Path, case: Case
) -> None:
    with hit(place, hosts, workspace, case) as this:
        struck_s = this.strike()
        struck = hosts[case.node]

        def left() -> list[str]:
            waits = struck.name if case.how == "hang" or case.keeps_held else ""
            there = [words for words in inhabited_hosts.left() if words.partition(":")[0] != waits]
            on_hosts = [pid for host in hosts for pid in host.processes()]
            but = (this.job.launcher.pid, *on_hosts)
            return there + [words for pid, words in this.control.processes().items() if pid not in but]

        end_s = struck_s + case.bound_s() + SLACK_S + (CONNECT_S if case.when == "reaching" else 0.0)
        until_empty(left, end_s - own_s())
        launcher = this.job.launcher
        if (case.who, case.how) == ("launcher", "STOP"):
            os.kill(launcher.pid, signal.SIGCONT)
            end_s = own_s() + SLACK_S
        code = launcher.wait()
        assert own_s() < end_s, launcher.output()
        assert code in expected_codes(case), launcher.output()
        if this.held:
            this.held.tell()
        check_words(case, this)
    struck.thaw()
    until_empty(inhabited_hosts.left, LOST_AFTER_S + GRACE_S + EXTRA_S + SLACK_S)


def check_words(case: Case, this: Hit) -> None:
    """The launcher has said what happened, and where."""
    output = this.job.launcher.output()
    name = this.hosts[case.node].name
    if case.asked:
        assert any(words in output for words in ("Ctrl+C", "SIGTERM", "SIGHUP")), output
    elif case.who in ("keeper", "agent", "node", "line", "nodes") and case.when != "ending":
        assert name in output, output
        if case.when != "reaching":
            assert "was lost" in this.job.end()["reason"], output


TICKING = """
import itertools, time
for tick in itertools.count():
    print("tick", tick, flush=True)
    time.sleep(0.25)
"""
TICKS = int((LOST_AFTER_S + GRACE_S + EXTRA_S) / 0.25)  # whoever is missed is ended before so many
TIMES = (f"--grace={GRACE_S}", f"--lost_after={LOST_AFTER_S}", "--server_num=0", "--worker_num=3")


@pytest.mark.parametrize("place", ["fabric_led"], indirect=True)
def test_a_host_that_the_launcher_alone_has_lost_goes_on_for_its_head(
    place: Place, hosts: Hosts, workspace: Path
) -> None:
    with running(place, workspace, *TIMES, text=TICKING) as job:
        job.until(lambda _: job.lines("trainer/2"), "a tick")
        hosts[2].cut_off()
        seen = len(job.lines("trainer/2"))
        job.until(lambda _: len(job.lines("trainer/2")) > seen + TICKS, "further ticks")
        job.launcher.proc.send_signal(signal.SIGINT)
        assert job.launcher.wait() == codes.INT, job.launcher.output()


@pytest.mark.parametrize("place", ["fabric_led"], indirect=True)
def test_a_free_job_goes_on_without_its_launcher_and_ends_from_any_machine(
    place: Place, hosts: Hosts, inhabited_hosts: Inhabited, workspace: Path, tmp_path: Path
) -> None:
    with running(place, workspace, *TIMES, "--detach", text=TICKING) as job:
        job.launcher.expect("the job continues by itself")
        job.launcher.kill()  # in whatever it still does
    logs = [folder / "log/train.log" for folder in place.workspaces(workspace)]
    seen = [log.read_text().count("tick") for log in logs]
    poll_until(
        lambda: all(log.read_text().count("tick") > n + TICKS for log, n in zip(logs, seen, strict=True)),
        describe="further ticks",
    )
    conf = tmp_path / "conf.py"
    conf.write_text(f"HOSTS = {[host.name for host in hosts]}\nROOT_DIR = {str(hosts.root_dir)!r}\n")
    elsewhere = {"XDG_STATE_HOME": str(tmp_path)}  # which knows of no job
    run_pslaunch("stop", f"--conf={conf}", job.get_job()["job"], hosts=hosts, env=elsewhere, check=True)
    until_empty(inhabited_hosts.left, GRACE_S + EXTRA_S + SLACK_S)


def test_agents_hear_the_launcher_while_a_host_is_still_being_reached(
    make_hosts: Callable[..., Hosts], workspace: Path
) -> None:
    """Those that don't end after --lost_after; the others wait as long as it takes."""
    hosts = make_hosts(4)
    _, cut, waiting, silent = hosts
    silent.freeze()
    place = FabricPlace(hosts, "--head=node")
    options = ("--connect_timeout=600", f"--lost_after={LOST_AFTER_S}", "--grace=1", "--server_num=0")
    with running(place, workspace, *options, text=TICKING) as job:
        poll_until(
            lambda: len(cut.processes()) == len(waiting.processes()) == 2, describe="keepers and agents"
        )
        cut.cut_off()
        until_empty(cut.processes, LOST_AFTER_S + GRACE_S + EXTRA_S + SLACK_S)
        assert len(waiting.processes()) == 2
        job.launcher.proc.send_signal(signal.SIGINT)
        assert job.launcher.wait() == codes.INT, job.launcher.output()


@pytest.mark.parametrize(("place", "node"), [("fabric", 2), ("fabric_led", 0)], indirect=["place"])
def test_a_second_request_to_end_does_not_wait_for_a_host_that_hangs(
    place: Place, hosts: Hosts, workspace: Path, node: int
) -> None:
    options = ("--grace=60", "--lost_after=60", "--server_num=0", "--worker_num=3")
    with running(place, workspace, *options, text=TICKING) as job:
        job.until(lambda _: job.lines(f"trainer/{node}"), "a tick")
        hosts[node].freeze()
        job.launcher.proc.send_signal(signal.SIGINT)
        if place.led:
            job.launcher.expect(f"node 0 .{hosts[0].name}. does not answer the request to end the job")
        job.launcher.proc.send_signal(signal.SIGTERM)  # two of one kind could become one
        code = job.launcher.wait(timeout_s=GIVE_UP_S + EXTRA_S + SLACK_S)
        assert code in (codes.INT, codes.TERM), job.launcher.output()
        assert hosts[node].name in job.launcher.output()
    for host in hosts:  # without their head the others go on until --lost_after
        host.crash()
