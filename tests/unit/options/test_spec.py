"""JobSpec can't be invalid, and a command line becomes one by the defaults of all backends."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from pslaunch.backends.face import CommandLine
from pslaunch.backends.local.spec import make_local_site, make_local_spec
from pslaunch.backends.registry import get_options
from pslaunch.errors import SpecError
from pslaunch.node import binding
from pslaunch.node.binding import bind
from pslaunch.node.job import Facts, Limits, Plan, place
from pslaunch.options.args import Split, split_command_line
from pslaunch.options.kinds import Value
from pslaunch.options.sources import Given
from pslaunch.options.spec import JobSpec, list_notes
from pslaunch.plan import make_plan
from pslaunch.runtime.shared import env
from support.command_line import make_line, make_spec


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    """A workspace `ws` with a program `train.py`, in a folder of its own."""
    folder = tmp_path / "ws"
    folder.mkdir()
    (folder / "train.py").write_text("import paddle\n")
    return folder


def make(
    cwd: Path,
    split: Split | None = None,
    envs: Sequence[str] = (),
    environ: Mapping[str, str] = MappingProxyType({}),
    /,
    **given: str,
) -> JobSpec:
    values = {name: [Value(text, f"--{name}")] for name, text in given.items()}
    values["env"] = [Value(word, "--env") for word in envs]
    split = split or Split()
    found = Given(get_options("local"), {**values, **split.ours})
    return make_local_spec(CommandLine("", found, split, cwd, environ, sys.stdout, print))


@pytest.mark.parametrize(
    ("folder", "why"),
    [("a\nb", "not a valid folder"), ("/", "not a valid folder"), ("n" * 255, "longer than 200")],
)
def test_a_workspace_that_can_not_name_the_job(ws: Path, folder: str, why: str) -> None:
    (ws / folder).mkdir(exist_ok=True)
    split = Split(program=str(ws / "train.py"))
    with pytest.raises(SpecError, match=f"the workspace .*{why}.*--job_name"):
        make(ws, split, job_workspace=folder)
    assert make(ws, split, job_workspace=folder, job_name="w").draft.name == "w"


def test_logs_that_can_not_be_made(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match=r"can't be created: .*/train.py is not a folder"):
        make(ws, log_dir="train.py/deep/log")
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK and Path(path) == ws))
    with pytest.raises(SpecError, match=r"--log_dir='deep/log' can't be written: .*permission"):
        make(ws, log_dir="deep/log")


def test_spec_has_the_documented_defaults(ws: Path) -> None:
    found = make(ws)
    assert found == JobSpec(
        draft=Plan(backend="local", name="ws"),
        workspace=ws.resolve(),
        site=make_local_site(ws.resolve()),
        program="train.py",
    )
    assert found.command == (sys.executable, "train.py")


def test_every_option_arrives_in_the_spec(ws: Path) -> None:
    flags = {"num_passes": [Value("3", "--num_passes")]}
    split = Split(flags, ("--lr=1",), "train.py", ("a b",))
    found = make(
        ws.parent, split, ["A=b=c", "HOME"], {"HOME": "/h", "PATH": "/usr/bin:/bin"},
        job_workspace="ws", job_name="my job", server="script", server_num="2", worker_num="3",
        trainer_count="4", use_gpu="True", port="7164", ports_num="2", ports_num_for_sparse="1",
        python=sys.executable, log_dir="logs", grace="0", lost_after="9.5", stall_after="7",
        stall_timeout="90", timeout="3600",
    )  # fmt: skip
    assert found == JobSpec(
        draft=Plan(
            backend="local", name="my job", flags={"num_passes": "3"}, added_env={"A": "b=c", "HOME": "/h"},
            trainer_count=4, use_gpu=True, port=7164, ports_num=2, ports_num_for_sparse=1,
            limits=Limits(0.0, 9.5, 7.0, 90.0, timeout_s=3600.0),
        ),
        workspace=ws.resolve(), program="train.py", server="script",
        site=make_local_site(ws.resolve(), ws.parent / "logs"),
        program_args=("--lr=1", "a b"), server_num=2, worker_num=3,
        python=sys.executable, log_dir=ws.parent / "logs",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("program", "given"),
    [
        ("ws/train.py", {}),
        (None, {"job_dispatch_package": "ws"}),
        ("link/train.py", {"job_workspace": "link"}),
    ],
)
def test_workspace_is_that_of_the_program_in_place(
    ws: Path, program: str | None, given: dict[str, str]
) -> None:
    (ws.parent / "link").symlink_to(ws)
    found = make(ws.parent, Split(program=program), **given)
    assert (found.workspace, found.program, found.draft.name) == (ws.resolve(), "train.py", "ws")
    assert found.site.package is None


def test_program_is_looked_for_in_the_workspace_then_here(ws: Path) -> None:
    (ws / "sub").mkdir()
    (ws / "sub" / "t.py").touch()
    (ws.parent / "outside.py").touch()
    options = {"job_workspace": "ws"}
    assert make(ws.parent, Split(program="sub/t.py"), **options).program == "sub/t.py"
    assert make(ws.parent, Split(program="ws/sub/t.py"), **options).program == "sub/t.py"
    assert make(ws.parent, Split(program=str(ws / "train.py")), **options).program == "train.py"
    assert make(ws.parent, Split(program="outside.py"), **options).program == str(ws.parent / "outside.py")


def test_module_is_run_by_its_name_in_the_current_folder(ws: Path) -> None:
    (ws / "pkg").mkdir()
    (ws / "pkg/mod.py").write_text("import paddle\n")
    found = make(ws, split_command_line(["-m", "pkg.mod", "-x"], {}))
    assert (found.command, found.workspace) == ((sys.executable, "-m", "pkg.mod", "-x"), ws.resolve())
    assert found.program == "pkg/mod.py", "which is read for its pservers"
    assert make(ws.parent, split_command_line(["-m", "timeit"], {}), job_workspace="ws").program == "timeit"


def test_command_of_path_runs_by_its_path_in_the_current_folder(ws: Path) -> None:
    found = make(ws, Split(program="sh", program_args=("-c", "a && b")))
    assert (found.command, found.workspace) == ((shutil.which("sh"), "-c", "a && b"), ws.resolve())
    assert make(ws.parent, Split(program="hostname"), job_workspace="ws").program == shutil.which("hostname")
    with pytest.raises(SpecError, match=r"leave python3 out, as in: train\.py"):
        make(ws, Split(program="python3", program_args=("train.py",)))
    (ws / "sh").touch(0o755)
    assert make(ws, Split(program="sh")).command == ("./sh",), "a file of the workspace comes first"


@pytest.mark.parametrize(
    ("name", "text", "args", "says"),
    [
        (
            "nb.ipynb",
            b"{}",
            (),
            "'nb.ipynb' is a notebook.*: jupyter nbconvert --to script nb.ipynb makes nb.py",
        ),
        ("run", b"#!/bin/sh\r\nls\r\n", (), r"end with CRLF.*convert it: sed -i 's/\\r\$//' run"),
        ("", b"", ("echo a; echo b",), "given as: sh -c 'echo a; echo b'"),
        ("", b"", ("prog $HOME", "x y"), "given as: sh -c"),
    ],
)
def test_program_of_another_kind_is_an_error_with_its_remedy(
    ws: Path, name: str, text: bytes, args: tuple[str, ...], says: str
) -> None:
    if name:
        (ws / name).write_bytes(text)
        (ws / name).chmod(0o755)
    program, *more = (name, *args) if name else args
    for given in ({}, {"job_workspace": "."}):
        with pytest.raises(SpecError, match=says):
            make(ws, Split(program=program, program_args=tuple(more)), **given)


def test_option_of_ours_after_the_program_is_noted_unless_its_text_has_it(ws: Path) -> None:
    (ws / "train.py").write_text("import paddle  # takes --ports-num\n")
    (ws / "run").touch(0o755)
    for program, names in (("train.py", ["server_num", "env"]), ("run", [])):
        words = [program, "--server-num", "2", "--env=A=1", "--ports_num=3", "--lr", "--", "server"]
        line = make_line("local", words, ws, {})
        notes = list_notes(make_local_spec(line), line.given, line.split)
        where = "after train.py is given to the program; put it before"
        assert notes == [f"--{name} {where}" for name in names]


@pytest.mark.parametrize("program", ["sh", "/elsewhere/train.py", "sub/run", "v1.2/train.py"])
def test_a_call_of_what_is_no_module_is_an_error_with_the_remedy(ws: Path, program: str) -> None:
    path = ws / program if program[0] != "/" else ws.parent / "train.py"
    for file in [path] if program != "sh" else []:
        file.parent.mkdir(exist_ok=True)
        file.touch(0o755)
        program = str(file)
    with pytest.raises(SpecError, match=r"--call='f': .* is no module of the workspace; give a \.py file"):
        make(ws, Split(program=program), call="f", job_workspace=".")
    assert make(ws, split_command_line(["-m", "timeit"], {}), call="f").call == "f"


def test_every_node_has_a_process_of_each_role(ws: Path) -> None:
    (ws / "train.py").write_text("import paddle\n")
    for words, nodes in (((), [0, 1, 2]), (("--worker_num=1", "--server_num=1"), [0])):
        plan = make_plan(make_spec("local", ["--nodes=3", *words], ws, {}), "JOB")
        placed = place(plan, plan.nodes)
        assert [p.node for p in placed.list_processes("pserver")] == nodes
        assert [p.node for p in placed.list_processes("trainer")] == nodes


def test_option_of_pservers_without_pservers_is_an_error_with_the_reason(ws: Path) -> None:
    (ws / "train.py").write_text("import torch\n")
    with pytest.raises(SpecError, match=r"--port=3 has no effect without pservers: train.py imports neither"):
        make(ws, port="3")
    assert make(ws, port="3", server_num="1").draft.port == 3


def test_python_is_found_as_a_shell_would(ws: Path) -> None:
    folder = ws.parent / "bin"
    folder.mkdir()
    (folder / "mypython").symlink_to(sys.executable)
    assert make(ws, None, (), {"PATH": str(folder)}, python="mypython").python == str(folder / "mypython")
    assert make(ws.parent, Split(program="ws/train.py"), python="bin/mypython").python == str(
        folder / "mypython"
    )


@pytest.mark.parametrize(("how", "text"), [({"server_num": "0"}, ""), ({}, "fleet.is_server()")])
def test_use_gpu_with_a_program_of_the_bundled_runtime_names_its_place(
    ws: Path, how: dict[str, str], text: str
) -> None:
    (ws / "train.py").write_text(f"import os\nimport pslaunch.runtime as paddle\n{text}\n")
    with pytest.raises(SpecError, match=r"--use_gpu=1: .*with_gpu OFF.*train.py:2 imports it"):
        make(ws, use_gpu="1", **how)
    assert make(ws, use_gpu="1", server="script").draft.use_gpu, "whoever says so has another one for it"
    (ws / "train.py").write_text("fleet.is_server()")
    assert make(ws, use_gpu="1", **how).draft.use_gpu is True
    (ws / "train.py").write_text(
        f"try:\n    import pslaunch.runtime\nexcept ImportError:\n    pass\n{text}\n"
    )
    assert make(ws, use_gpu="1", **how).draft.use_gpu is True


@pytest.mark.parametrize(
    ("text", "given", "each"),
    [
        ("import torch", {}, None),
        ("import torch", {"gpus_per_trainer": "2"}, 2),
        ("import torch, transformers", {}, 0),
        ("import torch, transformers", {"gpus": "0,1"}, 0),
        ("import torch, transformers", {"gpus_per_trainer": "1"}, 1),
        ("", {}, 0),
        ("", {"gpus": "4"}, None),
        ("", {"use_gpu": "1"}, None),
    ],
)
def test_gpus_are_dealt_out_to_programs_that_do_not_choose(
    ws: Path, text: str, given: dict[str, str], each: int | None
) -> None:
    (ws / "train.py").write_text(text)
    wants = make_plan(make(ws, server_num="0", **given), "j").wants
    assert (wants.gpus_per_trainer, wants.gpus) == (each, given.get("gpus"))


def test_gpus_for_the_bundled_runtime_are_refused(ws: Path) -> None:
    for given in ({"gpus": "2"}, {"gpus_per_trainer": "1"}):
        with pytest.raises(SpecError, match="the bundled runtime of this build has CPU kernels only"):
            make(ws, server="bundled", **given)
        (ws / "train.py").write_text("import torch")
        assert make(ws, server="bundled", **given).draft.wants.gpus == given.get("gpus"), "pservers beside it"
        (ws / "train.py").write_text("")


BAD_VALUES = (
    *("server_num=-1", "server_num=two", "server_num=1.5", "server_num=", f"server_num={'9' * 5000}"),
    *("worker_num=0", "trainer_count=0", "ports_num=0", "ports_num_for_sparse=-1", "port=0", "port=65536"),
    *("grace=-1", "grace=5s", "grace=inf", "grace=nan", "lost_after=1", "stall_after=0", "stall_timeout=0"),
    *("server=both", "use_gpu=maybe", "python=no-such-python", "python=", "python=./no/python"),
    *("gpus=0", "gpus=0,0", "gpus=0,x", "gpus=,1", "gpus=-1", "gpus=1,-1", "gpus_per_trainer=-1"),
    *("job_name=", "job_name=a/b", "job_name=..", "job_name=a\nb", f"job_name={'x' * 300}"),
    *("log_dir=train.py", "log_dir=", "job_workspace=nowhere", "job_workspace=train.py", "job_workspace="),
    *("job_dispatch_package=nowhere", f"job_dispatch_package={'x' * 5000}"),
)


@pytest.mark.parametrize("option", BAD_VALUES, ids=lambda option: repr(option[:30]))
def test_a_bad_value_is_named_with_its_option(ws: Path, option: str) -> None:
    name, _, text = option.partition("=")
    with pytest.raises(SpecError) as caught:
        make(ws, **{name: text})
    assert f"--{name}=" in str(caught.value)
    assert text[:20] in str(caught.value) or repr(text)[1:-1] in str(caught.value)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("NOPE", "not set in this shell"), ("=x", "not a variable name"), ("A B=1", "not a variable name"),
        ("PADDLE_INIT_PORT=1", "use --port"), ("PSLAUNCH_RANK=1", "by pslaunch"),
        ("TRAINING_ROLE", "by pslaunch"),
    ],
)  # fmt: skip
def test_a_bad_variable_is_named(ws: Path, word: str, says: str) -> None:
    with pytest.raises(SpecError, match=says) as caught:
        make(ws, None, [word])
    assert word.partition("=")[0] in str(caught.value)
    with pytest.raises(SpecError, match="--env A is given twice"):
        make(ws, None, ["A=1", "A=2"])


@pytest.mark.parametrize("name", sorted(binding.list_contract_names() - env.COMMON_NAMES))
def test_no_variable_of_the_contract_can_be_set(ws: Path, name: str) -> None:
    with pytest.raises(SpecError, match=name):
        make(ws, None, [f"{name}=x"])


@pytest.mark.parametrize(
    ("program", "says"),
    [("gone.py", r"no program 'gone\.py'"), ("", "no program ''"), (".", "'.' is not a file; name one in it"),
     ("data.txt", "nor executable"), ("a\0b", "a.x00b"), ("x" * 5000, "no program"),
     ("trian.py", r"no program 'trian\.py'.*; did you mean train\.py\?$"),
     ("train", r"no program 'train'.*; did you mean train\.py\?$"),
     ("sub/mian.py", r"no program 'sub/mian\.py'.*; did you mean sub/main\.py\?$")],
)  # fmt: skip
def test_a_bad_program_is_named(ws: Path, program: str, says: str) -> None:
    (ws / "sub").mkdir()
    for name in ("sub/main.py", "data.txt"):
        (ws / name).touch()
    for given in ({}, {"job_workspace": str(ws)}):
        with pytest.raises(SpecError, match=says):
            make(ws, Split(program=program), **given)


def test_the_folder_of_a_command_is_no_workspace(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, beside = ws / "run", ws / "job.py"
    for file in (command, beside):
        file.touch(0o755)
    monkeypatch.setenv("PATH", f"relative:{ws}")
    with pytest.raises(SpecError, match=r"run is a command of PATH; give .* --job_workspace=DIR"):
        make(ws.parent, Split(program=str(command)))
    assert make(ws.parent, Split(program=str(beside))).workspace == ws.resolve()
    assert make(ws, Split(program=str(command)), job_workspace=str(ws)).workspace == ws.resolve()


OF_PSERVERS = (
    *("port=3", "ports_num=3", "ports_num_for_sparse=3", "server=script", "trainer_timeout=9"),
    *("metrics_port=9100", "snapshot_steps=100", "snapshot_minutes=5", "snapshot_keep=3"),
    *("snapshot_copies=2", "export_steps=9", "export_dir=out", "resume=1"),
)


@pytest.mark.parametrize(
    ("option", "given"),
    [
        *((option, {"server_num": "0"}) for option in OF_PSERVERS),
        ("trainer_timeout=9", {"server": "script"}),
        (f"python={sys.executable}", {}),
    ],
)
def test_an_option_without_effect_is_an_error(ws: Path, option: str, given: dict[str, str]) -> None:
    (ws / "run").touch(0o755)
    name, _, value = option.partition("=")
    split = Split(program="run") if name == "python" else None
    with pytest.raises(SpecError, match=rf"--{option} has no effect"):
        make(ws, split, **given, **{name: value})
    if name == "trainer_timeout":
        assert make(ws, trainer_timeout="9").draft.limits.trainer_timeout_s == 9.0


def test_one_way_to_say_the_same(ws: Path) -> None:
    with pytest.raises(SpecError, match="--job_workspace=ws and --job_dispatch_package=ws"):
        make_spec("local", ["--job_workspace=ws", "--job_dispatch_package=ws"], ws.parent, {})
    split = Split({"num_passes": [Value("1", "")]})
    with pytest.raises(SpecError, match="--num_passes and --env PADDLE_INIT_NUM_PASSES"):
        make(ws, split, ["PADDLE_INIT_NUM_PASSES=2"])


@pytest.mark.parametrize("words", [["package/train.py"], ["-m", "package.train"]])
def test_a_function_is_called_in_place_of_its_program(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/train.py").write_text("def train(*args):\n    print(args)\n")
    given = [f"--job_workspace={tmp_path}", "--call=train", *words, "1", '{"a": [2]}']
    command = make_spec("local", given, tmp_path, {}).command
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "(1, {'a': [2]})\n", done.stderr


SNAPSHOTS = ("--snapshot_steps=100", "--snapshot_minutes=5", "--snapshot_keep=3", "--snapshot_copies=2")
GIVEN = {"STEPS": "100", "MINUTES": "5", "KEEP": "3", "COPIES": "2"}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), {}),
        (SNAPSHOTS, {f"SNAPSHOT_{name}": value for name, value in GIVEN.items()}),
        (("--export_steps=9", "--export_dir=out"), {"EXPORT_STEPS": "9", "EXPORT_DIR": "out"}),
        (("--resume",), {"RESUME": "1"}),
        (("--resume=made/here",), {"RESUME": "made/here"}),
    ],
)
def test_snapshots_are_settings_of_every_program(
    ws: Path, words: tuple[str, ...], found: dict[str, str]
) -> None:
    line = ["--server_num=1", *words, "train.py"]
    (ws / "train.py").write_text("import pslaunch.runtime\n")
    plan = make_plan(make_spec("local", line, ws, {}), "demo-1")
    for start in bind(place(plan, plan.nodes), Facts.make_symbolic(place(plan, plan.nodes))):
        environ = binding.compose({}, start["added_env"], start["contract"])
        given = {n: v for n, v in environ.items() if "SNAPSHOT" in n or "RESUME" in n or "EXPORT" in n}
        folder = {"PSLAUNCH_SNAPSHOT_DIR": f"{ws}/.pslaunch/snapshots"}
        assert given == {f"PADDLE_INIT_{name}": value for name, value in found.items()} | folder


def test_snapshots_of_nodes_that_share_a_folder_are_in_one(ws: Path) -> None:
    """Which of them has subfolders there is another one in the next job."""
    (ws / "train.py").touch()
    plan = make_plan(make_spec("local", ["--nodes=2", "--server_num=0", "train.py"], ws, {}), "demo-1")
    first, second = plan.nodes
    placed = place(plan, [first, second._replace(state_dir=f"{first.state_dir}/node-1")])
    starts = bind(placed, Facts.make_symbolic(placed))
    assert {start["contract"]["PSLAUNCH_SNAPSHOT_DIR"] for start in starts} == {f"{ws}/.pslaunch/snapshots"}


@pytest.mark.parametrize(("folder", "there"), [("kept/here", "{ws}/kept/here"), ("/mnt/kept", "/mnt/kept")])
def test_snapshots_in_a_folder_of_the_workspace_or_elsewhere_are_not_sent(
    ws: Path, folder: str, there: str
) -> None:
    words = ["--nodes=2", f"--snapshot_dir={folder}", "--export_dir=out", "train.py"]
    plan = make_plan(make_spec("local", words, ws, {}), "demo-1")
    placed = place(plan, plan.nodes)
    starts = bind(placed, Facts.make_symbolic(placed))
    assert starts[0]["contract"]["PSLAUNCH_SNAPSHOT_DIR"] == there.format(ws=ws)
    assert plan.package is not None
    assert (folder in plan.package.skip) == (there != folder)
    assert "out" in plan.package.skip


def test_port_of_metrics_is_a_variable_of_the_pservers(ws: Path) -> None:
    (ws / "train.py").write_text("import pslaunch.runtime\n")
    for text in ("9100", "0.0.0.0:9100"):
        spec = make_spec("local", [f"--metrics_port={text}", "train.py"], ws, {})
        assert spec.draft.added_env == {"PSLAUNCH_METRICS_PORT": text}
    for text, said in (("x", "expected a whole number"), ("h:65536", "from 1 to 65535")):
        with pytest.raises(SpecError, match=f"--metrics_port=.*{said}"):
            make_spec("local", [f"--metrics_port={text}", "train.py"], ws, {})


@pytest.mark.parametrize("option", ["snapshot_dir", "export_dir"])
def test_a_folder_of_snapshots_is_not_in_somebodys_home(ws: Path, option: str) -> None:
    with pytest.raises(SpecError, match="give an absolute path, or one in the workspace"):
        make_spec("local", [f"--{option}=~/kept", "train.py"], ws, {})
