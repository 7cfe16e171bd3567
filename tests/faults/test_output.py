"""Programs that print too much, too long, nonsense or nothing, and readers that don't read."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.clock import own_s
from support.faults import LineProxy, control
from support.jobs import PSLAUNCH, SOON_LOST, Job, Place, parent_of, parse_events, running, succeeded
from support.process import poll_until, read_memory

AGENT_LIMIT_BYTES, LAUNCHER_LIMIT_BYTES = 50 << 20, 110 << 20
BEAT_LIMIT_S = 2.5  # design: a beat a second; the machine of a test is busy

# Each writes `blob` as it is, so that the file can be compared byte for byte.
FLOOD = """
import os, time
block = b"".join(b"%07d " % i + b"x" * 91 + b"\\n" for i in range(10_000))  # 1 MB
began = time.monotonic()
for i in range(150):
    os.write(1, block)
    ahead = began + (i + 1) / 100 - time.monotonic()  # 100 MB a second, as far as we get there
    if ahead > 0:
        time.sleep(ahead)
blob = block * 150
"""
WRITE = """
left = memoryview(blob)
while left:
    left = left[os.write(1, left[:65536]):]
"""
LONG_LINE = f"import os; blob = b'long ' * 20_000_000{WRITE}"
NOISE = f"import os, random; blob = random.Random(1).randbytes(20_000_000){WRITE}"
DONE = """
import hashlib, pathlib, sitecustomize
pathlib.Path("sha256").write_text(hashlib.sha256(blob).hexdigest())
sitecustomize.moment("done")
"""


def told_bytes(job: Job) -> tuple[int, int]:
    """Characters of lines with their ends, and bytes left out of them, as they were told."""
    events = job.events()
    lines = sum(len(e["text"]) + (not e.get("more", False)) for e in events if e["event"] == "line")
    return lines, sum(e["bytes"] for e in events if e["event"] == "gap")


@pytest.mark.parametrize("program", [FLOOD, LONG_LINE, NOISE], ids=["flood", "long line", "noise"])
def test_memory_is_bounded_beats_are_on_time_and_files_are_complete(
    place: Place, workspace: Path, program: str
) -> None:
    with (
        control("trainer/0 done 1") as ctl,
        running(place, workspace, "--server_num=0", env=ctl.env(line=True), text=program + DONE) as job,
    ):
        line = LineProxy.of(ctl)
        held = ctl.held()
        agent_bytes, launcher_bytes = read_memory(parent_of(held.pid)), read_memory(job.launcher.pid)
        held.tell()
        assert job.launcher.wait() == 0
        line.close()
        assert agent_bytes < AGENT_LIMIT_BYTES and launcher_bytes < LAUNCHER_LIMIT_BYTES
        assert max(line.longest_silence_s) < BEAT_LIMIT_S, line.longest_silence_s
        log = job.log_of("trainer/0")
        assert hashlib.sha256(log.read_bytes()).hexdigest() == (workspace / "sha256").read_text()
        if program != NOISE:  # whose control characters are left out of lines, not of files
            shown, left_out = told_bytes(job)
            assert left_out and 0 <= shown + left_out - log.stat().st_size <= 1000  # a gap ends a line


CHATTER = """
import sitecustomize
for i in range(20_000):
    print(i, "x" * 90)
sitecustomize.moment("done")
"""


def test_a_reader_that_pauses_does_not_end_the_job(workspace: Path) -> None:
    (workspace / "train.py").write_text(CHATTER)
    with control("trainer/0 done 1") as ctl:
        argv = [*PSLAUNCH, "local", f"--job_workspace={workspace}", "--server_num=0", *SOON_LOST]
        launcher = subprocess.Popen(
            argv, env=os.environ | ctl.env(line=True), stdout=subprocess.PIPE, start_new_session=True
        )
        assert launcher.stdout
        try:
            line = LineProxy.of(ctl)
            held = ctl.held()
            heard = line.heard[0]
            # As many beats of the head as make the agent believe that it is gone, and more.
            poll_until(lambda: line.heard[0] > heard + 5, describe="the head is silent")
            held.tell()
            text = launcher.stdout.read().decode()
            assert launcher.wait() == 0, text[-2000:]
            line.close()
        finally:
            launcher.kill()
            launcher.wait()
            launcher.stdout.close()
        assert (workspace / "log/train.log").read_text().count("\n") == 20_000


LOUD_AT_TERM = """
import os, signal
if os.environ["TRAINING_ROLE"] == "PSERVER":
    def traceback(*_):
        os.write(1, b"C++ Traceback (most recent call last):\\n" * 100)
        os._exit(1)
    signal.signal(signal.SIGTERM, traceback)
    print("serving", flush=True)
    open("ready", "w").close()
    while True:
        signal.pause()
open("ready").close()
"""


def test_output_of_a_server_after_a_good_end_is_only_in_its_log(place: Place, workspace: Path) -> None:
    os.mkfifo(workspace / "ready")
    job = succeeded(place, workspace, "--server=script", text=LOUD_AT_TERM)
    assert job.lines("pserver/0") == ["serving"]
    assert [e["bytes"] for e in job.events() if e["event"] == "gap"] == [3900]
    assert (workspace / "log/server.log").read_text().count("C++ Traceback") == 100


def test_empty_lines_without_end_do_not_delay_the_end(place: Place, workspace: Path) -> None:
    train = "import os\nos.mkdir('ready-' + os.environ['PSLAUNCH_RANK'])\nos.execvp('yes', ['yes', ''])\n"
    (workspace / "train.py").write_text(train)
    argv = place.command(workspace, ("--server_num=0", "--worker_num=8", "--grace=2"), ())
    launcher = subprocess.Popen(argv, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        poll_until(lambda: len(list(workspace.glob("ready-*"))) == 8, describe="not all trainers run")
        began_s = own_s()
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait() == codes.INT
        assert own_s() - began_s < 30  # the last of their lines would take minutes
    finally:
        launcher.kill()
        launcher.wait()


FLOOD_BESIDE_A_FAILURE = """
import os, pathlib, signal, time
if os.environ["PSLAUNCH_RANK"] != "0":
    for i in range(4):  # 80 MB, so that no error fills a disk
        pathlib.Path(f"{FLOODS}-{os.environ['PSLAUNCH_RANK']}-{i}").touch()
        for _ in range(1_000):
            os.write(1, (b"x" * 60 + b"\\n") * 320)
    signal.pause()
while len(list(pathlib.Path(FLOODS).parent.glob("flood-*-2"))) < NEIGHBOURS:
    time.sleep(0.02)
pathlib.Path(STAMP).write_text(str(time.time()))
os._exit(3)
"""


def test_flood_of_neighbours_does_not_delay_the_end_by_a_failure(workspace: Path) -> None:
    nodes = 2
    stamp, told = workspace / "stamp", workspace / "told"
    names = f"STAMP, FLOODS, NEIGHBOURS = {str(stamp)!r}, {str(workspace / 'flood')!r}, {2 * nodes - 1}"
    (workspace / "train.py").write_text(names + FLOOD_BESIDE_A_FAILURE)
    places = [f"--nodes={nodes}", f"--job_workspace={workspace}", f"--worker_num={2 * nodes}"]
    argv = [*PSLAUNCH, "local", "--json", *places, "--server_num=0", "--grace=1"]
    with told.open("wb") as out:
        launcher = subprocess.run(argv, stdout=out, stderr=subprocess.PIPE, timeout=240, check=False)
    assert launcher.returncode == 3, launcher.stderr[-2000:]
    failed_s = float(stamp.read_text())
    late = [e for e in parse_events(told.read_text()) if e["time"] >= failed_s]
    assert late[-1]["event"] == "end" and late[-1]["failure"]["what"] == "trainer/0"
    # Sockets and readers hold some thousands of lines for each node; more than 100,000 wait behind them.
    lines = sum(e["event"] == "line" for e in late)
    assert lines < 40_000 * nodes and late[-1]["time"] - failed_s < 30, (lines, late[-1])
