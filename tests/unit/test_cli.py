"""The commands: help, version, and bad input of every kind."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pslaunch import __version__
from pslaunch.cli import main
from pslaunch.node import codes
from pslaunch.node.job import Node
from pslaunch.options.spec import JobSpec
from pslaunch.options.typer_glue import make_options
from pslaunch.run import session

PSLAUNCH = [sys.executable, "-m", "pslaunch"]


@pytest.fixture
def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with a program, as the current folder."""
    (tmp_path / "train.py").write_text("raise SystemExit('was started')\n")
    (tmp_path / "data.txt").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(words)
    return caught.value.code if isinstance(caught.value.code, int) else 1


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("locl", ["locl", "did you mean 'local'?"]),
        ("quux", ["quux", "local, fabric, mpi, jobs"]),
        ("--vers", ["--vers", "did you mean 'version'?"]),
        ("fabric --conf conf.py", ["fabric", "conf.py can't be read", "No such file"]),
        ("fabric --hosts a", ["--job_dispatch_package=DIR", "--job_workspace=DIR"]),
        ("fabric --job_dispatch_package .", ["no hosts: ", "conf.py", "--hosts"]),
        ("fabric --hosts -oProxyCommand=x", ["--hosts: '-oProxyCommand=x'"]),
        ("fabric --np 2", ["--np", "--worker_num"]),
        ("fabric -i a", ["-i", "--include"]),
        ("fabric --nodes 2", ["--nodes is no option of this command; these have it: k8s, local"]),
        ("fabric --cnf conf.py", ["--cnf", "--conf"]),
        ("fabric --install --hosts a --job_workspace /ws", ["--install", "--job_dispatch_package"]),
        ("local --hosts a train.py", ["--hosts is no option of this command; these have it: fabric"]),
        ("mpi -n 0", ["-n=0", "expected a whole number from 1"]),
        ("k8s apply", ["no image", "--image=NAME"]),
        ("local --trainers 2 train.py", ["--trainers", "--worker_num"]),
        ("local -np 4 train.py", ["-np", "--worker_num"]),
        ("-v", ["-v"]),
        ("check local", ["pslaunch local --dry_run", "pslaunch check fabric"]),
        ("version now", ["now"]),
        ("version --jsn", ["--jsn", "--json"]),
        ("local nope.py", ["nope.py", "no program"]),
        ("local .", ["'.'", "not a file"]),
        ("local data.txt", ["data.txt", "nor executable"]),
        ("local --job_workspace data.txt", ["--job_workspace='data.txt'", "not a folder"]),
        ("local --job_workspace nowhere", ["--job_workspace='nowhere'", "no such folder"]),
        ("local --job_workspace . --job_dispatch_package .", ["--job_workspace", "--job_dispatch_package"]),
        ("local --server_num -1", ["--server_num=-1"]),
        ("local --worker_num=-1 train.py", ["--worker_num=-1"]),
        ("local --worker_num 0", ["--worker_num=0"]),
        ("local --server-num two", ["--server_num='two'"]),
        ("local --trainer_count 0", ["--trainer_count=0"]),
        ("local --port 70000", ["--port=70000"]),
        ("local --port http", ["--port='http'"]),
        ("local --port=", ["--port=''"]),
        ("local --port", ["--port needs a value"]),
        ("local --ports_num 0", ["--ports_num=0"]),
        ("local --grace -3", ["--grace=-3"]),
        ("local --server both", ["--server='both'"]),
        ("local --use_gpu true", ["--use_gpu=true", "with_gpu OFF"]),
        ("local --use_gpu perhaps", ["--use_gpu='perhaps'"]),
        ("local --env NO_SUCH_NAME", ["NO_SUCH_NAME"]),
        ("local --env PADDLE_TRAINER_ID=3", ["PADDLE_TRAINER_ID"]),
        ("local --python nothing-such", ["--python='nothing-such'"]),
        ("local --sever_num 2", ["--sever_num", "--server_num"]),
        ("local -n 2", ["-n"]),
        ("local --json=maybe", ["--json='maybe'"]),
        ("local --num_passes x", ["--num_passes='x'"]),
        ("local --lr 0.1 train.py", ["'0.1'", "--lr=0.1"]),
        ("local --dry_run --dry-run", ["--dry_run", "twice"]),
        ("local a\x1b[31m\nb.py", ["b.py"]),
    ],
)
def test_bad_input_is_reported_in_a_line_and_nothing_starts(
    ws: Path, capfd: pytest.CaptureFixture[str], line: str, names: Sequence[str]
) -> None:
    before = sorted(ws.iterdir())
    assert run(*line.split(" ")) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("pslaunch") and ": " in err
    assert 1 <= len(err.splitlines()) <= 2 and "Traceback" not in err and "\x1b" not in err
    for name in names:
        assert name in err
    assert sorted(ws.iterdir()) == before


def test_the_command_alone_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert "local" in capsys.readouterr().out


def test_the_list_of_commands_has_whole_sentences(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run("--help") == 0
    listed = capsys.readouterr().out.split("Commands:\n")[1].splitlines()
    assert listed
    assert not [line for line in listed if not line.endswith(".") or line.endswith("...")]


def test_every_option_has_help_and_a_default_or_explains_its_absence() -> None:
    absent = ("env", "job_dispatch_package", "job_workspace", "conf", "shard", "link", "setup")
    for param in [*make_options("local"), *make_options("fabric")]:
        words = param.help
        assert words and words[0].isupper(), param.name
        assert "[default: " in words or param.name in absent, param.name
        seconds = param.metavar == "SECONDS"
        assert not seconds or "econds" in words, param.name


@pytest.mark.parametrize("words", ["", "local", "check", "check fabric", "logs", "version"])
def test_help_has_a_short_name_too(capsys: pytest.CaptureFixture[str], words: str) -> None:
    assert run(*words.split(), "-h") == 0
    short = capsys.readouterr().out
    assert run(*words.split(), "--help") == 0
    assert short == capsys.readouterr().out and "Usage: pslaunch" in short
    assert "{" not in short.splitlines()[0] and "[[" not in short.splitlines()[0]


def test_help_belongs_to_the_program_after_its_name(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _spec_of(monkeypatch, "local", "train.py", "--help").program_args == ("--help",)


def test_words_reach_the_session(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "local --server-num 2 --num_passes 3 --lr=1 --env A=b train.py --port 9"
    spec = _spec_of(monkeypatch, *line.split())
    assert (spec.server_num, spec.port, spec.env) == (2, None, {"A": "b"})
    assert (spec.trainer_flags, spec.program_args) == ({"num_passes": "3"}, ("--lr=1", "--port", "9"))


@pytest.mark.parametrize("place", ["fabric --hosts=a --job_dispatch_package=.", "k8s --image=a"])
def test_check_finds_a_syntax_error_before_it_asks_anybody(
    ws: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (ws / "train.py").write_text("def f(:\n")
    assert run("check", *place.split(), "train.py") == 2
    assert "train.py is no program of Python" in capsys.readouterr().err


def test_options_with_several_values_may_be_repeated(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _spec_of(monkeypatch, "local", "--env", "A=1", "--env=B=2").env == {"A": "1", "B": "2"}


def test_dry_run_prints_the_plan_and_starts_nothing(ws: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(ws.iterdir())
    assert run("local", "--dry_run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["backend"] == "local"
    assert run("local", "--dry-run") == 0
    assert "trainer/0" in capsys.readouterr().out
    assert sorted(ws.iterdir()) == before


def _spec_of(monkeypatch: pytest.MonkeyPatch, *words: str) -> JobSpec:
    """The spec that the session gets."""
    seen: list[JobSpec] = []

    def taken(spec: JobSpec, **_: Any) -> int:
        seen.append(spec)
        return 7

    monkeypatch.setattr(session, "run", taken)
    assert run(*words) == 7
    return seen[0]


@pytest.mark.parametrize(
    ("line", "notes"),
    [
        ("--badopt --lr=1 train.py", "pslaunch local: note: --badopt, --lr=1 goes to train.py\n"),
        ("train.py --num_passes=1 --lr=2", ""),
        ("--num_passes=1 --env PADDLE_INIT_TRAINER_COUN=2 train.py", ""),
    ],
)
def test_notes_name_the_words_for_the_program_and_guess_nothing(
    ws: Path, capsys: pytest.CaptureFixture[str], line: str, notes: str
) -> None:
    assert run("local", "--dry_run", "--json", *line.split()) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) and err == notes


def test_a_plan_of_a_local_job_imports_nothing_of_other_backends(ws: Path) -> None:
    code = (
        "import sys; from pslaunch.cli import _run; _run(['local', '--dry_run'])\n"
        "other = 'fabric paramiko pslaunch.ssh pslaunch.options.fabric_spec'.split()\n"
        "print('other:', *(m for m in other if m in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "other:"


def test_a_session_is_imported_without_the_head_and_a_terminals_view() -> None:
    """Nodes come up while these are imported."""
    code = (
        "import sys, pslaunch.run.session, pslaunch.backends.local\n"
        "later = 'pslaunch.node.head.head pslaunch.run.observe pslaunch.run.fetch rich'.split()\n"
        "print('there:', *(m for m in later if m in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "there:"


def test_version_as_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"pslaunch {__version__}\n"


def test_version_is_true_of_the_build(capsys: pytest.CaptureFixture[str]) -> None:
    from pslaunch.runtime import _core

    assert run("version") == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"pslaunch {__version__}, compiled with"
    said = dict(line.split() for line in rest)
    assert list(said) == [
        "with_avx:",
        "with_gpu:",
        "with_double:",
        "with_python:",
        "with_rdma:",
        "with_timer:",
    ]
    assert said["with_avx:"] == ("ON" if _core.get_features()["avx2"] else "OFF")
    assert (said["with_gpu:"], said["with_python:"]) == ("OFF", "ON")
    assert run("version", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["version"] == __version__
    assert {f"{name}:": "ON" if on else "OFF" for name, on in data.items() if name != "version"} == said


@pytest.mark.parametrize("words", [["--help"], ["local", "--help"], ["fabric", "--help"], []])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys, atexit\n"
        "heavy = 'numpy rich fabric paramiko kubernetes asyncio pydantic'.split()\n"
        "heavy += ['pslaunch.run.session', 'pslaunch.options.spec']\n"
        "atexit.register(lambda: print('heavy:', *(m for m in heavy if m in sys.modules)))\n"
        f"from pslaunch.cli import main; main({words!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "heavy:"


@pytest.mark.parametrize("words", ["--help", "version --json", "jobs", "local --dry_run", "local"])
def test_closed_output_is_reported_in_a_line_and_nothing_starts(ws: Path, words: str) -> None:
    before = sorted(ws.iterdir())
    line = f"{shlex.join([*PSLAUNCH, *words.split()])} >&-"
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == codes.IO, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "standard output" in done.stderr
    assert sorted(ws.iterdir()) == before


def _ended_job(ws: Path) -> dict[str, str]:
    """A job `j-1` that has ended, and where it is remembered."""
    records = ws / "state" / "pslaunch" / "jobs"
    records.mkdir(parents=True)
    log = ws / "train.log"
    log.write_text("hello\n")
    process = {"process": "trainer/0", "node": 0, "log": str(log)}
    places = [Node(0, "localhost", "")._asdict()]
    ended = {"job": "j-1", "state": "ended", "code": 0, "reason": "", "backend": "local", "nodes": 1,
             "started": 1.0, "processes": [process], "places": places}  # fmt: skip
    (records / "j-1.json").write_text(json.dumps(ended))
    return {**os.environ, "XDG_STATE_HOME": str(ws / "state")}


@pytest.mark.parametrize("words", ["--help", "version", "local --dry_run", "jobs", "status j", "logs j"])
def test_full_output_is_reported_in_a_line(ws: Path, words: str) -> None:
    environ = _ended_job(ws)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*PSLAUNCH, *words.split()], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
            env=environ,
        )  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (codes.IO, 1), done.stderr
    assert "No space left" in done.stderr


@pytest.mark.parametrize("words", ["--help", "version", "local --dry_run", "jobs", "status j", "logs j"])
def test_vanished_reader_changes_only_the_exit_code(ws: Path, words: str) -> None:
    environ = _ended_job(ws)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        done = subprocess.run(
            [*PSLAUNCH, *words.split()], stdout=gone, stderr=subprocess.PIPE, text=True, timeout=60,
            env=environ,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (codes.SIGNAL_BASE + signal.SIGPIPE, "")


def test_closed_errors_do_not_get_into_the_output() -> None:
    line = f"{shlex.join([*PSLAUNCH, 'frobnicate'])} 2>&-"
    done = subprocess.run(["sh", "-c", line], stdout=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (codes.USAGE, "")


def test_pserver_becomes_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, argv: calls.append(argv))
    run("pserver", "--port=7164", "--", "--help", "-x")
    assert calls == [
        [sys.executable, "-P", "-m", "pslaunch.runtime.pserver", "--port=7164", "--", "--help", "-x"]
    ]
