"""`pslaunch.launch`: what is refused before anything is started."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pslaunch
from pslaunch import api
from pslaunch.errors import SpecError


@pytest.fixture
def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with a program, as the current folder; nothing is started."""
    (tmp_path / "train.py").write_text("raise SystemExit('was started')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "Job", lambda words: words)
    return tmp_path


def make_nested() -> Any:
    def nested() -> None:
        pass

    return nested


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"worker_nun": 2}, ["--worker_nun", "did you mean --worker_num?"]),
        ({"quux": 2}, ["local takes no --quux=2", "args"]),
        ({"nproc_per_node": 2}, ["use --worker_num"]),
        ({"hosts": "a"}, ["no option --hosts", "fabric"]),
        ({"worker_num": "x"}, ["--worker_num='x'", "a whole number"]),
        ({"worker_num": [1, 2]}, ["--worker_num is given twice"]),
        ({"job_name": ["a", ["b", "c"]]}, ["--job_name is given twice"]),
        ({"job_name": [["b", "c"]]}, ["local takes no c"]),
        ({"json": True}, ["json", "shells"]),
        ({"detach": True}, ["detach", "shells"]),
        ({"backend": "loca"}, ["no backend 'loca'", "fabric"]),
        ({"program": "trane.py"}, ["trane.py", "did you mean train.py?"]),
        ({"program": "--json"}, ["--json is given twice"]),
        ({"program": lambda: None}, ["can't import <lambda> of", "%%writefile"]),
        ({"program": make_nested()}, ["can't import make_nested.<locals>.nested of", "%%writefile"]),
        ({"program": functools.partial(print)}, ["can't import None of functools"]),
    ],
)
def test_wrong_options_are_errors(ws: Path, options: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        pslaunch.launch(**options)
    assert [name for name in names if name not in str(caught.value)] == []


def test_functions_of_the_main_program_and_of_installed_packages_are_errors(ws: Path) -> None:
    code = "import pslaunch\ndef f(): pass\npslaunch.launch(f)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "nodes can't import f of __main__" in done.stderr
    with pytest.raises(SpecError, match="can't import fixture of"):
        pslaunch.launch(pytest.fixture)


def test_options_become_words(ws: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"env": {"A": 1, "B": "x y"}, "use_gpu": False, "num_passes": 3, "python": None}
    words: Any = pslaunch.launch(ws / "train.py", args=["--lr", 0.1], **options)
    given = ["--env=A=1", "--env=B=x y", "--use_gpu=False", "--num_passes=3"]
    assert words == ["local", "--json", *given, str(ws / "train.py"), "--lr", "0.1"]
    (ws / "pslaunch.toml").write_text("worker_num = 2\n")
    pslaunch.launch()
    assert "note: options also from pslaunch.toml" in capsys.readouterr().err


def test_words_of_mpi_and_k8s(ws: Path) -> None:
    words: Any = pslaunch.launch(backend="mpi", mca=[["btl", "tcp,self"]], worker_num=2)
    assert words == ["mpi", "--json", "--mca=btl", "tcp,self", "--worker_num=2", "train.py"]
    words = pslaunch.launch(backend="k8s", image="i", namespace="n")
    assert words == ["k8s", "apply", "--json", "--image=i", "--namespace=n", "train.py"]


def test_a_function_is_a_program_of_the_folder_of_its_module(
    ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ws / "package_of_ws").mkdir()
    (ws / "package_of_ws/inner.py").write_text("def train(a, b): pass\n")
    monkeypatch.syspath_prepend(str(ws))
    from package_of_ws.inner import train  # type: ignore[import-not-found]

    words: Any = pslaunch.launch(train, args=["a", {"b": [1]}])
    call = [f"--job_dispatch_package={ws}", "--call=train"]
    assert words == ["local", "--json", *call, "package_of_ws/inner.py", '"a"', '{"b": [1]}']
    words = pslaunch.launch(train, job_workspace=ws)
    assert words[2:4] == ["--call=train", f"--job_workspace={ws}"]
    with pytest.raises(TypeError, match="not JSON serializable"):
        pslaunch.launch(train, args=[{1}])


def test_importing_pslaunch_is_light() -> None:
    code = (
        "import sys, pslaunch; print([m for m in sys.modules if m.startswith('pslaunch')], pslaunch.launch)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("['pslaunch'] <function launch")
