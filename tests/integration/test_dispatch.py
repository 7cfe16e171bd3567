"""A workspace goes to the nodes of a job: what travels, what stays, what is refused, what a cut costs."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node import codes
from support.jobs import (
    QUICK,
    FabricPlace,
    Job,
    LocalPlace,
    Place,
    finished,
    running,
    succeeded,
    until_nothing_runs,
)
from support.process import poll_until
from testbed import Hosts

ALONE = ("--server_num=0", "--worker_num=3")
TRAIN = "import os\nprint(*sorted(os.listdir('data')))\n"
CLUSTERS = ("local_led_cluster", "fabric")


def fill(workspace: Path) -> None:
    (workspace / "train.py").write_text(TRAIN)
    (workspace / "data").mkdir()
    for name in ("a", "b"):
        (workspace / "data" / name).write_text(name)
    (workspace / "data/link").symlink_to("a")


def sent(job: Job) -> dict[str, Any]:
    """Return the event with the result of the job's dispatch to all nodes."""
    (event,) = [e for e in job.events() if e["event"] == "dispatch" and e["node"] is None]
    return event


def listings(job: Job) -> list[list[str]]:
    return [job.lines(f"trainer/{rank}")[0].split() for rank in range(3)]


@pytest.mark.parametrize("place", CLUSTERS, indirect=True)
def test_only_changed_files_are_sent_and_files_of_programs_stay(place: Place, workspace: Path) -> None:
    fill(workspace)
    job = succeeded(place, workspace, *ALONE)
    assert listings(job) == [["a", "b", "link"]] * 3
    last = place.workspaces(workspace)[-1]
    (last / "data/written").write_text("by a program")
    succeeded(place, workspace, *ALONE)
    job = succeeded(place, workspace, *ALONE)
    assert (sent(job)["files"], sent(job)["bytes"]) == (0, 0)
    (workspace / "data/a").unlink()
    (workspace / "data/link").unlink()
    (workspace / "data/b").write_text("changed")
    job = succeeded(place, workspace, *ALONE)
    assert listings(job)[-1] == ["b", "written"]
    assert (last / "data/b").read_text() == "changed"
    assert (last / "data/written").read_text() == "by a program"
    receivers = {"local": 2, "fabric": 3}[place.name]
    assert (sent(job)["files"], sent(job)["nodes"]) == (receivers, receivers)


@pytest.mark.parametrize("place", ["fabric"], indirect=True)
def test_each_trainer_has_its_own_shards_and_links_lead_to_mounted_folders(
    place: Place, workspace: Path
) -> None:
    fill(workspace)
    (workspace / "mounted").symlink_to("/nowhere")
    for i in range(5):
        (workspace / f"data/part-{i:03d}").write_text(str(i))
    options = (*ALONE, "--shard=data/part-{:03d}", "--link=mounted=/mnt/all")
    for _ in range(2):
        job = succeeded(place, workspace, *options)
        shared = ["a", "b", "link"]
        assert listings(job) == [
            [*shared, "part-000", "part-003"], [*shared, "part-001", "part-004"], [*shared, "part-002"],
        ]  # fmt: skip
        assert all((ws / "mounted").readlink() == Path("/mnt/all") for ws in place.workspaces(workspace))


def test_disk_without_room_is_reported_and_the_old_workspace_stays_intact(
    hosts: Hosts, workspace: Path
) -> None:
    place = FabricPlace(hosts)
    hosts[1].mount_small_disk(1_000_000)
    fill(workspace)
    succeeded(place, workspace, *ALONE)
    (workspace / "data/a").write_text("changed")
    (workspace / "data/large").write_bytes(os.urandom(2_000_000))
    code, job = finished(place, workspace, *ALONE)
    assert code == codes.IO
    failure = job.end()["failure"]
    assert failure["node"] == 1 and "bytes free and the package needs" in failure["text"]
    assert not [e for e in job.events() if e["event"] == "process"]
    there = hosts.ssh(
        "node2", f"cd '{hosts.root_dir}'/*; cat data/a; ls data; ls -A .pslaunch/dispatch"
    ).stdout
    assert set(there.split()) - {"seen"} == {"aa", "b", "link", "hashes", "manifest", "staged"}


def test_disk_mounted_in_the_workspace_is_reported_before_any_change(hosts: Hosts, workspace: Path) -> None:
    place = FabricPlace(hosts)
    fill(workspace)
    succeeded(place, workspace, *ALONE)
    data = place.workspaces(workspace)[1] / "data"
    hosts[1].run("mount", "-t", "tmpfs", "tmpfs", str(hosts.root_dir / workspace.name / "data"))
    (workspace / "data/deep").mkdir()
    (workspace / "data/deep/new").write_text("new")
    code, job = finished(place, workspace, *ALONE)
    assert (code, job.end()["failure"]["node"]) == (codes.IO, 1)
    assert "data is a disk of its own" in job.end()["failure"]["text"]
    assert "--link NAME=PATH" in job.end()["failure"]["text"]
    hosts[1].run("umount", str(hosts.root_dir / workspace.name / "data"))
    assert finished(place, workspace, *ALONE)[0] == 0 and (data / "deep/new").read_text() == "new"


def test_a_journal_that_can_not_be_read_is_named(workspace: Path) -> None:
    place = LocalPlace(2)
    fill(workspace)
    journal = place.workspaces(workspace)[1] / ".pslaunch/dispatch/journal"
    journal.parent.mkdir(parents=True)
    journal.write_text("junk")
    code, job = finished(place, workspace, *ALONE)
    text = job.end()["failure"]["text"]
    assert code == codes.IO and str(journal) in text and "remove it" in text, text
    journal.unlink()
    succeeded(place, workspace, *ALONE)


def test_bytes_received_before_a_cut_are_not_sent_again(workspace: Path) -> None:
    place = LocalPlace(2)
    fill(workspace)
    size = 150_000_000
    with (workspace / "data/large").open("wb") as f:
        for i in range(size // 1_000_000):
            f.write(i.to_bytes(4, "little") * 250_000)
    dispatch = place.workspaces(workspace)[1] / ".pslaunch/dispatch"
    options = ("--server_num=0", "--worker_num=2")

    def count_come() -> int:
        return max((part.stat().st_size for part in dispatch.glob("staged/*")), default=0)

    with running(place, workspace, *options, *QUICK) as job:
        poll_until(lambda: count_come() > 1, describe=lambda: "nothing of the large file has come yet")
        job.launcher.proc.send_signal(signal.SIGKILL)
        job.launcher.wait()
    until_nothing_runs(3 + 1 + 2)
    come = count_come()
    assert not (dispatch.parents[1] / "data").exists()
    job = succeeded(place, workspace, *options)
    assert 0 < come < size
    assert sent(job)["bytes"] == size - come + len(TRAIN)  # what comes before it has come too
    assert (dispatch.parents[1] / "data/large").read_bytes() == (workspace / "data/large").read_bytes()


@pytest.mark.parametrize(
    ("options", "locks"), [((), True), (("--head=node",), False)], ids=["locks", "nolock"]
)
def test_nodes_that_share_a_folder_get_it_once_and_have_their_own_logs(
    hosts: Hosts, workspace: Path, options: tuple[str, ...], *, locks: bool
) -> None:
    """Two of three hosts see the third one's folder, as over NFS."""
    place = FabricPlace(hosts, *options)
    lock = Path(workspace.name, ".pslaunch/lock")
    if not locks:
        there = shlex.quote(f"{hosts.root_dir}/{lock.parent}")
        hosts.ssh(hosts[0].name, f"mkdir -p {there}; touch {there}/lock")
    for host in (hosts[1], hosts[2]):
        host.share_root(hosts[0])
        if not locks:
            host.separate_locks(lock)
    fill(workspace)
    (workspace / "data/part-1").write_text("1")
    (workspace / "train.py").write_text(
        "import os\nprint(*sorted(os.listdir('data')))\n"
        "print(open(os.path.join(os.environ['PSLAUNCH_LOG_DIR'], 'nodefile')).read().strip()"
        " if 'node-' in os.environ['PSLAUNCH_LOG_DIR'] else open('nodefile').read().strip())\n"
        "print(len(open('nodes').readlines()))\n"
    )
    job = succeeded(place, workspace, *ALONE, "--shard=data/part-{}")
    for rank in range(3):
        assert job.lines(f"trainer/{rank}") == ["a b link part-1", str(rank), "3"]
    assert [e for e in job.events() if e["event"] == "note" and "share one folder; each" in e["text"]]
    assert len({e["log"] for e in job.get_job()["processes"]}) == 1  # as they were declared
    shared = place.workspaces(workspace)[0]
    logs = sorted(str(p.relative_to(shared)) for p in (shared / "log").rglob("train*.log"))
    assert len(logs) == 3 and sum("node-" in log for log in logs) == 2
    assert sent(job)["nodes"] == 1
    job = succeeded(place, workspace, *ALONE, "--shard=data/part-{}")
    assert sent(job)["bytes"] == 0


def test_the_logs_of_nodes_that_share_a_folder_are_fetched_as_their_own(
    hosts: Hosts, workspace: Path, tmp_path: Path
) -> None:
    """And not those of an earlier job, which had more nodes."""
    for host in (hosts[1], hosts[2]):
        host.share_root(hosts[0])
    (workspace / "train.py").write_text(
        "import os\nprint(os.environ['PSLAUNCH_JOB_ID'], os.environ['PSLAUNCH_RANK'])"
    )
    succeeded(FabricPlace(hosts), workspace, *ALONE)
    place, logs = FabricPlace(hosts, "--head=node", on=[hosts[0], hosts[1]]), tmp_path / "logs"
    job = succeeded(place, workspace, "--server_num=0", "--worker_num=2", f"--fetch_logs={logs}")
    found = {str(path.relative_to(logs)): path.read_text() for path in logs.rglob("train*.log")}
    job_id = job.get_job()["job"]
    assert found == {f"{i}-{hosts[i].name}/train.log": f"{job_id} {i}\n" for i in range(2)}
    record = json.loads(hosts.ssh(hosts[0].name, f"cat ~/.local/state/pslaunch/jobs/{job_id}.json").stdout)
    paths = [place.seen_here(0, process["log"]).read_text() for process in record["processes"]]
    assert paths == [f"{job_id} {i}\n" for i in range(2)]
    assert [Path(process["log"]).parent for process in record["processes"]] == [
        Path(node["log_dir"]) for node in record["places"]
    ]


def large(workspace: Path) -> bytes:
    fill(workspace)
    content = os.urandom(12_000_000)
    (workspace / "data/large").write_bytes(content)
    return content


@pytest.mark.parametrize("place", CLUSTERS, indirect=True)
def test_a_large_package_is_sent_once_and_passed_on(place: Place, workspace: Path) -> None:
    content = large(workspace)
    job = succeeded(place, workspace, *ALONE)
    assert all((ws / "data/large").read_bytes() == content for ws in place.workspaces(workspace))
    assert sent(job)["sent"] < 1.3 * len(content) <= sent(job)["bytes"]
    assert_all_told(job)


def assert_all_told(job: Job) -> None:
    """Each node tells how far it is, to the end, and all together is what the job says was sent."""
    far: dict[int, dict[str, Any]] = {}
    for e in job.events():
        if e["event"] == "dispatch" and e["node"] is not None:
            before = far.get(e["node"], {"received": 0})["received"]
            assert before <= e["received"] <= e["bytes"]
            far[e["node"]] = e
    end = sent(job)
    assert len(far) == end["nodes"]
    assert all(e["state"] == "done" and e["received"] == e["bytes"] for e in far.values())
    assert [sum(e[k] for e in far.values()) for k in ("files", "bytes")] == [end["files"], end["bytes"]]


def test_progress_of_a_large_package_adds_up(workspace: Path) -> None:
    """The head fills one of three simulated nodes, which form a chain, and all say how far they are."""
    fill(workspace)
    size = 200_000_000
    with (workspace / "data/large").open("wb") as f:
        f.truncate(size)
    job = succeeded(LocalPlace(4), workspace, "--server_num=0", "--worker_num=4")
    assert_all_told(job)
    assert sent(job)["bytes"] >= 3 * size > 2 * size > sent(job)["sent"]
    sources = {e["node"]: e["source"] for e in job.events() if e["event"] == "dispatch" and e["node"]}
    first, second, third = sorted(sources, key=lambda node: count_links(node, sources))
    assert sources == {first: None, second: first, third: second}


def count_links(node: int, sources: dict[int, int | None]) -> int:
    """Return the number of nodes between the head and a node."""
    source = sources[node]
    return 0 if source is None else 1 + count_links(source, sources)


@contextlib.contextmanager
def chained(hosts: Hosts, workspace: Path) -> Iterator[tuple[Job, list[int]]]:
    """A job that sends a large package down a chain of hosts, slowly, and their order."""
    for host in hosts:
        host.limit_link("60mbit")
    with running(FabricPlace(hosts), workspace, "--server_num=0", f"--worker_num={len(hosts)}") as job:

        def list_chain() -> list[int]:
            told = [e for e in job.events() if e["event"] == "dispatch" and e["state"] == "sending"]
            sources = {e["node"]: e["source"] for e in told if e["received"]}
            if len(sources) < len(hosts):
                return []
            return sorted(sources, key=lambda node: count_links(node, sources))

        yield job, poll_until(list_chain, describe=lambda: "no chain of all hosts", timeout_s=90)


def fill_slowly_sent(workspace: Path) -> bytes:
    fill(workspace)
    content = os.urandom(60_000_000)
    (workspace / "data/large").write_bytes(content)
    return content


def test_host_that_loses_its_source_takes_the_rest_from_the_head(
    make_hosts: Callable[..., Hosts], workspace: Path
) -> None:
    hosts, content = make_hosts(4), fill_slowly_sent(workspace)
    with chained(hosts, workspace) as (job, chain):
        cut, other = hosts[chain[1]], hosts[chain[2]]
        for address in (other.address, f"[{other.address6}]"):
            cut.run("ss", "-K", "dst", address)
        assert job.launcher.wait(timeout_s=150) == 0, job.launcher.output()
    places = FabricPlace(hosts).workspaces(workspace)
    assert all((ws / "data/large").read_bytes() == content for ws in places)
    assert len(content) < sent(job)["sent"] < 2 * len(content)
    sources = {e["node"]: e.get("source") for e in job.events() if e["event"] == "dispatch"}
    assert [sources[node] for node in chain] == [None, chain[0], None, chain[2]]
    assert_all_told(job)


@contextlib.contextmanager
def apart(hosts: Hosts) -> Iterator[None]:
    """Hosts that this machine reaches, and that do not reach each other."""

    def change(what: str) -> None:
        for host in hosts:
            for other in hosts:
                if other is not host:
                    host.run("ip", "route", what, "blackhole", f"{other.address}/32")
                    host.run("ip", "-6", "route", what, "blackhole", f"{other.address6}/128")

    change("add")
    try:
        yield
    finally:
        change("del")


def test_nodes_that_do_not_reach_each_other_get_it_from_the_head(hosts: Hosts, workspace: Path) -> None:
    place = FabricPlace(hosts)
    content = large(workspace)
    with apart(hosts):
        code, job = finished(place, workspace, *ALONE)
    assert sent(job)["sent"] >= 3 * len(content)
    assert_all_told(job)
    assert all((ws / "data/large").read_bytes() == content for ws in place.workspaces(workspace))
    assert code == codes.PREFLIGHT  # which is what the job itself can't do without
