"""Training that is killed and restarted, or resumed, ends with the bits of an undisturbed run: who, and when.

A trainer kills, so that the step is exact; the moment within the next step is as it happens. Moments of a
snapshot are those of a pserver's calls of the C library (kill_at.c). SOAK_KILLS is the length of the soak.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.jobs import QUICK, Job, LocalPlace, Place, finished, hash_model, until_nothing_runs
from support.word2vec import make_workspace

STEPS = 24  # of the example with little text: 8 passes of 3 batches
WHO = ("pserver/1", "trainer/0", "trainer/1", "agent", "keeper")
WHEN = {"first": 1, "at a cut": 10, "between": 13, "last": STEPS}
SOAK_KILLS = int(os.environ.get("SOAK_KILLS", "4"))
KILLS = """
import os, signal, threading
import pslaunch.runtime as paddle
import train

def read_parent(pid):
    with open(f"/proc/{pid}/stat") as f:
        return int(f.read().rpartition(")")[2].split()[1])

def has(pid, words):
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return {word.encode() for word in words} <= {*f.read().split(b"\\0")}
    except OSError:
        return False

def find(who):
    role, _, rank = who.partition("/")
    agent = os.getppid()
    if who == "launcher":
        return [read_parent(read_parent(agent))]
    guards = {"agent": [agent], "keeper": [read_parent(agent)], "node": [read_parent(agent), agent]}
    words = [f"PSLAUNCH_{name}={os.environ['PSLAUNCH_' + name]}" for name in ("JOB_ID", "NODE_ID")]
    words += [f"PSLAUNCH_ROLE={role}", f"PSLAUNCH_RANK={rank}"] if rank else []
    all = [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()]
    found = [pid for pid in [*all, os.getpid()] if (rank or who == "node") and has(pid, words)]
    return guards.get(who, []) + found

def kill(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)

whole = paddle.trainer.SGD.train
of_epochs = dict(enumerate(os.environ["KILLS"].split(";")))
who, at, delay_s = of_epochs.get(int(os.environ["PSLAUNCH_EPOCH"]), "").split() or ("", 0, 0)
by = who.partition("/")[2] or "1"

def train_and_kill(self, *args, event_handler, **named):
    def handle(event):
        event_handler(event)
        ends = isinstance(event, paddle.event.EndIteration)
        if ends and event.pass_id * 3 + event.batch_id + 1 == int(at):
            if float(delay_s):
                later = threading.Timer(float(delay_s), kill, [find(who)])
                later.daemon = True
                later.start()
            else:
                kill(find(who))
    return whole(self, *args, event_handler=handle, **named)

if who and os.environ["PSLAUNCH_RANK"] == by:
    paddle.trainer.SGD.train = train_and_kill
train.main()
"""

NUMBERS = ("--server_num=2", "--worker_num=2", "--ports_num_for_sparse=1")
LAUNCHER_KILLED = codes.SIGNAL_BASE + signal.SIGKILL


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The example's workspace, and the digest of its model."""
    folder = tmp_path_factory.mktemp("example") / "ws"
    make_workspace(folder)
    (folder / "kills.py").write_text(KILLS)
    train(LocalPlace(1), folder, "")
    return folder, hash_model(folder)


def train(place: Place, workspace: Path, kills: str, *options: str, code: int | None = codes.OK) -> Job:
    """Run the example with a kill in each epoch, `WHO AT DELAY;...`; code None: perhaps of its launcher."""
    options += ("--restart_after=0",) * any("max_restarts" in word for word in options)
    words = (*NUMBERS, *QUICK, f"--env=KILLS={kills}", *options)
    got, job = finished(place, workspace, *words, program=["kills.py"])
    allowed = [codes.OK, LAUNCHER_KILLED] if code is None else [code]
    assert got in allowed, f"{kills}\n{job.launcher.output()}"
    return job


@pytest.fixture
def workspace(example: tuple[Path, str], tmp_path: Path) -> Path:
    copy_workspace(example[0], tmp_path / "ws")
    return tmp_path / "ws"


def copy_workspace(example: Path, folder: Path) -> None:
    shutil.copytree(example, folder, ignore=shutil.ignore_patterns("output", "log", ".pslaunch"))


def check_restart(
    example: tuple[Path, str], place: Place, workspace: Path, who: str, at: int, *options: str
) -> None:
    job = train(place, workspace, f"{who} {at} 0", "--snapshot_steps=5", "--max_restarts=1", *options)
    (restart,) = job.restarts()
    assert hash_model(place.workspaces(workspace)[0]) == example[1]
    assert (restart["step"] or 0) <= at


@pytest.mark.parametrize("at", WHEN.values(), ids=WHEN.keys())
@pytest.mark.parametrize("who", WHO)
def test_a_restart(example: tuple[Path, str], workspace: Path, who: str, at: int) -> None:
    check_restart(example, LocalPlace(1), workspace, who, at)


def test_a_restart_of_a_whole_node(example: tuple[Path, str], workspace: Path) -> None:
    check_restart(example, LocalPlace(1), workspace, "node", WHEN["between"])


# About a fifth of what is restarted there, drawn by the run's seed.
ELSEWHERE = {"fabric": (WHO, 4), "mpi4": (WHO, 3), "slurm": (WHO, 3), "k8s": (WHO[:3], 2)}


@pytest.mark.seam
@pytest.mark.parametrize(
    ("place", "number"), [(name, n) for name, (_, most) in ELSEWHERE.items() for n in range(most)],
    indirect=["place"],
)  # fmt: skip
def test_a_restart_elsewhere(
    example: tuple[Path, str], place: Place, workspace: Path, number: int, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["place"]
    for host in request.getfixturevalue("hosts") if name in ("fabric", "mpi4") else ():
        host.show_installation()
    python = (
        []
        if name == "k8s"
        else [f"--python={sys.executable}"] + ["--env=PYTHONPATH"] * ("PYTHONPATH" in os.environ)
    )
    cases = [(who, at) for who in ELSEWHERE[name][0] for at in WHEN.values()]
    random.Random(f"{request.config.getoption('--seed')} {name}").shuffle(cases)
    check_restart(example, place, workspace, *cases[number], *python)


def test_another_job_goes_on_after_the_launcher_was_killed(
    example: tuple[Path, str], workspace: Path
) -> None:
    train(LocalPlace(1), workspace, "launcher 19 0", "--snapshot_steps=5", code=LAUNCHER_KILLED)
    until_nothing_runs(10.0)
    job = train(LocalPlace(1), workspace, "", "--resume")
    assert any(line.startswith("the training goes on from step") for line in job.lines("trainer/0"))
    assert hash_model(workspace) == example[1]


# Of a call in a snapshot: file, the how-manieth, epoch, pserver.
DURING = {
    "walk": "write pipe: 3 0 pserver/1",
    "part's fsync": "fsync .part 3 0 pserver/0",
    "part's rename": "rename shard- 2 0 pserver/1",
    "folder's fsync": "fsync /cut-0000-00000000000 4 0 pserver/0",
    "manifest's fsync": "fsync .manifest.json 2 0 pserver/0",
    "manifest's rename": "rename manifest.json 2 0 pserver/0",
    "removal": "unlinkat shard- 1 0 pserver/0",
    "load": "pread /cut- 4 1 pserver/1",
}
LONG = ("--num_passes=72", "--snapshot_steps=1", "--max_restarts=2")


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("preloaded") / "kill_at.so"
    source = Path(__file__).with_name("kill_at.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.fixture(scope="module")
def long_digest(example: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("long") / "ws"
    copy_workspace(example[0], folder)
    train(LocalPlace(1), folder, "", LONG[0])
    return hash_model(folder)


@pytest.mark.parametrize("during", DURING)
def test_a_restart_after_a_kill_within_a_snapshot(
    long_digest: str, preloaded: Path, workspace: Path, during: str
) -> None:
    *_, epoch, who = DURING[during].split()
    at = (f"--env=LD_PRELOAD={preloaded}", f"--env=KILL_AT={DURING[during]}")
    keep = ["--snapshot_keep=1"] * (during == "removal")  # on a busy machine there may be two cuts in all
    job = train(LocalPlace(1), workspace, "trainer/1 13 0" if epoch == "1" else "", *LONG, *at, *keep)
    failures = [e["failure"] for e in job.restarts("ending")]
    assert [(one["what"], one["signal"]) for one in failures[int(epoch) :]] == [(who, "SIGKILL")]
    assert hash_model(workspace) == long_digest


def draw_kills(rng: random.Random) -> str:
    """Return kills in epochs of a job, of different processes; the last one may be of its launcher."""
    programs, guards = ["pserver/0", "pserver/1", "trainer/0", "trainer/1"], ["agent", "keeper", "node"]
    who = rng.sample(programs, 2) + rng.sample(guards, 2)  # a node lost three times at one step ends the job
    rng.shuffle(who)
    if rng.random() < 0.3:
        who[-1] = "launcher"
    at = sorted(rng.choices(range(1, STEPS + 1), k=len(who)))
    return ";".join(f"{one} {step} {rng.uniform(0.0, 0.02):.4f}" for one, step in zip(who, at, strict=True))


def test_soak_of_random_kills(example: tuple[Path, str], tmp_path: Path, rng: random.Random) -> None:
    kills, workspace = 0, tmp_path / "ws"
    while kills < SOAK_KILLS:
        copy_workspace(example[0], workspace)
        drawn, options = draw_kills(rng), (f"--snapshot_steps={rng.choice([1, 2, 5])}", "--max_restarts=4")
        job = train(LocalPlace(1), workspace, drawn, *options, code=None)
        kills += len(job.restarts())
        if job.launcher.wait():
            until_nothing_runs(10.0)
            kills += 1
            resume = ["--resume"] * any(workspace.glob(".pslaunch/snapshots/*/manifest.json"))
            train(LocalPlace(1), workspace, "", *resume)
        assert hash_model(workspace) == example[1], f"{drawn} {options}"
        print(kills, drawn, *options)
        shutil.rmtree(workspace)
