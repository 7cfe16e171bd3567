"""Jobs that begin from a file: agents with a plan and a secret, and no launcher."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from integration.test_contract import POLITE
from pslaunch.backends.here import NODE
from pslaunch.backends.lines import Line
from pslaunch.backends.local.backend import LocalBackend
from pslaunch.follow.remote_head import RemoteHead
from pslaunch.node import beginning, codes, job
from pslaunch.node.dispatch.archive import pack_archive
from pslaunch.node.later import relay
from pslaunch.node.line.trace import Note
from pslaunch.node.listing import UNFETCHED
from pslaunch.node.loop import Loop
from pslaunch.plan import make_plan
from pslaunch.ship.package import PackageFolder, list_package
from support.command_line import make_spec
from support.jobs import has
from support.process import Started, poll_until, started
from support.trainings import REPORTING

SECRET, NAME = "ab" * 32, "begun"
LOST_AFTER_S = 2.5  # the heartbeat of agent and keeper is 1 s
SAY = """
import os
with open("data.txt") as f:
    print(os.environ["PADDLE_TRAINER_ID"], f.read())
"""


def find_free_port() -> int:
    """Return a port that is free, as is the next one, which will be the head's."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as server, contextlib.suppress(OSError):
            port = int(server.getsockname()[1])
            socket.create_server(("127.0.0.1", port + 1)).close()
            return port


def write_job(
    folder: Path,
    workspace: Path,
    program: str,
    *options: str,
    wait_timeout_s: float = 60.0,
    packed: bool = True,
    **limits: float,
) -> Path:
    """Write what the nodes of a job of two nodes begin from; return the file for its end."""
    (workspace / "train.py").write_text(program)
    words = ("--nodes=2", "--worker_num=2", f"--job_workspace={workspace}", *options)
    words += () if has(options, "--server_num") else ("--server_num=0",)
    spec = make_spec("local", words, workspace, os.environ)
    plan = make_plan(spec, "begun-1")._replace(port=find_free_port(), backend="k8s")
    nodes = tuple(
        node._replace(dispatched=True).place_in(str(folder / f"node-{node.id}")) for node in plan.nodes
    )
    plan = plan._replace(nodes=nodes)
    assert plan.package
    report = folder / "report"
    report.touch()
    port = job.choose_head_port(job.place(plan, nodes))
    begun = beginning.Beginning(plan, "localhost", port, wait_timeout_s, str(report), packed=packed, **limits)
    contents = {
        beginning.JOB_FILE: begun.encode(),
        **({beginning.PACKAGE_FILE: pack_archive(list_package(plan.package, os.environ))} if packed else {}),
        beginning.SECRET_FILE: SECRET.encode(),
        beginning.NAME_FILE: NAME.encode(),
    }
    for name, data in contents.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return report


@contextlib.contextmanager
def run_node(folder: Path, node: int, lost_after_s: float = 30.0) -> Iterator[Started]:
    argv: Sequence[str] = [*NODE, "keeper", str(lost_after_s), "1", "begin", str(folder), NAME, str(node)]
    with started(argv) as keeper:
        yield keeper


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "begun"
    path.mkdir()
    return path


def count_tries(port: int, for_s: float) -> None:
    """Hang up on all who call a head that is not there, until there was a call after this time."""
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(30.0)
        server.accept()[0].close()
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + for_s:
            server.accept()[0].close()


def test_nodes_find_the_head_that_comes_later_and_get_the_package(folder: Path, workspace: Path) -> None:
    (workspace / "data.txt").write_text("the data")
    report = write_job(folder, workspace, SAY)
    with run_node(folder, 1, lost_after_s=LOST_AFTER_S) as second:
        count_tries(beginning.read_beginning(str(folder)).port, LOST_AFTER_S)
        with run_node(folder, 0) as first:
            assert (first.wait(), second.wait()) == (0, 0), first.output() + second.output()
            lines = first.output().splitlines()
    assert "trainer/0 | 0 the data" in lines and "trainer/1 | 1 the data" in lines
    end = json.loads(report.read_text())
    assert (end["event"], end["code"], end["failure"]) == ("end", 0, None)


def test_job_whose_nodes_do_not_come_ends_after_the_wait_timeout(folder: Path, workspace: Path) -> None:
    report = write_job(folder, workspace, "", wait_timeout_s=2.0)
    with run_node(folder, 0) as first:
        assert first.wait() == codes.NODE_LOST
    assert "its agent never came" in json.loads(report.read_text())["reason"]


def test_node_gives_up_after_the_wait_timeout_whatever_is_lost_after(folder: Path, workspace: Path) -> None:
    write_job(folder, workspace, "", wait_timeout_s=0.2)
    with run_node(folder, 1, lost_after_s=1000.0) as second:
        assert second.wait() == 70
        assert "ConnectionRefusedError" in second.output()


def test_job_under_another_name_is_refused_at_once(folder: Path, workspace: Path) -> None:
    write_job(folder, workspace, "")
    (folder / beginning.NAME_FILE).write_text(f"dev-{NAME}")
    with run_node(folder, 1) as refused:
        assert refused.wait() == codes.PREFLIGHT
        said = refused.output()
    assert said.startswith(
        f"pslaunch agent: this pod is of the Job dev-{NAME}, but the job was made as {NAME},"
    )
    assert "--job_name" in said and said.count("\n") == 1


def test_long_end_fits_into_the_report(folder: Path, workspace: Path) -> None:
    fail = "import os\nprint(('x' * 500 + '\\n') * 100)\n"
    fail += "raise SystemExit(4 * int(os.environ['PADDLE_TRAINER_ID']))"
    report = write_job(folder, workspace, fail)
    with run_node(folder, 0) as first, run_node(folder, 1) as second:
        assert (first.wait(), second.wait()) == (4, 0), first.output()
    assert len(report.read_text()) <= 4096
    end = json.loads(report.read_text())
    assert (end["code"], end["failure"]["what"]) == (4, "trainer/1")


WAIT = "import time; print('runs', flush=True); time.sleep(600)"


def open_line() -> Line:
    return LocalBackend().open_head_line({"socket": relay.find_socket("begun-1")})


@contextlib.contextmanager
def holding_line(folder: Path, trace: Note | None = None) -> Iterator[tuple[Loop, RemoteHead]]:
    """Hold the job as a launcher does, with its package at hand."""
    line = open_line()
    loop = Loop()
    plan = beginning.read_beginning(str(folder)).plan
    assert plan.package
    supply = PackageFolder(loop, plan.package)
    head = RemoteHead(loop, line, name="node 0", lost_after_s=30.0, supply=supply, trace=trace)
    head.hold(job.place(plan, plan.nodes))
    yield loop, head
    head.close()
    loop.close()


def test_job_ends_once_its_launcher_is_gone_for_the_lease(folder: Path, workspace: Path) -> None:
    report = write_job(folder, workspace, WAIT, lease_s=3.0, linger_s=60.0)
    with run_node(folder, 0) as first, run_node(folder, 1) as second:
        first.expect(r"^trainer/1 \| runs$")
        with holding_line(folder) as (loop, head):
            loop.run(lambda: "trainer/1" in {e.get("process") for e in head.list_events(0)[0]})
            time.sleep(4.0)  # past the lease: the job goes on
            assert head.get_status() is not None and not report.read_text()
        start_s = time.monotonic()
        assert (first.wait(), second.wait()) == (codes.HUP, 0)
        assert 2.5 < time.monotonic() - start_s < 3.0 + 1.0 + 4.0
    assert json.loads(report.read_text())["reason"].startswith("the launcher is gone for 3 s")


def test_nodes_linger_for_a_launcher_that_comes_late_and_end_by_term(folder: Path, workspace: Path) -> None:
    write_job(folder, workspace, "print('quick')", lease_s=60.0, linger_s=60.0)
    with run_node(folder, 0) as first, run_node(folder, 1) as second:
        first.expect(r"^pslaunch \| ended with 0 after ")
        with holding_line(folder) as (loop, head):
            loop.run(lambda: head.done)
            said = [e["text"] for e in head.list_events(0)[0] if e["event"] == "line"]
        assert (head.code, said) == (0, ["quick", "quick"])
        marks = [*folder.rglob(f"{UNFETCHED}*")]
        assert len(marks) == 3  # files and output of node 0, files of node 1
        for mark in marks:
            mark.unlink()  # as a fetch does, without which they would stay
        for node in (first, second):
            assert node.proc.poll() is None
            os.kill(node.pid, signal.SIGTERM)
        assert (first.wait(timeout_s=5), second.wait(timeout_s=5)) == (0, 0)


LARGE_BYTES = 24 * 1024 * 1024
COMPARE = """
import hashlib
with open("large", "rb") as f:
    print(hashlib.sha256(f.read()).hexdigest())
"""


def await_leader() -> None:
    """Wait until the job can be held."""
    poll_until(can_hold, describe="no head")


def can_hold() -> bool:
    try:
        open_line().close()
    except OSError:
        return False
    return True


class Heard:
    """Requests of a head for its package."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self.offsets: dict[str, int] = {}  # of files that are there in part

    def __call__(self, direction: str, m: Any) -> None:
        if m["type"] == "received" and direction == "got":
            self.received_bytes += m["bytes"]
        elif m["type"] == "lacks":
            self.offsets = m["offsets"]


def test_package_comes_over_the_lines_of_launchers_though_they_are_cut(folder: Path, workspace: Path) -> None:
    (workspace / "large").write_bytes(random.Random(1).randbytes(LARGE_BYTES))
    report = write_job(folder, workspace, COMPARE, lease_s=60.0, packed=False)
    with run_node(folder, 0) as first, run_node(folder, 1) as second:
        await_leader()
        for share in (5, 3):
            heard = Heard()
            with holding_line(folder, heard) as (loop, _head):
                while heard.received_bytes < LARGE_BYTES // share:
                    loop.run_once()
        heard = Heard()
        with holding_line(folder, heard) as (loop, head):
            loop.run(lambda: head.done)
        assert (first.wait(), second.wait()) == (0, 0), first.output()
    assert min(heard.offsets.values()) > LARGE_BYTES // 3 and heard.received_bytes < LARGE_BYTES * 2 // 3
    digest = hashlib.sha256((workspace / "large").read_bytes()).hexdigest()
    assert {f"trainer/{i} | {digest}" for i in (0, 1)} <= {*first.output().splitlines()}
    assert json.loads(report.read_text())["code"] == 0


def test_job_that_was_freed_before_its_launcher_left_goes_on(folder: Path, workspace: Path) -> None:
    write_job(folder, workspace, WAIT, lease_s=1.0, packed=False)
    with run_node(folder, 0) as first, run_node(folder, 1) as second:
        await_leader()
        with holding_line(folder) as (loop, head):
            loop.run(lambda: "trainer/1" in {e.get("process") for e in head.list_events(0)[0]})
            assert head.free()
        with pytest.raises(subprocess.TimeoutExpired):
            first.proc.wait(3.0)  # past the lease
        os.kill(first.pid, signal.SIGTERM)
        assert (first.wait(), second.wait()) == (codes.NODE_LOST, 0)


def test_job_whose_package_never_comes_ends_after_the_lease(folder: Path, workspace: Path) -> None:
    report = write_job(folder, workspace, "", lease_s=2.0, packed=False)
    with run_node(folder, 0) as first, run_node(folder, 1) as second:
        assert (first.wait(), second.wait()) == (codes.HUP, 0)
    assert "the launcher is gone for 2 s: it never connected" in json.loads(report.read_text())["reason"]


def test_term_to_another_node_ends_the_job_in_order(folder: Path, workspace: Path) -> None:
    report = write_job(folder, workspace, POLITE, "--server=script", "--server_num=2")
    with run_node(folder, 0) as first, run_node(folder, 1) as second:
        for key in ("pserver/0", "pserver/1", "trainer/0", "trainer/1"):
            first.expect(rf"^{key} \| ready$")
        os.kill(second.pid, signal.SIGTERM)
        assert (first.wait(), second.wait()) == (codes.NODE_LOST, 0)
        said = [line.split()[-1] for line in first.output().splitlines() if "| leaving" in line]
    assert said == ["trainer", "trainer", "pserver", "pserver"]
    assert "asked to end (SIGTERM)" in json.loads(report.read_text())["reason"]


@pytest.mark.parametrize("secret", ["abcd", "no hexadecimal"])
def test_bad_secret_is_named(folder: Path, workspace: Path, secret: str) -> None:
    write_job(folder, workspace, "")
    (folder / beginning.SECRET_FILE).write_text(secret)
    with run_node(folder, 0) as first:
        assert first.wait() != 0
        assert "secret" in first.output() or "hexadecimal" in first.output()


def test_wheel_beside_the_job_is_imported_first(folder: Path, workspace: Path) -> None:
    import sysconfig
    import zipfile

    write_job(folder, workspace, "import pslaunch_beside; print(pslaunch_beside.HERE)")
    machine = sysconfig.get_platform().rpartition("-")[2]
    system = f"manylinux_2_17_{machine}.manylinux2014_{machine}"
    (folder / beginning.WHEEL).mkdir()
    for there in (system, "manylinux2014_another", f"musllinux_1_2_{machine}", "macosx_11_0_arm64"):
        with zipfile.ZipFile(folder / beginning.WHEEL / f"x-1-cp311-abi3-{there}.whl", "w") as wheel:
            wheel.writestr("pslaunch_beside.py", f"HERE = {there!r}")
            wheel.writestr("x-1.dist-info/RECORD", "pslaunch_beside.py,,\nx-1.dist-info/RECORD,,\n")
    with run_node(folder, 0) as first, run_node(folder, 1):
        assert first.wait() == 0, first.output()
        assert f"trainer/0 | {system}" in first.output() and sys.version_info >= (3, 11)


GOES_ON = f"""{REPORTING}
report("batch=1")
print("epoch", epoch, flush=True)
if int(epoch) < 2:
    signal.pause()
"""


def kill_agent(keeper: Started) -> None:
    (agent,) = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text().split()
    os.kill(int(agent), signal.SIGKILL)
    assert keeper.wait() == codes.SIGNAL_BASE + signal.SIGKILL


def end_by_term(keeper: Started) -> None:
    os.kill(keeper.pid, signal.SIGTERM)
    assert keeper.wait() == codes.NODE_LOST


@pytest.mark.parametrize(
    ("most", "ends", "code"),
    [(2, (kill_agent, end_by_term), codes.OK), (1, (end_by_term, kill_agent), codes.NODE_LOST)],
)
def test_a_head_counts_on_where_another_was_lost_with_its_node(
    folder: Path, workspace: Path, most: int, ends: Sequence[Callable[[Started], None]], code: int
) -> None:
    report = write_job(folder, workspace, GOES_ON, f"--max_restarts={most}", "--grace=1")
    with run_node(folder, 1) as second:
        for epoch, end in enumerate(ends):
            with run_node(folder, 0) as first:
                first.expect(rf"^trainer/1 \| epoch {epoch}$")
                first.expect(rf"^trainer/0 \| epoch {epoch}$")
                end(first)
        with run_node(folder, 0) as first:
            assert (first.wait(), second.wait()) == (code, 0), first.output() + second.output()
            said = first.output()
    lost = "node 0 (localhost) was lost: "
    if code:
        assert "no restart: --max_restarts=1 is used up" in said
        assert json.loads(report.read_text())["reason"] == f"{lost}its agent: the line was closed"
    else:
        why = f"{lost}the agent was asked to end (SIGTERM)"
        assert f"restart 2 of 2, running: {why}" in said and "trainer/1 | epoch 2" in said


def test_a_head_whose_nodes_were_all_lost_counts_on_from_the_newest_snapshot(
    folder: Path, workspace: Path, tmp_path: Path
) -> None:
    cuts = tmp_path / "cuts"
    for name, epoch, step, job_id in (("a", 0, 4, "begun-1"), ("b", 1, 9, "begun-1"), ("c", 5, 9, "other-1")):
        (cuts / name).mkdir(parents=True)
        told = {"job_id": job_id, "epoch": epoch, "step": step}
        (cuts / name / "manifest.json").write_text(json.dumps(told))
    (cuts / "d").mkdir()
    (cuts / "e").write_text("no folder")
    write_job(folder, workspace, GOES_ON, "--max_restarts=2", f"--snapshot_dir={cuts}")
    with run_node(folder, 0) as first, run_node(folder, 1):
        assert first.wait() == 0, first.output()
        assert re.search(
            r"restart 2 of 2, running: node 0 \S+ was lost: its pod is gone, with", first.output()
        )


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_nodes_that_are_asked_to_end_one_after_the_other_keep_what_is_not_fetched(
    folder: Path, workspace: Path, order: tuple[int, int], is_late: bool
) -> None:
    """Late: only once the head has taken the first one for a node that comes again."""
    options = ("--max_restarts=2", "--grace=1")
    report = write_job(folder, workspace, GOES_ON, *options, lease_s=60.0, linger_s=60.0)
    with run_node(folder, 0) as first, run_node(folder, 1) as second:
        for trainer in (0, 1):
            first.expect(rf"^trainer/{trainer} \| epoch 0$")
        nodes = [(first, second)[number] for number in order]
        os.kill(nodes[0].pid, signal.SIGTERM)
        first.expect(r"^pslaunch \| restart 1 of 2, ending: node \d \(\S+\) was lost: ")
        if is_late:
            assert nodes[0].wait() == (codes.PEER if order[0] else codes.NODE_LOST)
        os.kill(nodes[1].pid, signal.SIGTERM)
        of_nodes = {0: ["pack", "results"], 1: ["pack"]}
        wanted = [mode for number in order[is_late:] for mode in of_nodes[number]]
        poll_until(lambda: len([*folder.rglob(f"{UNFETCHED}*")]) == len(wanted), describe="no marks")
        for mark in folder.rglob(f"{UNFETCHED}*"):
            mark.unlink()
        for node in nodes[is_late:]:
            assert node.proc.poll() is None
            os.kill(node.pid, signal.SIGTERM)
        code = codes.PEER if is_late else 0
        assert (first.wait(), second.wait()) == (codes.NODE_LOST, code), first.output() + second.output()
    if order[is_late:] != (1,):
        assert json.loads(report.read_text())["code"] == codes.NODE_LOST
