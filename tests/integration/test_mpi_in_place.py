"""`pslaunch mpi`: a folder that all hosts have from this machine is used in place, any other is sent."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node import codes
from support.jobs import PSLAUNCH, parse_events
from support.openmpi import make_options
from support.shells import Shell
from testbed import Hosts

SHOW = "import os\nprint(os.getcwd(), open('content').read())\n"
TRAINERS = ("trainer/0", "trainer/1", "trainer/2")


@pytest.fixture
def folder(hosts: Hosts) -> Iterator[Path]:
    """Return a folder that all hosts share with this machine, with a program that shows where it runs."""
    path = hosts.folder / "shared" / "ws"
    path.mkdir(parents=True)
    (path / "train.py").write_text(SHOW)
    (path / "content").write_text("here")
    yield path
    shutil.rmtree(path.parent)


def make_command(hosts: Hosts, folder: Path, *options: str, major: int = 5) -> list[str]:
    """Return the words after `pslaunch` of a job of three trainers."""
    own = [word for word in make_options(hosts, major) if not word.startswith("--root_dir")]
    where = ["-H", ",".join(host.name for host in hosts)]
    numbers = ["-n", "3", "--server_num=0", "--grace=1"]
    return ["mpi", "--json", *where, *own, *numbers, *options, str(folder / "train.py")]


def run(hosts: Hosts, words: list[str]) -> tuple[int, list[dict[str, Any]]]:
    argv = hosts.as_user([*PSLAUNCH, *words])
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, parse_events(done.stdout)


def list_places(events: list[dict[str, Any]]) -> set[str]:
    """Return what the trainers have printed, each once, without their home."""
    said = {e["process"]: e["text"] for e in events if e["event"] == "line"}
    assert {*said} == {*TRAINERS}, events
    return {*said.values()}


def says_in_place(events: list[dict[str, Any]]) -> bool:
    return any("is used in place" in e.get("text", "") for e in events if e["event"] == "note")


def list_marks(folder: Path) -> list[Path]:
    return [*folder.glob(".pslaunch/mark-*")]


@pytest.mark.parametrize(
    ("major", "options"), [(4, ()), (5, ()), (5, ("--head=node",))], ids=["4", "5", "node"]
)
def test_folder_that_all_hosts_see_is_used_in_place(
    hosts: Hosts, folder: Path, major: int, options: tuple[str, ...]
) -> None:
    code, events = run(hosts, make_command(hosts, folder, *options, major=major))
    assert code == codes.OK, events
    assert list_places(events) == {f"{folder} here"} and says_in_place(events)
    assert not [e for e in events if e["event"] == "dispatch"]
    assert len([*folder.rglob("train.log")]) == 3 and list_marks(folder) == []


def test_detached_job_uses_the_folder_in_place(hosts: Hosts, folder: Path, tmp_path: Path) -> None:
    shell = Shell(hosts, tmp_path / "state")
    out = shell.ok(*make_command(hosts, folder, "--detach"))
    assert "is used in place" in out and list_marks(folder) == []
    job = json.loads(out.splitlines()[0])["job"]
    try:
        assert shell.ok("logs", "--follow", job, "trainer/2") == f"{folder} here\n"
    finally:
        shell.run("stop", "--kill", job)


def test_folder_that_one_host_lacks_is_sent_to_all(hosts: Hosts, folder: Path) -> None:
    hosts[1].mount_small_disk(1 << 20, str(folder.parent))
    code, events = run(hosts, make_command(hosts, folder))
    assert code == codes.OK, events
    assert list_places(events) == {f"{hosts[0].site.home}/ws here"} and not says_in_place(events)
    assert not (folder / "log").exists() and list_marks(folder) == []


def test_other_folder_of_the_same_path_is_not_used(hosts: Hosts, folder: Path) -> None:
    other = folder.parent / "other"
    shutil.copytree(folder, other)
    (other / "content").write_text("other")
    hosts[2].have_in_place_of(folder, other)
    code, events = run(hosts, make_command(hosts, folder))
    assert code == codes.OK, events
    assert list_places(events) == {f"{hosts[0].site.home}/ws here"} and not says_in_place(events)


def test_given_package_is_sent_to_hosts_that_see_it(hosts: Hosts, folder: Path) -> None:
    code, events = run(hosts, make_command(hosts, folder, f"--job_dispatch_package={folder}"))
    assert code == codes.OK, events
    assert list_places(events) == {f"{hosts[0].site.home}/ws here"} and not says_in_place(events)


def test_given_workspace_is_never_sent(hosts: Hosts, folder: Path) -> None:
    code, events = run(hosts, [*make_command(hosts, folder, f"--job_workspace={folder}")[:-1], "train.py"])
    assert code == codes.OK, events
    assert list_places(events) == {f"{folder} here"}
    assert not [e for e in events if e["event"] == "dispatch"] and not says_in_place(events)


def test_failed_start_leaves_no_mark(hosts: Hosts, folder: Path) -> None:
    hosts[2].remove_python()
    code, events = run(hosts, make_command(hosts, folder))
    assert code == codes.PREFLIGHT and "no Python" in events[-1]["reason"]
    assert (folder / ".pslaunch").is_dir() and list_marks(folder) == []


def test_check_looks_at_the_folder_in_place(hosts: Hosts, folder: Path) -> None:
    argv = hosts.as_user([*PSLAUNCH, "check", *make_command(hosts, folder)])
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    found = [json.loads(line)["facts"] for line in done.stdout.splitlines()]
    assert done.returncode == codes.OK, done.stderr
    assert [one["folders"]["workspace"]["path"] for one in found] == [str(folder)] * len(hosts)
    assert [one["files"] for one in found] == [{str(folder / "train.py"): True}] * len(hosts)
    assert list_marks(folder) == []
