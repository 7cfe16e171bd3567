"""Node code under the oldest Python that it promises: the 3.9 of a Debian bullseye, in a chroot of its own.

The head is this Python's. A keeper, its agent and the programs see of this machine only a folder, /proc and
the network, as on a host by SSH: no package of ours is installed there.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node import codes
from pslaunch.node.head.head import Head
from pslaunch.node.job import Count, Limits, Node, Plan, Role, place
from pslaunch.node.loop import Loop
from pslaunch.ship.zipapp import make_zipapp
from support.jobs import until_nothing_runs
from support.node_app import greet
from support.others import NO_BULLSEYE, bullseye_root

pytestmark = [pytest.mark.slow, pytest.mark.may_skip(NO_BULLSEYE)]
LIMITS = Limits(1.0, 5.0, 60.0, None, 60.0)
PYTHON = "/usr/bin/python3"
THERE = "/tmp/node"  # the test's folder, as the chroot sees it
# The mounts are seen by this shell and what it becomes, and are gone with it.
ENTER = f"""
set -e
root=$1 folder=$2
shift 2
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs none "$root/tmp"
mkdir "$root{THERE}"
mount --bind "$folder" "$root{THERE}"
exec chroot "$root" {PYTHON} -I "$@"
"""

TRAIN = """
import json, os, signal, socket, sys, time
print(json.dumps({"version": sys.version_info[:2], "env": dict(os.environ)}), flush=True)
if os.environ["PSLAUNCH_ROLE"] == "pserver":
    open("said", "w").close()
    signal.pause()
while not os.path.exists("said"):
    time.sleep(0.01)
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
    s.sendto(b"pass=0 batch=7 cost=0.5", os.environ["PSLAUNCH_PROGRESS"])
"""
FAIL = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
open("deaf-{PSLAUNCH_ROLE}-{PSLAUNCH_RANK}".format(**os.environ), "w").close()
while sum(name.startswith("deaf-") for name in os.listdir(".")) < 3:
    time.sleep(0.01)
if os.environ["PSLAUNCH_ROLE"] == "trainer" and os.environ["PSLAUNCH_RANK"] == "1":
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(1, b"hidden\\n")
            signal.pause()
        os._exit(0)
    os.wait()
    sys.exit(3)
signal.pause()
"""


@dataclass
class Running:
    """A job that was begun; its head works while its loop runs."""

    loop: Loop
    head: Head
    keeper: subprocess.Popen[bytes]
    line: tuple[int, int]


@dataclass
class Bullseye:
    """A node whose workspace is `folder/ws` here."""

    root: Path
    folder: Path

    def command(self, *arguments: str) -> list[str]:
        """Runs its Python there, isolated from user's packages, with a mount namespace of its own."""
        rights = [] if os.geteuid() == 0 else ["--map-root-user"]
        enter = ["unshare", "--mount", *rights, "sh", "-c", ENTER, "sh"]
        return [*enter, str(self.root), str(self.folder), *arguments]

    def keeper(self) -> list[str]:
        return self.command(f"{THERE}/app.pyz", "keeper", str(LIMITS.lost_after_s), str(LIMITS.grace_s))

    @contextlib.contextmanager
    def job(self, program: str) -> Iterator[Running]:
        """A job of one pserver and two trainers, all this program; its keeper is waited for at the end."""
        (self.folder / "ws/train.py").write_text(program)
        node = plan().nodes[0]
        with tempfile.TemporaryFile() as said, contextlib.closing(Loop()) as loop:
            keeper = subprocess.Popen(
                self.keeper(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said
            )
            with keeper:
                assert keeper.stdin and keeper.stdout
                head = Head(loop, place(plan(), [node]), "5e" * 32, time.time)
                line = os.dup(keeper.stdout.fileno()), os.dup(keeper.stdin.fileno())
                keeper.stdin.close()
                keeper.stdout.close()
                head.attach(node, *line, lambda: os.pread(said.fileno(), 2000, 0).decode())
                loop.call_after(60, lambda: head.stop(14, "the test takes too long"))
                yield Running(loop, head, keeper, line)

    def run(self, program: str) -> tuple[int, list[dict[str, Any]]]:
        """A job from its start to its end: exit code and events."""
        with self.job(program) as job:
            job.loop.run(lambda: job.head.done)
            assert job.keeper.wait(10) == 0
        return job.head.code, job.head.list_events(0)[0]


def plan() -> Plan:
    argv = (PYTHON, "train.py")
    ws = f"{THERE}/ws"
    node = Node(0, "bullseye", "127.0.0.1", ws, f"{ws}/log", f"{ws}/output", f"{ws}/.pslaunch")
    return Plan(
        job_id="job-on-3.9",
        name="job",
        epoch=0,
        backend="local",
        server="script",
        why="given",
        roles=(Role("pserver", Count("total", 1), argv), Role("trainer", Count("total", 2), argv)),
        port=None,
        ports_num=1,
        ports_num_for_sparse=0,
        trainer_count=1,
        use_gpu=False,
        added_env={"ODD": "a b'\"$HOME`id`;\n\té"},
        flags={},
        limits=LIMITS,
        nodes=(node,),
    )


@pytest.fixture
def bullseye(tmp_path: Path) -> Iterator[Bullseye]:
    node = Bullseye(bullseye_root(), tmp_path / "node")
    (node.folder / "ws").mkdir(parents=True)
    (node.folder / "app.pyz").write_bytes(make_zipapp())
    yield node
    until_nothing_runs(3.0)


def test_a_keeper_of_the_zipapp_greets(bullseye: Bullseye) -> None:
    asked = subprocess.run(bullseye.command("--version"), capture_output=True, text=True, check=True)
    assert asked.stdout.startswith("Python 3.9.")
    greeting, said = greet(bullseye.keeper())
    assert b'"type":"hello"' in greeting, said
    assert b"the head is gone" in said


def test_whole_job_runs_on_python_39(bullseye: Bullseye) -> None:
    code, events = bullseye.run(TRAIN)
    assert code == 0, events
    for key in ("pserver/0", "trainer/0", "trainer/1"):
        (line,) = [e["text"] for e in events if e["event"] == "line" and e["process"] == key]
        seen = json.loads(line)
        assert seen["version"] == [3, 9]
        assert f"{seen['env']['PSLAUNCH_ROLE']}/{seen['env']['PSLAUNCH_RANK']}" == key
        assert seen["env"]["ODD"] == plan().added_env["ODD"]
    reports = {e["process"]: (e["batch"], e["cost"]) for e in events if e["event"] == "progress"}
    assert reports == {"trainer/0": (7, 0.5), "trainer/1": (7, 0.5)}
    assert (bullseye.folder / "ws/log/train.1.log").read_text().startswith('{"version": [3, 9]')


def test_a_failure_ends_all_of_it(bullseye: Bullseye) -> None:
    """Programs that ignore TERM end, and so does a grandchild that has left its session and its parent."""
    code, events = bullseye.run(FAIL)
    failure = events[-1]["failure"]
    assert (code, failure["what"], failure["text"]) == (3, "trainer/1", "ended with 3")
    assert [e["signal"] for e in events if e["event"] == "process" and e.get("signal")] == ["SIGKILL"] * 2


def test_without_its_head_the_agent_ends_the_programs(bullseye: Bullseye) -> None:
    with bullseye.job("import os, signal\nos.write(1, b'ready\\n')\nsignal.pause()") as job:
        job.loop.run(lambda: sum(e["event"] == "line" for e in job.head.list_events(0)[0]) == 3)
        for fd in job.line:
            os.close(fd)
        assert job.keeper.wait(LIMITS.grace_s + 5) == codes.PEER
