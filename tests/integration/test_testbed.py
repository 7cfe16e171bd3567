"""The hosts of the tests are what the tests take them for: machines of their own, that can fail."""

from __future__ import annotations

import functools
import os
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from support import furnished, leaks, others
from support.others import NO_BULLSEYE, ROOT, bullseye_root
from support.process import poll_until, started
from testbed import Host, Hosts, sweep
from testbed.__main__ import began

# A process that has left its session and its parent.
HIDE = "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo hidden"
OWNER = """
import os, signal
from testbed import Hosts
hosts = Hosts(1, run_id=os.environ["PSLAUNCH_TEST_RUN"])
print("made", hosts.id, hosts.folder, flush=True)
signal.pause()
"""


def test_each_host_is_a_machine_of_its_own(hosts: Hosts) -> None:
    for host in hosts:
        for name in (host.name, host.address, host.address6):
            said = hosts.ssh(name, "hostname; pwd; ls -A /tmp ~; touch /tmp/seen").stdout
            assert said.split()[:2] == [host.name, host.site.home]
        assert (host.home / ".ssh/id_ed25519").stat().st_mode & 0o777 == 0o600
        (host.root / "whose").write_text(host.name)
        assert hosts.ssh(host.name, f"cat {host.site.root}/whose").stdout == host.name
        assert hosts.ssh(host.name, "ls /tmp").stdout == "seen\n"
        poll_until(functools.partial(has_one_session, hosts, host.name), describe=host.name)


def has_one_session(hosts: Hosts, name: str) -> bool:
    """Return True if the asking session is alone: the sshd of an ended one may end after its client."""
    return hosts.ssh(name, "ps -e -o comm= | grep -c ssh").stdout == "2\n"


def test_a_host_has_nothing_of_this_checkout(hosts: Hosts) -> None:
    found = hosts.ssh("node1", f"find {ROOT} {sys.prefix} -mindepth 1 | head; python3 -c 'import pslaunch'")
    assert found.stdout == "" and "No module named 'pslaunch'" in found.stderr


def test_hosts_reach_each_other(hosts: Hosts) -> None:
    for a in hosts:
        others = [b for b in hosts if b is not a]
        line = "; ".join(f"ssh -o BatchMode=yes {b.name} hostname; ssh {b.address6} pwd" for b in others)
        said = hosts.ssh(a.name, line)
        assert said.stdout.split()[::2] == [b.name for b in others], said.stderr


def test_processes_are_found_wherever_they_hide(hosts: Hosts) -> None:
    host = hosts[1]
    assert host.processes() == {}
    assert hosts.ssh(host.name, HIDE).stdout == "hidden\n"
    poll_until(lambda: [*host.processes().values()] == ["sleep 1000"], describe=lambda: str(host.processes()))
    (pid,) = host.processes()
    assert pid in leaks.marked_processes()
    (inside,) = hosts.ssh(host.name, "pgrep -x sleep").stdout.split()
    assert host.pid(int(inside)) == pid
    assert hosts[0].processes() == {}
    hosts.reset()
    assert host.processes() == {}


def test_a_crash_takes_every_process_in_silence(hosts: Hosts) -> None:
    host = hosts[0]
    with started(["ssh", "-F", str(hosts.config), host.name, f"{HIDE}; sleep 1001"], ready="hidden") as line:
        pids = poll_until(lambda: [*host.processes()][1:] and [*host.processes()], describe="both processes")
        host.crash()
        assert not host.processes() and not [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]
        assert hosts.ssh("node2", "hostname").returncode == 0
        assert line.proc.poll() is None  # nobody told it
    host.boot()
    assert hosts.ssh(host.name, "hostname").stdout == "node1\n"


def test_a_link_that_is_down_is_silent_and_comes_back(hosts: Hosts) -> None:
    argv = ["ssh", "-F", str(hosts.config), "node3", "cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as line:
        assert line.stdin and line.stdout
        line.stdin.write(b"before\n")
        assert line.stdout.readline() == b"before\n"
        hosts[2].cut_link()
        line.stdin.write(b"during\n")
        assert hosts.ssh("node2", "hostname").returncode == 0
        assert hosts.ssh("node3", "-o", "ConnectTimeout=1", "hostname").returncode == 255
        assert not select.select([line.stdout], [], [], 0)[0]
        hosts[2].restore_link()
        assert line.stdout.readline() == b"during\n"
        line.stdin.close()


def test_a_frozen_host_says_nothing_until_it_thaws(hosts: Hosts) -> None:
    hosts[0].freeze()
    late = hosts.ssh("-o", "ConnectTimeout=1", "node1", "hostname")
    assert late.returncode == 255 and "timed out" in late.stderr, late
    hosts[0].thaw()
    assert hosts.ssh("node1", "hostname").stdout == "node1\n"


def test_a_changed_key_is_refused(hosts: Hosts) -> None:
    hosts[1].change_key()
    refused = hosts.ssh("node2", "hostname")
    assert refused.returncode == 255 and "IDENTIFICATION HAS CHANGED" in refused.stderr
    hosts.reset()
    assert hosts.ssh("node2", "hostname").stdout == "node2\n"


def test_a_host_without_python(hosts: Hosts) -> None:
    hosts[0].remove_python()
    look = "command -v python3 python3.11 python /usr/bin/python3"
    assert hosts.ssh("node1", look).returncode != 0
    assert hosts.ssh("node2", look).stdout
    hosts.reset()
    assert hosts.ssh("node1", look).stdout


@pytest.mark.may_skip(NO_BULLSEYE)
def test_a_host_with_an_old_python(hosts: Hosts) -> None:
    hosts[0].install_old_python(bullseye_root())
    said = hosts.ssh("node1", f"python3 -V; pwd; touch {hosts.root_dir}/here; hostname; ssh-add -l")
    assert said.stdout.split()[1].startswith("3.9.") and said.stdout.split()[2:] == ["/root", "node1"]
    assert (hosts[0].root / "here").exists()
    hosts.reset()
    assert not (hosts[0].root / "here").exists()
    assert "Python 3.9" not in hosts.ssh("node1", "python3 -V").stdout


def test_a_small_disk_is_full(hosts: Hosts) -> None:
    hosts[2].mount_small_disk(1 << 20)
    full = hosts.ssh("node3", f"dd if=/dev/zero of={hosts.root_dir}/file bs=64k count=100")
    assert full.returncode == 1 and "No space left on device" in full.stderr


@pytest.mark.parametrize("shell", ["/bin/csh", "/usr/bin/fish", "/bin/sh"])
def test_a_login_shell_and_files_that_talk(hosts: Hosts, shell: str) -> None:
    if not Path(shell).exists():
        pytest.skip(f"no {shell}; .ci/run installs it")
    hosts[0].set_login_shell(shell)
    hosts[0].print_at_login("who are you?")
    said = hosts.ssh("node1", "ps -o comm= -p $$" if shell != "/usr/bin/fish" else "ps -o comm= -p $fish_pid")
    talks = [] if shell == "/bin/sh" else ["who are you?"]
    assert said.stdout.splitlines() == [*talks, Path(shell).name], said.stderr


def test_a_bastion_is_the_only_way_in(make_hosts: Callable[..., Hosts]) -> None:
    hosts = make_hosts(2, bastion=True)
    for host in hosts:
        assert hosts.ssh(host.name, "hostname; ssh bastion hostname").stdout == f"{host.name}\nbastion\n"
    alone = hosts.ssh("-o", "ProxyJump=none", "-o", "ConnectTimeout=1", "node1", "hostname")
    assert alone.returncode == 255
    hosts.bastion.crash()
    assert hosts.ssh("-o", "ConnectTimeout=1", "node1", "hostname").returncode == 255


def remains(set_id: str, folder: str | Path) -> list[str]:
    """Return everything that exists of a set: links, processes and its folder."""
    there = [str(folder)] if Path(folder).exists() else []
    return [*sweep.links(set_id), *map(str, sweep.outer_processes(set_id)), *there]


def test_sets_are_apart_and_leave_nothing(make_hosts: Callable[..., Hosts]) -> None:
    first, second = make_hosts(1), make_hosts(1)
    assert first.subnet != second.subnet
    second[0].mount_small_disk(1 << 16, "/opt")
    assert hosts_hear(first[0], second[0]) is False
    for hosts in (first, second):
        hosts.close()
        assert remains(hosts.id, hosts.folder) == []
        hosts.close()


def hosts_hear(one: Host, other: Host) -> bool:
    """Return True if one host has a route to the other."""
    return one.run("ip", "route", "get", other.address, check=False).returncode == 0


def test_nothing_is_left_of_a_killed_owner(hosts: Hosts) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    with started([sys.executable, "-c", OWNER], env=env) as owner:
        made = owner.expect(r"^made (\w+) (\S+)$")
        assert len(remains(*made.groups())) > 4
        owner.kill()
    poll_until(lambda: not remains(*made.groups()), describe=lambda: str(remains(*made.groups())))


def test_leaks_of_hosts_are_found(make_hosts: Callable[..., Hosts], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "GRACE_S", 0.1)
    before = leaks.Leftovers.now()
    hosts = make_hosts(1)
    left = "\n".join(leaks.Leftovers.now().since(before))
    assert f"network link pt{hosts.id}" in left and "that holds a host" in left
    hosts.close()
    assert leaks.check(before) == []


TRY_OUT = """
set -e
mount --bind "$1" /etc/ssh/ssh_config.d
"$2" -m testbed up 2 "$3"
echo ==; ssh node2 hostname; cat "$3/machines"
! "$2" -m testbed up 1 "$3"
"$2" -m testbed down "$3"
"$2" -m testbed down "$3"
echo ==; ls "$1"; [ ! -e "$3" ]
"""


def test_hosts_to_try_things_out(make_hosts: Callable[..., Hosts], tmp_path: Path) -> None:
    make_hosts(0).close()  # skips where hosts can't be made
    (tmp_path / "configs").mkdir()
    words = [str(tmp_path / "configs"), sys.executable, str(tmp_path / "try")]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    with started(["unshare", "--mount", "sh", "-c", TRY_OUT, "sh", *words], env=env) as script:
        assert script.wait() == 0, script.output()
        told, seen, left = script.output().split("==\n")
    first, second = seen.splitlines()[-2:]
    assert first.startswith(f"removed 2 hosts (node1, node2), {tmp_path / 'try'}, ")
    assert second == f"nothing to remove: no hosts in {tmp_path / 'try'}"
    assert "make hosts-down" in told and "--conf" in told
    others.mpirun(4)
    assert "pslaunch mpi -hostfile " in told
    assert seen.split()[:3] == ["node2", "node1", "node2"] and "are up: make hosts-down" in seen
    assert left == ""


PRINTED_LINES = """
set -e
mount --bind "$1" /etc/ssh/ssh_config.d
trap '"$2" -m testbed down "$3"' EXIT
"$2" -m testbed up 2 "$3" >told
sed -n '/^    pslaunch.* mpi /,/train.py$/p' told >lines
sh -ex lines
"""


def test_printed_lines_for_mpirun_run_as_they_are(make_hosts: Callable[..., Hosts], tmp_path: Path) -> None:
    make_hosts(0).close()
    others.mpirun(4)
    furnished.need_same_python()
    (tmp_path / "configs").mkdir()
    (package := tmp_path / "examples/word2vec/ws").mkdir(parents=True)
    (package / "train.py").write_text("import pslaunch.runtime as paddle\npaddle.init()\nprint('trains')\n")
    words = [str(tmp_path / "configs"), sys.executable, str(tmp_path / "try")]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PATH": path}
    line = 'cd "$0" && exec unshare --mount sh -c "$@"'
    with started(["sh", "-c", line, str(tmp_path), PRINTED_LINES, "sh", *words], env=env) as script:
        assert script.wait() == 0, script.output()
    assert all(re.search(rf"trainer/{i} +\| trains", script.output()) for i in (0, 1)), script.output()
    assert script.output().count("+ pslaunch ") == 2, script.output()


@pytest.mark.parametrize("count", ["x", "", "0", "201", "2 3", "-1", "--all", "9999"])
def test_a_number_of_hosts_that_can_not_be_meant_is_one_line(tmp_path: Path, count: str) -> None:
    argv = [sys.executable, "-m", "testbed", "up", "--", count, str(tmp_path / "hosts")]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"hosts: from 1 to 200, not {count!r}: make hosts N=3\n"


AS_NOBODY = """
import os
import re
from testbed.__main__ import main
os.setuid(65534)
main()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_hosts_of_another_user_are_not_ended() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    with tempfile.TemporaryDirectory(dir="/tmp") as name, started(["sleep", "1000"]) as other:
        folder, pid = Path(name), other.proc.pid
        folder.chmod(0o755)
        (folder / "holder").write_text(f"{pid} {began(pid)}\n")
        argv = [sys.executable, "-c", AS_NOBODY, "down", name]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        assert other.proc.poll() is None and (folder / "holder").exists()
    assert done.returncode == 1
    assert done.stderr == f"hosts: those of {name} are another user's: sudo make hosts-down\n"
