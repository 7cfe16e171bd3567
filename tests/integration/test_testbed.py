"""`make hosts` of the tests' hosts: what it prints runs as it is, and `make hosts-down` removes them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import testbed.__main__ as tool
from support import others
from support.others import ROOT
from support.process import started, until_empty
from testbed import Hosts, sweep

OWNER = """
import os, signal
from testbed import Hosts
hosts = Hosts(1, run_id=os.environ["PSLAUNCH_TEST_RUN"])
print("made", hosts.id, hosts.folder, flush=True)
signal.pause()
"""


def remains(set_id: str, folder: str | Path) -> list[str]:
    """Return everything that exists of a set: links, processes and its folder."""
    there = [str(folder)] if Path(folder).exists() else []
    return [*sweep.links(set_id), *map(str, sweep.outer_processes(set_id)), *there]


def test_nothing_is_left_of_a_killed_owner(hosts: Hosts) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    with started([sys.executable, "-c", OWNER], env=env) as owner:
        made = owner.expect(r"^made (\w+) (\S+)$")
        assert len(remains(*made.groups())) > 4
        owner.kill()
    until_empty(lambda: remains(*made.groups()), 45.0)


BUSY = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
signal.pause()
"""


def test_a_holder_that_does_not_answer_is_killed_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "ENDS_S", 0.2)
    env = {**os.environ, sweep.VARIABLE: "nosuchset"}
    with started([sys.executable, "-c", BUSY], env=env) as busy:
        busy.expect("^up$")
        (tmp_path / "holder").write_text(f"{busy.pid} {tool.began(busy.pid)} nosuchset\n")
        assert tool.down(tmp_path) == f"removed 0 hosts (), {tmp_path}"
        assert busy.wait() == 128 + signal.SIGKILL
    assert f"has not ended after 0.2 s; waiting for process {busy.pid}" in capsys.readouterr().out


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
