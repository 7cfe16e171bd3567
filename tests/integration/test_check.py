"""`pslaunch check fabric` on real hosts: it reports all faults of all hosts, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node import codes
from support.jobs import PSLAUNCH, on_hosts, run_pslaunch
from support.process import poll_until, started
from testbed import Hosts

PORT = "7301"
HOLDER = (
    "import socket, time; s = socket.create_server(('', {port})); print('up', flush=True); time.sleep(600)"
)


def words_for(hosts: Hosts, workspace: Path, *options: str) -> list[str]:
    return ["fabric", *on_hosts(hosts, workspace), *options]


def check(hosts: Hosts, workspace: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and what is said of each host."""
    done = run_pslaunch("check", *words_for(hosts, workspace, "--json", *options), hosts=hosts)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["host"] for one in told] == [host.name for host in hosts], done.stderr
    return done.returncode, told


def found(told: Sequence[dict[str, Any]], level: str = "problem") -> dict[str, dict[str, str]]:
    """By host, what is wrong, in words."""
    return {
        one["host"]: {f["what"]: f["text"] for f in one["findings"] if f["level"] == level}
        for one in told
        if any(f["level"] == level for f in one["findings"])
    }


def test_the_network_is_tried_at_the_port_that_was_given(hosts: Hosts, plain: Path) -> None:
    """Also where no pserver is: the job has its doors there."""
    for host in hosts:
        host.restrict_ports(7301, 7301)
    words = ("--server=script", "--server_num=1")
    code, told = check(hosts, plain, *words, f"--port={PORT}")
    assert (code, found(told)) == (codes.OK, {})
    code, told = check(hosts, plain, *words)
    assert code == codes.PREFLIGHT
    assert {host: list(kinds) for host, kinds in found(told).items()} == {
        host.name: ["unreachable"] for host in hosts
    }


@pytest.fixture
def plain(workspace: Path) -> Path:
    """A workspace whose program needs nothing, without pservers of ours."""
    (workspace / "train.py").write_text("import os\nif os.environ['TRAINING_ROLE']: print('hello')\n")
    return workspace


def test_hosts_that_are_fine(hosts: Hosts, plain: Path) -> None:
    code, told = check(hosts, plain)
    assert (code, found(told)) == (codes.OK, {})
    for host, one in zip(hosts, told, strict=True):
        facts = one["facts"]
        assert facts["host"] == host.name
        assert one["addr"] == host.address
        assert abs(one["clock_off_s"]) < 2
        assert facts["programs"]["version"].startswith("3.")
        assert facts["folders"]["workspace"]["path"] == f"{hosts.root_dir}/{plain.name}"
        assert not any(host.root.iterdir()), "a check leaves nothing"
    table = run_pslaunch("check", *words_for(hosts, plain), hosts=hosts)
    lines = table.stdout.splitlines()
    assert lines[0].split()[:3] == ["host", "reached", "key"]
    assert [line.split()[:3] for line in lines[1:4]] == [[host.name, "yes", "ok"] for host in hosts]
    assert lines[-1] == "3 hosts can be used"


def test_unsendable_package_is_reported_before_the_job(hosts: Hosts, plain: Path) -> None:
    (plain / "far").symlink_to("/etc/passwd")
    done = run_pslaunch("check", *words_for(hosts, plain), hosts=hosts)
    assert done.returncode == codes.USAGE
    assert "far is a link that leads out, to /etc/passwd" in done.stderr


def test_all_failed_hosts_are_reported_with_their_reasons(hosts: Hosts, plain: Path) -> None:
    hosts[0].crash()
    (hosts[1].home / ".ssh/authorized_keys").write_text("")
    hosts[2].remove_python()
    code, told = check(hosts, plain, "--connect_timeout=3")
    assert code == codes.PREFLIGHT
    problems = found(told)
    assert list(problems) == ["node1", "node2", "node3"]
    assert hosts[0].address in problems["node1"]["connect"]
    assert "Permission denied" in problems["node2"]["key"]
    assert "no Python 3.9 or later" in problems["node3"]["no Python"]
    assert all(one["facts"] is None and f["advice"] for one in told for f in one["findings"])


def test_several_things_wrong_with_one_host(hosts: Hosts, plain: Path) -> None:
    (plain / "data").write_bytes(bytes(3 << 20))
    hosts[1].mount_small_disk(1 << 20)
    hosts[2].mount_small_disk(1 << 20)
    hosts[2].run("mount", "-o", "remount,ro", str(hosts.root_dir))
    wrong = ("--nics=eth1", "--python=/usr/bin/python9", "--link=corpus=/mnt/corpus")
    code, told = check(hosts, plain, *wrong)
    assert code == codes.PREFLIGHT
    problems = found(told)
    everywhere = {"no interface", "Python of the programs"}
    assert set(problems["node1"]) == everywhere
    assert set(problems["node3"]) == {*everywhere, "no rights", "disk full"}
    assert found(told, "warning")["node1"]["no link"] == "/mnt/corpus is not there"
    assert "/usr/bin/python9: No such file" in problems["node1"]["Python of the programs"]
    assert "1.0 MB are free, the package has 3.1 MB" in problems["node2"]["disk full"]
    assert "Read-only file system" in problems["node3"]["no rights"]


def test_a_busy_port_with_its_holder(hosts: Hosts, plain: Path) -> None:
    program = hosts[2].root / "holder.py"
    program.write_text(HOLDER.format(port=PORT))
    argv = ["ssh", "-F", str(hosts.config), "node3", "python3", f"{hosts.root_dir}/holder.py"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline() == b"up\n"
        code, told = check(hosts, plain, f"--port={PORT}")
        chosen, _ = check(hosts, plain)
        for pid in hosts[2].processes():
            os.kill(pid, 9)
    assert code == codes.PREFLIGHT and chosen == codes.OK
    problems = found(told)
    assert list(problems) == ["node3"]
    words = problems["node3"]["busy port"]
    assert f":{PORT}: Address already in use, held by pid " in words and "holder.py" in words


def test_nodes_that_can_not_reach_each_other(hosts: Hosts, plain: Path) -> None:
    addresses = (hosts[1].address, hosts[1].address6)
    for address in addresses:
        hosts[0].run("ip", "route", "add", "blackhole", address)
    try:
        code, told = check(hosts, plain)
    finally:
        for address in addresses:
            hosts[0].run("ip", "route", "del", "blackhole", address)
    assert code == codes.PREFLIGHT
    problems = found(told)
    assert set(problems) == {"node1", "node2"}, "neither reaches the other"
    assert "can't be reached from node1" in problems["node2"]["unreachable"]
    assert hosts[1].address in problems["node2"]["unreachable"]


def test_missing_imports_of_the_program_are_named_with_their_host(hosts: Hosts, workspace: Path) -> None:
    (workspace / "mine.py").write_text("import no_such_thing\n")
    (workspace / "train.py").write_text("import mine\ndef f():\n    import nor_this\n")
    code, told = check(hosts, workspace, "--server_num=0")
    assert code == codes.PREFLIGHT
    problems = found(told)
    assert set(problems) == {host.name for host in hosts}
    assert "no_such_thing (mine.py:1)" in problems["node1"]["missing modules"]
    assert "nor_this (train.py:3)" in found(told, "warning")["node1"]["missing later"]
    code, told = check(hosts, workspace, "--server_num=1")
    assert "pslaunch.runtime (the pserver)" in found(told)["node2"]["missing modules"]


def test_a_workspace_that_is_not_there(hosts: Hosts, plain: Path) -> None:
    there = hosts[0].root / "ws"
    there.mkdir()
    (there / "train.py").touch()
    (hosts[1].root / "ws").mkdir()
    names = ",".join(host.name for host in hosts)
    words = ("--json", f"--hosts={names}", f"--job_workspace={hosts.root_dir}/ws", "--server=script")
    done = run_pslaunch("check", "fabric", *words, hosts=hosts)
    assert done.returncode == codes.PREFLIGHT
    problems = found([json.loads(line) for line in done.stdout.splitlines()])
    assert set(problems) == {"node2", "node3"}
    assert f"{hosts.root_dir}/ws/train.py is not a file" in problems["node2"]["no program"]
    assert "No such file or directory" in problems["node3"]["no workspace"]


def test_a_failed_start_shows_the_table(hosts: Hosts, plain: Path) -> None:
    hosts[1].remove_python()
    (hosts[2].home / ".ssh/authorized_keys").write_text("")
    done = run_pslaunch(*words_for(hosts, plain), hosts=hosts)
    assert done.returncode == codes.HOST
    lines = done.stderr.splitlines()
    assert "PROBLEM node2: no Python: " in done.stderr and "PROBLEM node3: key: " in done.stderr
    assert next(line for line in lines if line.startswith("node1 ")).split()[1:3] == ["yes", "ok"]
    assert lines[-1] == "pslaunch: no program was started"


def test_a_log_folder_that_another_job_uses(hosts: Hosts, plain: Path) -> None:
    (plain / "train.py").write_text("import os, time\nos.environ['TRAINING_ROLE']\ntime.sleep(600)\n")
    argv = hosts.as_user([*PSLAUNCH, *words_for(hosts, plain, "--server_num=0", "--json", "--grace=1")])
    with started(argv) as launcher:
        launcher.until(lambda text: text.count('"state":"running"') == len(hosts), "three trainers")
        job = json.loads(launcher.output().splitlines()[0])["job"]
        code, told = check(hosts, plain, "--server_num=0")
        os.kill(launcher.pid, signal.SIGINT)
        launcher.wait()
    assert code == codes.PREFLIGHT
    assert {name: said["in use"].split()[1] for name, said in found(told).items()} == {
        host.name: job for host in hosts
    }


def test_ctrl_c_ends_it_while_a_host_is_waited_for(hosts: Hosts, plain: Path) -> None:
    hosts[1].freeze()
    argv = hosts.as_user([*PSLAUNCH, "check", *words_for(hosts, plain, "--connect_timeout=600")])
    with started(argv) as launcher:
        poll_until(hosts[0].processes, describe="an agent on node1")
        os.kill(launcher.pid, signal.SIGINT)
        assert launcher.wait(timeout_s=10) == codes.INT
        assert "pslaunch: interrupted (Ctrl+C); no program was started\n" in launcher.output()


def test_after_a_job_that_could_not_begin_hosts_that_are_fine_are_not_blamed(
    hosts: Hosts, plain: Path
) -> None:
    done = run_pslaunch(*words_for(hosts, plain, "--server_num=0", "--setup=exit 7"), hosts=hosts)
    assert done.returncode == 7 and "can't be made ready" in done.stdout
    assert done.stderr.splitlines()[-2:] == [
        "3 hosts can be used",
        "the checks find nothing else wrong with the hosts; see the failure above",
    ]


def test_with_install_the_index_of_each_host_is_tried(hosts: Hosts, plain: Path, wheelhouse: Path) -> None:
    shutil.copytree(wheelhouse, hosts[0].root / "wheels")
    found_there = f"--env=PIP_FIND_LINKS={hosts.root_dir}/wheels"
    code, told = check(hosts, plain, "--install", "--env=PIP_NO_INDEX=1", found_there)
    assert code == codes.PREFLIGHT
    problems = found(told)
    assert set(problems) == {"node2", "node3"}
    assert "No matching distribution found for numpy==" in problems["node2"]["no packages"]
    assert check(hosts, plain, "--install", f"--wheelhouse={wheelhouse}")[0] == codes.OK
