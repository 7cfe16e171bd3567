"""Free jobs on hosts, from a later shell of this machine and, with their conf.py, from any other one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.jobs import QUICK, SOON_LOST, on_hosts
from support.process import poll_until
from support.shells import Shell, list_files
from support.trainings import WAITING
from testbed import Hosts


@pytest.fixture
def job(hosts: Hosts, workspace: Path, tmp_path: Path) -> Iterator[str]:
    """The id of a job of three trainers that continues by itself."""
    (workspace / "train.py").write_text(WAITING)
    shell = Shell(hosts, tmp_path / "own")
    job = detached(shell, hosts, workspace)
    yield job
    shell.run("stop", "--kill", job)


def detached(shell: Shell, hosts: Hosts, workspace: Path, *more: str) -> str:
    """The id of a job of this workspace that was started."""
    options = (*(more or QUICK), "--server_num=0", "--job_name=free", "--connect_timeout=2")
    out = shell.ok("fabric", "--json", "--detach", *options, *on_hosts(hosts, workspace))
    return str(json.loads(out.splitlines()[0])["job"])


@pytest.fixture
def shell(hosts: Hosts, tmp_path: Path) -> Shell:
    """One of a machine that knows of no job, with a conf.py."""
    conf = tmp_path / "conf.py"
    conf.write_text(f"HOSTS = {[h.name for h in hosts]}\nROOT_DIR = '/somewhere'\n")
    return Shell(hosts, tmp_path / "another machine", f"--conf={conf}")


def test_a_later_shell_sees_the_job_fetches_from_it_and_ends_it(
    hosts: Hosts, job: str, shell: Shell, tmp_path: Path
) -> None:
    listed = [json.loads(line) for line in shell.ok("jobs", "--json").splitlines()]
    assert [(j["job"], j["state"], j["backend"]) for j in listed] == [(job, "running", "fabric")]
    status = json.loads(shell.ok("status", job[:8], "--json"))
    assert {p["state"] for p in status["processes"]} == {"running"}
    poll_until(lambda: shell.ok("logs", job, "trainer/2") == "ready\n", describe="its output")

    shell.ok("fetch", job, str(tmp_path / "got"))
    fetched = ["log/0-node1/events.jsonl", *(f"log/{i}-node{i + 1}/train.log" for i in range(3))]
    fetched.append("output/model-0")
    assert list_files(tmp_path / "got") == fetched

    assert "has ended" in shell.ok("stop", job)
    assert [host.processes() for host in hosts] == [{}, {}, {}]
    status = json.loads(shell.ok("status", job, "--json"))
    assert (status["state"], status["code"]) == ("ended", codes.TERM)
    assert {(p["state"], p["signal"]) for p in status["processes"]} == {("exited", "SIGTERM")}
    assert shell.ok("logs", job, "trainer/1") == "ready\n"  # the files on its node
    again = shell.ok("fetch", job, str(tmp_path / "again"))
    assert [str(Path(line).relative_to(tmp_path / "again")) for line in again.splitlines()] == fetched


def test_nodes_are_found_by_their_names_wherever_they_stand_among_the_hosts(
    hosts: Hosts, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "train.py").write_text(
        WAITING.replace('b"ready\\n"', 'os.environ["PADDLE_TRAINER_ID"].encode()')
    )
    own = Shell(hosts, tmp_path / "own")
    job = detached(own, hosts, workspace, *QUICK, "--exclude=node1")

    def another(*names: str) -> Shell:
        conf = tmp_path / f"{'-'.join(names)}.py"
        conf.write_text(f"HOSTS = {list(names)}\nROOT_DIR = '/somewhere'\n")
        return Shell(hosts, tmp_path / "another machine", f"--conf={conf}")

    every = another("node2", "node3", "node1")
    done = another("node1", "node3", "node2").run("status", job)
    assert done.returncode == codes.USAGE and "node1, the first of the hosts" in done.stderr
    assert "has ended" in every.ok("stop", job)

    assert every.ok("status", job).startswith(f"{job}  ended")
    for rank, shell in ((0, every), (1, another("node2", "node1", "root@node3"))):
        assert shell.ok("logs", job, f"trainer/{rank}") == f"{rank}\n"
    every.ok("fetch", job, str(tmp_path / "got"))
    logs = {p.parent.name: p.read_text() for p in (tmp_path / "got").rglob("train.log")}
    assert logs == {"0-node2": "0", "1-node3": "1"}

    done = another("node2").run("logs", job)
    assert (done.returncode, done.stdout) == (codes.USAGE, "trainer/0 | 0\n"), done.stderr
    assert "node 1 of the job (node3) is not among the hosts of this command; --conf" in done.stderr


def test_results_come_with_the_end_of_a_job_that_a_node_has_led(
    hosts: Hosts, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "train.py").write_text(WAITING.replace("signal.pause()", ""))
    options = (*QUICK, "--head=node", f"--fetch_output={tmp_path / 'out'}", "--server_num=0")
    done = Shell(hosts, tmp_path / "own").run("fabric", "--json", *options, *on_hosts(hosts, workspace))
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, [e["code"] for e in events if e["event"] == "end"]) == (0, [0]), done.stdout
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model-0"]


def test_impossible_folder_for_results_is_reported_before_the_training(
    hosts: Hosts, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "train.py").write_text("print('has run')")
    options = ("--server_num=0", "--fetch_output=/proc/out")
    done = Shell(hosts, tmp_path / "own").run("fabric", *options, *on_hosts(hosts, workspace, [hosts[0]]))
    assert done.returncode == codes.USAGE and "has run" not in done.stdout
    assert "--fetch_output=/proc/out: the folder can't be made: No such file or directory" in done.stderr


def test_a_host_that_does_not_answer_leaves_the_job_unknown(
    hosts: Hosts, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "train.py").write_text(WAITING)
    own = Shell(hosts, tmp_path / "own")
    job = detached(own, hosts, workspace, *SOON_LOST)
    hosts[0].crash()
    listed = [json.loads(line) for line in own.ok("jobs", "--json").splitlines()]
    assert [(j["job"], j["state"]) for j in listed] == [(job, "unknown")] and "node1" in listed[0]["reason"]
    done = own.run("stop", job)
    assert done.returncode == codes.HOST and "node1" in done.stderr
