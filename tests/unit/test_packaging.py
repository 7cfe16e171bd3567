"""Packages and files listed in pyproject.toml are those on the disk and in the wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import pslaunch
from pslaunch.errors import EXTRAS
from support.others import PROGRAMS
from support.wheelhouse import list_needs, make_wheelhouse

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
IN_WHEEL = {".py", ".pyi", ".j2", ".typed", ".md"}
PAGES = "pslaunch.docs"  # no modules


def find_mapped(file: Path) -> str:
    """Return the mapped folder that has a file: the innermost one."""
    folders: list[str] = [*SETUPTOOLS["package-dir"].values()]
    return max((folder for folder in folders if file.is_relative_to(ROOT / folder)), key=len)


def packages_on_disk() -> set[str]:
    """Import names of all folders with an `__init__.py` below the mapped ones."""
    found = set()
    for name, folder in SETUPTOOLS["package-dir"].items():
        for init in (ROOT / folder).rglob("__init__.py"):
            if find_mapped(init) == folder:
                found.add(".".join([name, *init.parent.relative_to(ROOT / folder).parts]))
    return found


def test_every_package_is_listed() -> None:
    assert set(SETUPTOOLS["packages"]) == packages_on_disk() | {PAGES}
    assert not [*(ROOT / SETUPTOOLS["package-dir"][PAGES]).rglob("*.py")]


def test_each_extra_brings_the_modules_that_are_asked_of_it() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    for extra, modules in EXTRAS.items():
        assert modules.keys() <= {Requirement(text).name for text in extras[extra]}
    assert extras["all"] == [f"pslaunch[{','.join(sorted(extras.keys() - {'all'}))}]"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # sdist first: a wheel built straight from the tree picks up deleted files from build/lib.
    folder = tmp_path_factory.mktemp("built")
    argv = [sys.executable, "-m", "build", "--no-isolation", "-o", str(folder), str(ROOT)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.slow
def test_wheel_has_every_source_file(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    for name, folder in SETUPTOOLS["package-dir"].items():
        for file in (ROOT / folder).rglob("*"):
            own = find_mapped(file) == folder
            if own and (file.suffix in IN_WHEEL or file.name == "py.typed"):
                assert f"{name.replace('.', '/')}/{file.relative_to(ROOT / folder)}" in names
    assert any(name.startswith("pslaunch/runtime/_core.") for name in names)
    assert not [
        name for name in names if name.startswith(("launcher/", "runtime/", "templates/", "tests/", "docs/"))
    ]
    shown = "print(hash(zipapp.make_zipapp()))"
    code = "import sys; sys.path.insert(0, sys.argv[1])\n"
    code += "from pslaunch.ship import zipapp; print(zipapp.__file__)"
    argv = [sys.executable, "-S", "-c", f"{code}; {shown}", str(tmp_path / "installed")]
    theirs = subprocess.run(argv, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "0"})
    assert theirs.stdout.startswith(str(tmp_path))
    argv = [sys.executable, "-c", f"from pslaunch.ship import zipapp; {shown}"]
    ours = subprocess.run(argv, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "0"})
    assert theirs.stdout.endswith(ours.stdout)
    assert wheel.name.startswith(f"pslaunch-{pslaunch.__version__}-cp311-abi3-")


@pytest.mark.slow
def test_base_install_runs_a_job_without_a_compiler_and_names_the_extra_of_another(
    wheel: Path, tmp_path: Path
) -> None:
    """`make dist` does the same with a network, and on arm64."""
    needs = [Requirement(text).name for text in PROJECT["project"]["dependencies"]]
    house = make_wheelhouse(tmp_path / "house", list_needs(*needs))
    python = tmp_path / "venv/bin/python"
    environ = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "CC": "false"}

    def run(*argv: str | Path, code: int = 0) -> str:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environ, cwd=tmp_path)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    run(python, "-m", "pip", "install", "--no-index", f"--find-links={house}", wheel)
    shutil.copy(PROGRAMS / "line.py", tmp_path)
    job = run("pslaunch", "local", "--server_num=2", "--worker_num=2", "line.py")
    assert job.count("the cost fell from") == 2
    hosts = "--hosts=localhost", "--job_dispatch_package=.", "line.py"
    assert "this needs Fabric: pip install 'pslaunch[ssh]'" in run("pslaunch", "fabric", *hosts, code=78)
    told = run("pslaunch", "k8s", "render", "--image=x", "line.py", code=78)
    assert "pip install 'pslaunch[k8s]'" in told
    assert "Jobs on hosts by SSH" in run("pslaunch", "help")
    shown = run(python, "-m", "pip", "show", "--verbose", "pslaunch")
    assert f"Version: {pslaunch.__version__}" in shown and "Topic :: System :: Clustering" in shown
