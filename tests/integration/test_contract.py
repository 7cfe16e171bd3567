"""The contract of every backend: same environment, same logs, same exit codes, same endings."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from pslaunch.node import binding, codes
from pslaunch.runtime.shared import env
from support.clock import own_s
from support.jobs import POD_PLACES, QUICK, Event, Place, finished, running, succeeded, until_nothing_runs
from support.process import until_gone
from support.trainings import STUBBORN

SHOW = """
import json, os, sys
print(json.dumps({"env": dict(os.environ), "argv": sys.argv, "cwd": os.getcwd(), "stdin": sys.stdin.read()}))
"""
ALONE = ("--server_num=0",)
RANKS = ("PADDLE_INIT_TRAINER_ID", "PADDLE_TRAINER_ID", "OMPI_COMM_WORLD_RANK", "RANK", "PSLAUNCH_RANK")
SIZES = ("PADDLE_INIT_NUM_GRADIENT_SERVERS", "PADDLE_TRAINERS_NUM", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE")

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


# --- environment ---


@pytest.mark.seam
def test_every_process_sees_the_contract(place: Place, workspace: Path) -> None:
    """Beside values of the user byte for byte, without proxies and stale variables, in unmixed lines."""
    text = "import os\nfor i in range(3000): print(os.environ['PSLAUNCH_RANK'] * 50)\n" + SHOW
    odd = "a b'\"$HOME`id`;\n\t\\é\u2028|&*?"
    own = ("--worker_num=3", "--trainer_count=2", f"--env=ODD={odd}", "--env=EMPTY=", "--env=all_proxy=kept")
    outer = {"http_proxy": "http://p", "HTTPS_PROXY": "http://p", "NO_PROXY": "*"}
    outer |= {"PADDLE_TRAINER_ID": "77", "PSLAUNCH_RANK": "9"}
    job = succeeded(
        place, workspace, *ALONE, *own, program=["train.py", odd, "--x", ""], env=outer, text=text
    )
    for rank in range(3):
        lines = job.lines(f"trainer/{rank}")
        assert lines[:3000] == [str(rank) * 50] * 3000
        seen = json.loads("".join(lines[3000:]))
        got = seen["env"]
        node = job.node_of(f"trainer/{rank}")
        assert seen["stdin"] == "" and seen["argv"][1:] == [odd, "--x", ""]
        assert place.seen_here(node, seen["cwd"]) == place.workspaces(workspace)[node]
        assert got["PSLAUNCH_NODE_ID"] == str(node)
        assert got["PSLAUNCH_NODES"].split(",")[node] == got["PSLAUNCH_NODE_IP"] == got["POD_IP"]
        assert {got[name] for name in RANKS} == {str(rank)} and {got[name] for name in SIZES} == {"3"}
        assert got["TRAINING_ROLE"] == "TRAINER" and got["PADDLE_INIT_TRAINER_COUNT"] == "2"
        assert got["PYTHONHASHSEED"] == "0" and got["PYTHONUNBUFFERED"] == "1"
        assert (got["ODD"], got["EMPTY"], got["all_proxy"]) == (odd, "", "kept")
        assert "http_proxy" not in got and "HTTPS_PROXY" not in got
        assert got.keys() >= binding.list_contract_names() - {env.LISTEN_FDS, env.TF_CONFIG}


TENSORFLOW = """
import json, os, socket
try:
    import tensorflow
except ImportError:
    pass
config = json.loads(os.environ["TF_CONFIG"])
own = config["cluster"]["worker"][config["task"]["index"]]
with socket.create_server(("", int(own.rpartition(":")[2]))):  # as tensorflow does
    print(json.dumps([config, os.environ["PSLAUNCH_NODE_IP"]]))
"""


@pytest.mark.parametrize("place", ["local_cluster"], indirect=True)
def test_trainers_of_tensorflow_can_listen_where_others_look_for_them(place: Place, workspace: Path) -> None:
    job = succeeded(place, workspace, "--worker_num=4", text=TENSORFLOW)
    found = [json.loads(job.lines(f"trainer/{rank}")[0]) for rank in range(4)]
    workers = found[0][0]["cluster"]["worker"]
    assert len({worker.rpartition(":")[2] for worker in workers}) == 4
    for rank, (config, addr) in enumerate(found):
        assert config == {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        assert workers[rank].rpartition(":")[0] == addr


# --- logs ---


@pytest.mark.seam
def test_logs_are_complete_and_nodes_have_their_files(place: Place, workspace: Path) -> None:
    text = "import os, sys\nos.write(1, bytes(range(256)) * 20000); sys.stderr.write('end')"
    job = succeeded(place, workspace, *ALONE, "--worker_num=4", text=text)
    for rank in range(4):
        assert job.log_of(f"trainer/{rank}").read_bytes() == bytes(range(256)) * 20000 + b"end"
    if place.name in POD_PLACES:  # whose workspaces go with them
        return
    nodes = place.workspaces(workspace)
    for i, node in enumerate(nodes):
        assert (node / "log/train.log").exists() and (node / "output").is_dir()
        assert (node / "nodefile").read_text() == f"{i}\n"
        assert len((node / "nodes").read_text().split()) == len(nodes)
    for folder in {workspace, *nodes}:
        assert (folder / ".pslaunch/.gitignore").read_text() == "*\n"


# --- exit codes ---


def check_failure(place: Place, workspace: Path, program: str, code: int, words: str) -> None:
    """Check that the second trainer gives the job's code, and is named with its log."""
    waiting = "import os, signal\nif os.environ['PSLAUNCH_RANK'] == '0': signal.pause()\n"
    text = f"{waiting}print('before')\n{program}"
    got, job = finished(place, workspace, *ALONE, *QUICK, "--worker_num=2", text=text)
    assert got == code == job.end()["code"], job.launcher.output()
    failure = job.end()["failure"]
    assert failure["what"] == "trainer/1" and words in failure["text"]
    log = place.seen_here(job.node_of("trainer/1"), failure["log"])
    assert log == job.log_of("trainer/1") and "before" in failure["tail"]


@pytest.mark.seam
def test_the_first_failed_process_gives_the_code(place: Place, workspace: Path) -> None:
    check_failure(place, workspace, "os.kill(os.getpid(), signal.SIGKILL)", 137, "SIGKILL")


@pytest.mark.parametrize("place", ["local"], indirect=True)
@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("raise SystemExit(3)", 3, "ended with 3"),
        ("raise RuntimeError('boom')", 1, "ended with 1"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "SIGSEGV"),
    ],
)
def test_every_end_of_a_program_has_its_code(
    place: Place, workspace: Path, program: str, code: int, words: str
) -> None:
    check_failure(place, workspace, program, code, words)


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_a_program_that_is_not_executable_is_named(place: Place, workspace: Path) -> None:
    (workspace / "run").write_text("#!/no/such/interpreter\n")
    (workspace / "run").chmod(0o755)
    code, job = finished(place, workspace, *ALONE, program=["run"])
    assert code == 127
    assert "run" in job.end()["failure"]["text"] and "No such file" in job.end()["failure"]["text"]


# --- endings ---


@pytest.mark.seam
@pytest.mark.held
def test_a_signal_to_the_launcher_ends_the_job_in_order(place: Place, workspace: Path) -> None:
    with running(place, workspace, "--server=script", "--worker_num=2", text=POLITE) as job:
        job.until_printed("ready", ["pserver/0", "trainer/0", "trainer/1"])
        job.launcher.proc.send_signal(signal.SIGTERM)
        assert job.launcher.wait() == codes.TERM
        said = [e["text"] for e in job.events() if e["event"] == "line" and e["text"].startswith("leaving")]
        assert said == ["leaving trainer", "leaving trainer", "leaving pserver"]  # pservers save last


def test_a_job_ends_in_order_at_its_time_limit(place: Place, workspace: Path) -> None:
    code, job = finished(place, workspace, *ALONE, "--timeout=4", text=POLITE)
    assert code == codes.TIMEOUT == job.end()["code"], job.launcher.output()
    assert job.end()["reason"] == "the job took longer than --timeout=4 s"
    assert job.lines("trainer/0") == ["ready", "leaving trainer"]


@pytest.mark.seam
@pytest.mark.held
def test_a_second_interrupt_kills_at_once(place: Place, workspace: Path) -> None:
    with running(place, workspace, *ALONE, "--grace=60", text=STUBBORN) as job:
        job.until_printed("ready", ["trainer/0"])
        job.launcher.proc.send_signal(signal.SIGINT)
        job.until(lambda events: any(e["event"] == "ending" for e in events), "ending")
        job.launcher.proc.send_signal(signal.SIGINT)
        assert job.launcher.wait(timeout_s=10) == codes.INT
        until_nothing_runs(1.0)


@pytest.mark.seam
@pytest.mark.held
def test_killing_the_launcher_leaves_nothing(place: Place, workspace: Path) -> None:
    with running(place, workspace, *QUICK, "--server=script", "--worker_num=2", text=STUBBORN) as job:
        for key in ("pserver/0", "trainer/0", "trainer/1"):
            job.until_printed("ready", [key])
        os.kill(job.launcher.pid, signal.SIGKILL)
        until_nothing_runs(place.lease_s + 1 + 2)


@pytest.mark.seam
@pytest.mark.parametrize(("who", "how"), [("keeper", signal.SIGKILL), ("agent", signal.SIGSTOP)])
def test_losing_a_guard_ends_the_job_and_names_it(
    place: Place, workspace: Path, who: str, how: signal.Signals
) -> None:
    silence = f"--lost_after={place.silent_s:g}"
    with running(place, workspace, *ALONE, *QUICK, silence, "--worker_num=2", text=STUBBORN) as job:
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


@pytest.mark.parametrize("place", ["mpi", "slurm"], indirect=True)
def test_other_processes_of_the_user_are_untouched(place: Place, workspace: Path) -> None:
    other = workspace.parent / "other"
    other.mkdir()
    with running(place, other, *ALONE, *QUICK, text=STUBBORN) as bystander:
        bystander.until_printed("ready", ["trainer/0"])
        with running(place, workspace, *ALONE, *QUICK, text=STUBBORN) as job:
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
    with running(place, workspace, *ALONE, *QUICK, text=POLITE) as first:
        first.until_printed("ready", ["trainer/0"])
        code, second = finished(place, workspace, *ALONE)
        assert code == codes.USAGE
        assert first.get_job()["job"] in second.end()["reason"]
        first.launcher.proc.send_signal(signal.SIGINT)
        first.launcher.wait()
    succeeded(place, workspace, *ALONE, text="pass")


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_ports_of_a_script_are_its_own_before_it_listens(place: Place, workspace: Path) -> None:
    """A program binds its port long after it was given it: until then no other job may be given it too."""
    serving = "import os, signal\nif os.environ['PSLAUNCH_ROLE'] == 'pserver': signal.pause()\n"
    text = f"{serving}{SHOW}\nsignal.pause()"
    other = workspace.parent / "other"
    other.mkdir()
    with running(place, workspace, *QUICK, "--server=script", text=text) as first:
        taken = endpoints(first.until(shown, "the first job's environment"))
        code, second = finished(place, other, *QUICK, "--server=script", text=serving + SHOW)
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
