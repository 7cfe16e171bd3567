"""Jobs on hosts that are not all alike, or have something wrong: what failed is named, with the host."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.jobs import FabricPlace, finished, run_pslaunch, running, succeeded, until_nothing_runs
from support.others import NO_BULLSEYE, bullseye_root
from support.trainings import STUBBORN, TRAIN
from testbed import Host, Hosts
from testbed.host import PLAIN

ALONE = ("--server_num=0", "--worker_num=3", "--grace=1")
SHOW = "import socket, sys\nprint(socket.gethostname(), *sys.version_info[:2])"


@pytest.fixture
def package(workspace: Path) -> Path:
    (workspace / "train.py").write_text(SHOW)
    return workspace


@pytest.mark.may_skip(NO_BULLSEYE)
def test_hosts_of_all_kinds_in_one_job(hosts: Hosts, package: Path) -> None:
    """Login shells that are no sh, login files that talk, an old system."""
    for host, shell in zip(hosts, ("/bin/csh", "/usr/bin/fish", "/bin/bash"), strict=True):
        if not Path(shell).exists():
            pytest.skip(f"no {shell}; .ci/run installs it")
        host.set_login_shell(shell)
    hosts[2].install_old_python(bullseye_root())
    for host in hosts:
        host.print_at_login("last login: yesterday")
    job = succeeded(FabricPlace(hosts), package, *ALONE)
    said = [job.lines(f"trainer/{rank}")[0].split() for rank in range(3)]
    assert [words[0] for words in said] == ["node1", "node2", "node3"] and said[2][1:] == ["3", "9"]
    (package / "train.py").write_text(f"import os\nif os.environ['RANK'] == '0': os._exit(3)\n{STUBBORN}")
    assert finished(FabricPlace(hosts), package, *ALONE)[0] == 3
    until_nothing_runs(1.0)


GUARDED = """
import os, signal
print(os.getuid(), open("given").read(), flush=True)
open("output/made", "w").close()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    print("away", flush=True)
signal.pause()
"""


@pytest.mark.parametrize(("head", "who"), [("launcher", "launcher"), ("node", "agent")])
def test_a_user_without_rights_has_the_same_guards(
    hosts: Hosts, workspace: Path, head: str, who: str
) -> None:
    (workspace / "given").write_text("here")
    user = {host.add_plain_user() for host in hosts}.pop()
    place = FabricPlace(hosts, f"--head={head}", user=user)
    with running(place, workspace, *ALONE, text=GUARDED) as job:
        job.until_printed(f"{PLAIN[1]} here", ["trainer/0", "trainer/1", "trainer/2"])
        job.until_printed("away", ["trainer/0", "trainer/1", "trainer/2"])
        assert {host.stat().st_uid for host in place.workspaces(workspace)} == {PLAIN[1]}
        keeper, agent = job.guards("trainer/1")
        os.kill({"launcher": job.launcher.pid, "keeper": keeper, "agent": agent}[who], signal.SIGKILL)
        until_nothing_runs(10.0)
        assert who == "launcher" or job.launcher.wait() == codes.NODE_LOST


def test_user_without_rights_learns_the_ports_that_need_them(hosts: Hosts, workspace: Path) -> None:
    user = {host.add_plain_user() for host in hosts}.pop()
    code, job = finished(FabricPlace(hosts, user=user, on=[hosts[0]]), workspace, "--port=80", text=SHOW)
    failure = job.end()["failure"]
    assert code == codes.SERVICE and ":80: Permission denied: only root may" in failure["text"]
    assert failure["advice"] == "give another --port"


def test_pservers_and_programs_run_in_an_environment_that_python_names(
    hosts: Hosts, workspace: Path, install: tuple[str, ...]
) -> None:
    """No other Python of the host has pslaunch; `check` tests the same one."""
    place = FabricPlace(hosts, on=[hosts[0]])
    job = succeeded(place, workspace, "--server_num=0", *install, text="import sys\nprint(sys.prefix)\n")
    (there,) = job.lines("trainer/0")
    python = f"--python={there}/bin/python"
    quiet = "import types; sitecustomize = types.SimpleNamespace(moment=str)"
    job = succeeded(place, workspace, python, text=TRAIN.replace("import sitecustomize", quiet))
    argv = place.command(workspace, [python], [])
    at = argv.index("fabric")
    subprocess.run([*argv[:at], "check", *argv[at:]], check=True, capture_output=True)


def test_a_job_through_a_bastion(make_hosts: Callable[..., Hosts], package: Path) -> None:
    hosts = make_hosts(3, bastion=True)
    job = succeeded(FabricPlace(hosts), package, *ALONE)
    assert [job.lines(f"trainer/{rank}")[0].split()[0] for rank in range(3)] == ["node1", "node2", "node3"]


MEET = """
import os, signal, socket, time
if os.environ["TRAINING_ROLE"] == "PSERVER":
    with socket.socket() as listener:  # without SO_REUSEADDR
        listener.bind((os.environ["POD_IP"], int(os.environ["PADDLE_PORT"])))
        listener.listen()
        signal.sigwait([signal.SIGTERM])
else:
    host, _, port = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].rpartition(":")
    while True:
        try:
            socket.create_connection((host, int(port))).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
"""


def test_a_firewall_with_the_given_port_and_the_next_open_is_enough(hosts: Hosts, workspace: Path) -> None:
    """The next one is the head's, on node 0."""
    for host in hosts:
        host.restrict_ports(7301, 7302)
    place, words = FabricPlace(hosts, "--head=node"), ("--server=script", "--worker_num=3")
    job = succeeded(place, workspace, *words, "--port=7301", text=MEET)
    code, job = finished(place, workspace, *words, "--lost_after=3")  # any free port
    assert code == codes.NODE_LOST, job.launcher.output()
    assert re.search(r"never came to port \d+ of node 0", job.events()[-1]["reason"])


def nearly_full_disk(host: Host) -> None:
    """Nothing but a folder that an earlier job made."""
    host.mount_small_disk(1 << 18)
    made = host.site.root / "my job's $HOME/.pslaunch"
    host.run("mkdir", "-p", str(made))
    host.run("touch", str(made / ".gitignore"))
    host.run("sh", "-c", f"cat /dev/zero > {host.site.root}/ballast || true")


def disk_that_can_only_be_read(host: Host) -> None:
    host.mount_small_disk(1 << 20)
    host.run("mount", "-o", "remount,ro", str(host.site.root))


FAULTS: dict[str, tuple[Callable[[Host], None], int, tuple[str, ...]]] = {
    "changed key": (Host.change_key, codes.HOST, ("1 of 3 hosts", "node2", "known_hosts:2")),
    "small disk": (lambda host: host.mount_small_disk(1 << 20), codes.IO, ("(node2)", "bytes free")),
    "nearly full disk": (nearly_full_disk, codes.IO, ("(node2)", "/.pslaunch/lock: No space left on device")),
    "read-only": (disk_that_can_only_be_read, codes.RIGHTS, ("(node2)", "/log can't be made", "--root_dir")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_a_host_are_named(hosts: Hosts, package: Path, fault: str) -> None:
    act, code, words = FAULTS[fault]
    act(hosts[1])
    (package / "data").write_bytes(os.urandom(3 << 20))
    got, job = finished(FabricPlace(hosts), package, *ALONE, "--connect_timeout=2")
    said = job.launcher.output()
    assert all(word in said for word in words), said
    assert got == code, said


@pytest.mark.parametrize("path", [os.environ["PATH"], "/nowhere"], ids=["as it is", "without ssh"])
def test_each_unreachable_host_is_reported_once(package: Path, path: str) -> None:
    places = [f"127.0.0.{i}:1" for i in range(1, 9)]
    where = (
        f"--hosts={','.join(places)}",
        f"--root_dir={package}/there",
        f"--job_dispatch_package={package}",
    )
    done = run_pslaunch("fabric", *where, env={"PATH": path})
    assert done.returncode == codes.HOST
    assert done.stderr.count("Connection refused") == len(places), done.stderr
    assert done.stderr.splitlines()[-1] == "pslaunch: no program was started"
