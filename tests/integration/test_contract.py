"""The contract of every backend: same environment, same logs, same exit codes, same endings."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from pslaunch.node import codes
from pslaunch.runtime.shared import env
from support.clock import own_s
from support.jobs import POD_PLACES, QUICK, Event, Place, finished, running, succeeded, until_nothing_runs
from support.process import until_gone

SHOW = """
import json, os, sys
print(json.dumps({"env": dict(os.environ), "argv": sys.argv, "cwd": os.getcwd(), "stdin": sys.stdin.read()}))
"""
ALONE = ("--server_num=0",)

# Ignores TERM, leaves a child in a session of its own and a grandchild whose parent has gone.
STUBBORN = r"""
import os, signal, sys
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"hidden\n")
    signal.pause()
    os._exit(0)
os.write(1, b"ready\n")
while True:
    signal.pause()
"""

POLITE = r"""
import os, signal, sys, time
def leave(*_):
    print("leaving", os.environ["PSLAUNCH_ROLE"], flush=True)
    sys.exit(0)
here, there = os.pipe()
os.set_blocking(there, False)
signal.set_wakeup_fd(there)  # pause() would miss what comes just before it
signal.signal(signal.SIGTERM, leave)
os.write(1, b"ready\n")
while True:
    os.read(here, 1)
"""


def write(workspace: Path, text: str, name: str = "train.py") -> None:
    (workspace / name).write_text(text)


# --- environment ---


@pytest.mark.seam
def test_every_process_sees_the_contract(place: Place, workspace: Path) -> None:
    write(workspace, SHOW)
    job = succeeded(place, workspace, *ALONE, "--worker_num=3", "--trainer_count=2")
    for rank in range(3):
        seen = json.loads("".join(job.lines(f"trainer/{rank}")))
        got = seen["env"]
        node = job.node_of(f"trainer/{rank}")
        assert seen["stdin"] == ""
        assert place.seen_here(node, seen["cwd"]) == place.workspaces(workspace)[node]
        assert got["PSLAUNCH_NODE_ID"] == str(node)
        assert got["PSLAUNCH_NODES"].split(",")[node] == got["PSLAUNCH_NODE_IP"] == got["POD_IP"]
        assert (
            got["PADDLE_INIT_TRAINER_ID"]
            == got["PADDLE_TRAINER_ID"]
            == got["OMPI_COMM_WORLD_RANK"]
            == got["RANK"]
            == str(rank)
        )
        assert (
            got["PADDLE_INIT_NUM_GRADIENT_SERVERS"]
            == got["PADDLE_TRAINERS_NUM"]
            == got["OMPI_COMM_WORLD_SIZE"]
            == got["WORLD_SIZE"]
            == "3"
        )
        assert got["TRAINING_ROLE"] == "TRAINER" and got["PADDLE_INIT_TRAINER_COUNT"] == "2"
        assert got["PYTHONHASHSEED"] == "0" and got["PYTHONUNBUFFERED"] == "1"
        assert got.keys() >= env.list_contract_names() - {env.LISTEN_FDS}


@pytest.mark.seam
def test_values_and_arguments_survive_byte_for_byte(place: Place, workspace: Path) -> None:
    write(workspace, SHOW)
    odd = "a b'\"$HOME`id`;\n\t\\é\u2028|&*?"
    job = succeeded(
        place, workspace, *ALONE, f"--env=ODD={odd}", "--env=EMPTY=", program=["train.py", odd, "--x", ""]
    )
    seen = json.loads("".join(job.lines("trainer/0")))
    assert seen["env"]["ODD"] == odd and seen["env"]["EMPTY"] == ""
    assert seen["argv"][1:] == [odd, "--x", ""]


def test_proxies_and_stale_contract_variables_do_not_reach_a_program(place: Place, workspace: Path) -> None:
    write(workspace, SHOW)
    outer = {
        "http_proxy": "http://p",
        "HTTPS_PROXY": "http://p",
        "PADDLE_TRAINER_ID": "77",
        "PSLAUNCH_RANK": "9",
    }
    job = succeeded(place, workspace, *ALONE, "--env=all_proxy=kept", env=outer)
    got = json.loads("".join(job.lines("trainer/0")))["env"]
    assert "http_proxy" not in got and "HTTPS_PROXY" not in got and got["all_proxy"] == "kept"
    assert got["PADDLE_TRAINER_ID"] == got["PSLAUNCH_RANK"] == "0"


# --- logs ---


@pytest.mark.seam
def test_log_files_are_complete(place: Place, workspace: Path) -> None:
    write(workspace, "import os, sys\nos.write(1, bytes(range(256)) * 20000); sys.stderr.write('end')")
    job = succeeded(place, workspace, *ALONE, "--worker_num=4")
    for rank in range(4):
        assert job.log_of(f"trainer/{rank}").read_bytes() == bytes(range(256)) * 20000 + b"end"


@pytest.mark.seam
@pytest.mark.standing
def test_workspaces_have_the_files_of_their_nodes(place: Place, workspace: Path) -> None:
    write(workspace, "")
    succeeded(place, workspace, *ALONE, "--worker_num=4")
    for i, node in enumerate(place.workspaces(workspace)):
        assert (node / "log/train.log").exists() and (node / "output").is_dir()
        assert (node / "nodefile").read_text() == f"{i}\n"
        assert len((node / "nodes").read_text().split()) == len(place.workspaces(workspace))


@pytest.mark.standing
def test_git_ignores_our_files_in_a_workspace(place: Place, workspace: Path) -> None:
    write(workspace, "")
    succeeded(place, workspace, *ALONE, "--worker_num=3")
    for folder in {workspace, *place.workspaces(workspace)}:
        assert (folder / ".pslaunch/.gitignore").read_text() == "*\n"


@pytest.mark.seam
def test_lines_of_two_processes_are_never_mixed(place: Place, workspace: Path) -> None:
    write(workspace, "import os\nfor i in range(3000): print(os.environ['PSLAUNCH_RANK'] * 50)")
    job = succeeded(place, workspace, *ALONE, "--worker_num=3")
    for rank in range(3):
        assert job.lines(f"trainer/{rank}") == [str(rank) * 50] * 3000


# --- exit codes ---


@pytest.mark.seam
@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(3)", 3, "ended with 3"),
        ("raise RuntimeError('boom')", 1, "ended with 1"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139, "SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, "SIGKILL"),
    ],
)
def test_the_first_failed_process_gives_the_code(
    place: Place, workspace: Path, program: str, code: int, words: str
) -> None:
    waiting = "import os, signal\nif os.environ['PSLAUNCH_RANK'] == '0': signal.pause()\n" if code else ""
    write(workspace, f"{waiting}print('before')\n{program}")
    got, job = finished(place, workspace, *ALONE, *QUICK, "--worker_num=2")
    assert got == code == job.end()["code"], job.launcher.output()
    if code:
        failure = job.end()["failure"]
        assert failure["what"] == "trainer/1" and words in failure["text"]
        log = place.seen_here(job.node_of("trainer/1"), failure["log"])
        assert log == job.log_of("trainer/1") and "before" in failure["tail"]


def test_a_program_that_is_not_executable_is_named(place: Place, workspace: Path) -> None:
    (workspace / "run").write_text("#!/no/such/interpreter\n")
    (workspace / "run").chmod(0o755)
    code, job = finished(place, workspace, *ALONE, program=["run"])
    assert code == 127
    assert "run" in job.end()["failure"]["text"] and "No such file" in job.end()["failure"]["text"]


# --- endings ---


@pytest.mark.seam
@pytest.mark.held
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_the_job_in_order(
    place: Place, workspace: Path, number: signal.Signals
) -> None:
    write(workspace, POLITE)
    with running(place, workspace, "--server=script", "--worker_num=2") as job:
        job.until_printed("ready", ["pserver/0", "trainer/0", "trainer/1"])
        job.launcher.proc.send_signal(number)
        assert job.launcher.wait() == 128 + number
        said = [e["text"] for e in job.events() if e["event"] == "line" and e["text"].startswith("leaving")]
        assert said == ["leaving trainer", "leaving trainer", "leaving pserver"]  # pservers save last


def test_program_that_ignores_term_is_killed_after_the_grace(place: Place, workspace: Path) -> None:
    write(workspace, STUBBORN)
    with running(place, workspace, *ALONE, *QUICK, "--worker_num=2") as job:
        job.until_printed("ready", ["trainer/0", "trainer/1"])
        job.until_printed("hidden", ["trainer/0", "trainer/1"])
        start_s, trainer = time.monotonic(), job.pid("trainer/0")
        job.launcher.proc.send_signal(signal.SIGINT)
        until_gone(trainer, within_s=1 + 2)
        assert time.monotonic() - start_s > 0.9
        assert job.launcher.wait() == codes.INT
    until_nothing_runs(1.0)


@pytest.mark.seam
@pytest.mark.held
def test_a_second_interrupt_kills_at_once(place: Place, workspace: Path) -> None:
    write(workspace, STUBBORN)
    with running(place, workspace, *ALONE, "--grace=60") as job:
        job.until_printed("ready", ["trainer/0"])
        job.launcher.proc.send_signal(signal.SIGINT)
        job.until(lambda events: any(e["event"] == "ending" for e in events), "ending")
        job.launcher.proc.send_signal(signal.SIGINT)
        assert job.launcher.wait(timeout_s=10) == codes.INT
        until_nothing_runs(1.0)


@pytest.mark.seam
@pytest.mark.held
def test_killing_the_launcher_leaves_nothing(place: Place, workspace: Path) -> None:
    write(workspace, STUBBORN)
    with running(place, workspace, *QUICK, "--server=script", "--worker_num=2") as job:
        for key in ("pserver/0", "trainer/0", "trainer/1"):
            job.until_printed("ready", [key])
        os.kill(job.launcher.pid, signal.SIGKILL)
        until_nothing_runs(place.lease_s + 1 + 2)


@pytest.mark.seam
@pytest.mark.held
def test_a_stopped_launcher_is_silent_and_the_job_ends(place: Place, workspace: Path) -> None:
    write(workspace, STUBBORN)
    with running(place, workspace, *ALONE, *QUICK, f"--lost_after={place.silent_s:g}") as job:
        job.until_printed("ready", ["trainer/0"])
        keeper, _agent = job.guards("trainer/0")
        os.kill(job.launcher.pid, signal.SIGSTOP)
        until_gone(keeper, within_s=place.silent_s + place.lease_s + 1 + 2)
        os.kill(job.launcher.pid, signal.SIGCONT)
        assert job.launcher.wait() == (codes.HUP if place.lease_s else codes.NODE_LOST)
    until_nothing_runs(1.0)


@pytest.mark.seam
@pytest.mark.parametrize("who", ["keeper", "agent"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_losing_a_guard_ends_the_job_and_names_it(
    place: Place, workspace: Path, who: str, how: signal.Signals
) -> None:
    write(workspace, STUBBORN)
    silence = f"--lost_after={place.silent_s:g}"
    with running(place, workspace, *ALONE, *QUICK, silence, "--worker_num=2") as job:
        job.until_printed("ready", ["trainer/0", "trainer/1"])
        pid = job.guards("trainer/1")[0 if who == "keeper" else 1]
        silent_s = place.silent_s if how == signal.SIGSTOP else 0
        start_s = own_s()
        os.kill(pid, how)
        assert job.launcher.wait() == codes.NODE_LOST
        until_nothing_runs(max(0.5, silent_s + 1 + 2 - (own_s() - start_s)))
        reason = job.end()["reason"]
        names = [who, "agent"] if place.name in POD_PLACES else [who]  # a pod is gone with its keeper
        assert any(name in reason for name in names), reason
        assert any(w in reason for w in ("SIGKILL", "killed", "silent", "no message", "closed"))


@pytest.mark.parametrize("who", ["pserver/0", "trainer/1"])
def test_killing_a_program_ends_the_job_and_names_it(place: Place, workspace: Path, who: str) -> None:
    write(workspace, STUBBORN)
    with running(place, workspace, *QUICK, "--server=script", "--worker_num=2") as job:
        for key in ("pserver/0", "trainer/0", "trainer/1"):
            job.until_printed("ready", [key])
        os.kill(job.pid(who), signal.SIGKILL)
        assert job.launcher.wait() == 137
        assert job.end()["failure"]["what"] == who and "SIGKILL" in job.end()["failure"]["text"]
    until_nothing_runs(1.0)


@pytest.mark.seam
@pytest.mark.held
def test_other_processes_of_the_user_are_untouched(place: Place, workspace: Path) -> None:
    write(workspace, STUBBORN)
    other = workspace.parent / "other"
    other.mkdir()
    write(other, STUBBORN)
    with running(place, other, *ALONE, *QUICK) as bystander:
        bystander.until_printed("ready", ["trainer/0"])
        with running(place, workspace, *ALONE, *QUICK) as job:
            job.until_printed("ready", ["trainer/0"])
            keeper, _agent = job.guards("trainer/0")
            os.kill(job.launcher.pid, signal.SIGKILL)
            until_gone(keeper, within_s=place.lease_s + 1 + 2)
        os.kill(bystander.pid("trainer/0"), 0)
        bystander.launcher.proc.send_signal(signal.SIGINT)
        assert bystander.launcher.wait() == codes.INT


# --- jobs beside each other ---


@pytest.mark.seam
@pytest.mark.standing
def test_two_jobs_with_one_log_folder_are_refused_with_the_first_ones_id(
    place: Place, workspace: Path
) -> None:
    write(workspace, POLITE)
    with running(place, workspace, *ALONE, *QUICK) as first:
        first.until_printed("ready", ["trainer/0"])
        code, second = finished(place, workspace, *ALONE)
        assert code == codes.USAGE
        assert first.get_job()["job"] in second.end()["reason"]
        first.launcher.proc.send_signal(signal.SIGINT)
        first.launcher.wait()
    write(workspace, "pass")
    succeeded(place, workspace, *ALONE)


@pytest.mark.standing
def test_ports_of_a_script_are_its_own_before_it_listens(place: Place, workspace: Path) -> None:
    """A program binds its port long after it was given it: until then no other job may be given it too."""
    serving = "import os, signal\nif os.environ['PSLAUNCH_ROLE'] == 'pserver': signal.pause()\n"
    write(workspace, f"{serving}{SHOW}\nsignal.pause()")
    other = workspace.parent / "other"
    other.mkdir()
    write(other, serving + SHOW)
    with running(place, workspace, *QUICK, "--server=script") as first:
        taken = endpoints(first.until(shown, "the first job's environment"))
        code, second = finished(place, other, *QUICK, "--server=script")
        assert code == 0 and not taken & endpoints(shown(second.events()))
        port = max(taken)
        code, third = finished(place, other, *QUICK, "--server=script", f"--port={port}")
        assert code == codes.SERVICE and "another job on this machine" in third.end()["reason"]


def shown(events: list[Event]) -> dict[str, str]:
    """The environment that a trainer of SHOW has printed, once it has."""
    for event in events:
        if event["event"] == "line" and event["process"] == "trainer/0":
            return dict(json.loads(event["text"])["env"])
    return {}


def endpoints(environ: dict[str, str]) -> set[int]:
    """Every port that a job in script mode was given."""
    names = (
        "PADDLE_PSERVERS_IP_PORT_LIST",
        "PADDLE_TRAINER_ENDPOINTS",
        "PADDLE_GLOO_HTTP_ENDPOINT",
        "MASTER_PORT",
    )
    return {int(end.rpartition(":")[2]) for name in names for end in environ[name].split(",")}
