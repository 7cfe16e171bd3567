"""The commands: help, version, and bad input of every kind."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pslaunch import __version__
from pslaunch.backends.registry import OWN, find_face, get_options
from pslaunch.cli import main
from pslaunch.node import codes
from pslaunch.node.job import Node
from pslaunch.options.args import split_command_line
from pslaunch.options.options import HEADINGS

ROOT = Path(__file__).parents[2]
PSLAUNCH = [sys.executable, "-m", "pslaunch"]


@pytest.fixture
def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with a program, as the current folder."""
    (tmp_path / "train.py").write_text("raise SystemExit('was started')\n")
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
        ("quux", ["quux", "local, fabric, mpi, slurm, k8s, check, jobs"]),
        ("--vers", ["--vers", "did you mean 'version'?"]),
        ("fabric --conf conf.py", ["fabric", "conf.py can't be read", "No such file"]),
        ("fabric --hosts a", ["--job_dispatch_package=DIR", "--job_workspace=DIR"]),
        ("fabric --nodes 2", ["has no option --nodes; commands that have it: local, slurm, k8s"]),
        ("local --hosts a train.py", ["this command has no option --hosts; commands that have it: fabric"]),
        ("mpi -n 0", ["-n=0", "expected a whole number from 1"]),
        ("k8s apply", ["no image", "--image=NAME"]),
        ("k8s delete j", ["unknown command 'delete'; did you mean 'pslaunch delete j'?"]),
        ("k8s check train.py", ["did you mean 'pslaunch check k8s train.py'?"]),
        ("k8s create train.py", ["did you mean 'pslaunch k8s apply train.py'?"]),
        ("k8s train.py", ["did you mean 'pslaunch k8s apply train.py'?"]),
        ("train.py --lr 1", ["did you mean 'pslaunch local train.py --lr 1'?"]),
        ("run train.py", ["did you mean 'pslaunch local train.py'?"]),
        ("submit train.py", ["did you mean 'pslaunch fabric, mpi, slurm or k8s apply'?"]),
        ("local fabric train.py", ["pslaunch local and fabric are two commands"]),
        ("local \N{EM DASH}port 1 train.py", ["begins with a long dash; write --port"]),
        ("local nope", ["no program 'nope'; give a file, -m MODULE or a command of PATH"]),
        (
            "local -m nosuch.mod",
            ["no module 'nosuch.mod'", "neither the workspace", "install it", "--python"],
        ),
        ("local -m trian", ["no module 'trian'", "did you mean train?"]),
        ("-m nosuch.mod", ["did you mean 'pslaunch local -m nosuch.mod'?"]),
        ("help nosuch", ["no page or command 'nosuch'; pages: api, ", "fabric", "tutorial"]),
        ("help kubernets", ["did you mean kubernetes?; pages: api"]),
        ("help run", ["did you mean 'pslaunch local --help'?"]),
        ("ps", ["did you mean 'pslaunch jobs'?"]),
        ("--port 1 local train.py", ["--port before the command", "pslaunch local --port"]),
        ("logs --folow j", ["pslaunch logs: unknown option --folow; did you mean --follow?"]),
        ("stop -9 j", ["pslaunch stop: unknown option -9; options: --kill, --json"]),
        ("jobs --all", ["unknown option --all; options: --json, --conf"]),
        ("logs", ["JOB is missing; usage: pslaunch logs [OPTIONS] JOB [PROCESS]; pslaunch jobs lists"]),
        ("status a b c", ["too many words: b c; usage: pslaunch status [OPTIONS] JOB"]),
        ("fetch j d --conf", ["pslaunch fetch: --conf needs a value: --conf=FILE"]),
        ("logs --json=maybe j", ["--json='maybe'", "expected true or false"]),
        ("check local", ["pslaunch local has no hosts", "--dry_run"]),
        ("version now", ["now"]),
        ("version --jsn", ["--jsn", "--json"]),
        ("local --job_workspace nowhere", ["--job_workspace='nowhere'", "No such file"]),
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


def test_example_without_its_data_says_how_to_make_them_and_leaves_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    folder = ROOT / "examples/word2vec"
    before = sorted(folder.iterdir())
    assert run("local", "examples/word2vec/train.py") == codes.USAGE
    error = capfd.readouterr().err
    assert "train.py needs word_dict.pickle" in error
    assert f": python {folder}/prepare.py, then --job_workspace {folder}/ws train.py" in error
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("words", ["", "local", "check", "check fabric", "logs", "version"])
def test_help_has_a_short_name_too(capsys: pytest.CaptureFixture[str], words: str) -> None:
    assert run(*words.split(), "-h") == 0
    short = capsys.readouterr().out
    assert words or (run(), capsys.readouterr().out) == (0, short)
    assert run(*words.split(), "--help") == 0
    assert short == capsys.readouterr().out and "Usage: pslaunch" in short
    assert "{" not in short.splitlines()[0] and "[[" not in short.splitlines()[0]


@pytest.mark.parametrize("place", ["fabric --hosts=a --job_dispatch_package=.", "k8s --image=a"])
def test_check_finds_a_syntax_error_before_it_asks_anybody(
    ws: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (ws / "train.py").write_text("def f(:\n")
    assert run("check", *place.split(), "train.py") == 2
    assert "train.py is not a program of Python" in capsys.readouterr().err


def test_dry_run_prints_the_plan_and_starts_nothing(ws: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(ws.iterdir())
    assert run("local", "--dry_run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["backend"] == "local"
    assert run("local", "--dry-run") == 0
    assert "trainer/0" in capsys.readouterr().out
    assert sorted(ws.iterdir()) == before


def test_dry_run_shows_what_the_encoding_of_the_output_lacks(
    ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), "latin-1")
    monkeypatch.setattr(sys, "stdout", out)
    assert run("local", "--dry_run", "train.py", "caf\u00e9\u2603") == 0
    out.seek(0)
    assert "caf\u00e9\\u2603" in out.read()


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


OTHERS = "fabric paramiko pslaunch.backends.fabric.ssh pslaunch.backends.fabric.spec"
# Nodes come up while these are imported.
LATER = "pslaunch.node.head.head pslaunch.follow.remote_head pslaunch.run.fetch rich"
OURS = "pslaunch.run.session pslaunch.options.spec"
HEAVY = f"numpy rich fabric paramiko kubernetes jinja2 asyncio pydantic {OURS}"


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("from pslaunch.cli import _run; _run(['local', '--dry_run'])", OTHERS),
        ("import pslaunch.run.session, pslaunch.backends.local.backend", LATER),
        ("import pslaunch.runtime", HEAVY),
        *((f"from pslaunch.cli import main; main({words})", HEAVY)
          for words in (["--help"], ["local", "--help"], ["fabric", "--help"], [])),
    ],
)  # fmt: skip
def test_nothing_is_imported_that_is_not_needed_yet(ws: Path, code: str, absent: str) -> None:
    said = f"print('there:', *(m for m in {absent.split()} if m in sys.modules))"
    argv = [sys.executable, "-c", f"import atexit, sys; atexit.register(lambda: {said})\n{code}\n"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "there:"


def test_version_is_true_of_the_build(capsys: pytest.CaptureFixture[str]) -> None:
    from pslaunch.runtime import _core

    assert run("--version") == 0
    assert capsys.readouterr().out == f"pslaunch {__version__}\n"
    assert run("version") == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"pslaunch {__version__}, compiled with"
    said = dict(line.split() for line in rest)
    assert said["with_avx:"] == ("ON" if _core.get_features()["avx2"] else "OFF")
    assert (said["with_gpu:"], said["with_python:"]) == ("OFF", "ON")
    assert run("version", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["version"] == __version__
    assert {f"{name}:": "ON" if on else "OFF" for name, on in data.items() if name != "version"} == said


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
@pytest.mark.parametrize(
    ("vanished", "code", "said"),
    [(False, codes.IO, r".*No space left.*\n"), (True, codes.SIGNAL_BASE + signal.SIGPIPE, "")],
)
def test_full_output_is_reported_in_a_line_and_a_vanished_reader_by_the_code_alone(
    ws: Path, words: str, vanished: bool, code: int, said: str
) -> None:
    read, write = os.pipe() if vanished else (os.open("/dev/null", 0), os.open("/dev/full", os.O_WRONLY))
    os.close(read)
    with os.fdopen(write, "w") as out:
        done = subprocess.run(
            [*PSLAUNCH, *words.split()], stdout=out, stderr=subprocess.PIPE, text=True, timeout=60,
            env=_ended_job(ws),
        )  # fmt: skip
    assert done.returncode == code and re.fullmatch(said, done.stderr), done.stderr


@pytest.mark.parametrize("limit", [20, 25])  # reached in a start of an agent, and beside one
def test_too_few_open_files_are_named_with_the_remedy(ws: Path, limit: int) -> None:
    argv = ["prlimit", f"--nofile={limit}:1024", *PSLAUNCH, "local", "--nodes=6", "--server_num=0"]
    argv += [f"--job_dispatch_package={ws}", "train.py"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert done.returncode in (codes.SERVICE, codes.IO) and "Traceback" not in done.stdout
    assert f"Too many open files (of {limit}; raise the limit: ulimit -n 1024)" in done.stdout


def test_closed_errors_do_not_get_into_the_output() -> None:
    line = f"{shlex.join([*PSLAUNCH, 'frobnicate'])} 2>&-"
    done = subprocess.run(["sh", "-c", line], stdout=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (codes.USAGE, "")


def test_pserver_becomes_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, argv: calls.append(argv))
    run("pserver", "--port=7164", "--help", "-x")
    assert calls == [[sys.executable, "-P", "-m", "pslaunch.runtime.pserver", "--port=7164", "--help", "-x"]]


STRUCK = """\
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "pslaunch.cli":
            os.kill(os.getpid(), int(sys.argv.pop()))

sys.meta_path.insert(0, Finder())
from pslaunch.__main__ import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_signal_before_any_import_of_ours_gives_the_code_of_the_page(number: int) -> None:
    words = [sys.executable, "-c", STRUCK, "version", str(int(number))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")


def test_signal_that_was_ignored_at_the_start_stays_ignored() -> None:
    words = ["nohup", sys.executable, "-c", STRUCK, "version", str(int(signal.SIGHUP))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.startswith(f"pslaunch {__version__}")) == (0, True), done.stderr


def test_help_has_the_options_under_headings_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fabric", "--help") == 0
    sections = dict(part.split(":\n", 1) for part in capsys.readouterr().out.split("\n\n")[3:])
    shown = {
        heading: set(re.findall(r"^  (?:-\w+, )*--(\w+)", text, re.M)) for heading, text in sections.items()
    }
    assert shown["Nodes, as in --hosts node[1-3] --root_dir /data/job"] >= {"hosts", "conf", "exclude"}
    assert shown["Output, as in --json"] >= {"log_dir", "fetch_output", "fetch_logs", "trace", "json"}
    assert {name for names in shown.values() for name in names} == {*get_options("fabric"), "help"}


@pytest.mark.parametrize("name", OWN)
def test_examples_of_headings_are_accepted(name: str) -> None:
    examples = [find_face(name).example, *(example for example, _ in HEADINGS.values())]
    options = get_options(name)
    for words in map(str.split, examples):
        if words[0].replace("-", "").split("=")[0] in options or words[0].startswith("-host"):
            assert not split_command_line(words, options).forwarded


def test_help_shows_a_page_or_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("help", "mpi") == 0
    assert capsys.readouterr().out.startswith("# Jobs under Open MPI\n")
    assert run("help", "k8s", "render") == 0
    assert capsys.readouterr().out.startswith("Usage: pslaunch k8s render")
