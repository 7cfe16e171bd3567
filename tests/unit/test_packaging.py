"""Packages and files listed in pyproject.toml are those on the disk and in the wheel."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
IN_WHEEL = {".py", ".pyi", ".j2", ".typed"}


def packages_on_disk() -> set[str]:
    """Import names of all folders with an `__init__.py` below the mapped ones."""
    found = set()
    for name, folder in SETUPTOOLS["package-dir"].items():
        for init in (ROOT / folder).rglob("__init__.py"):
            found.add(".".join([name, *init.parent.relative_to(ROOT / folder).parts]))
    return found


def test_every_package_is_listed() -> None:
    assert set(SETUPTOOLS["packages"]) == packages_on_disk()


def test_the_version_is_said_once() -> None:
    import pslaunch

    assert pslaunch.__version__ == PROJECT["project"]["version"]


@pytest.mark.slow
def test_wheel_has_every_source_file(tmp_path: Path) -> None:
    # sdist first: a wheel built straight from the tree picks up deleted files from build/lib.
    argv = [sys.executable, "-m", "build", "--no-isolation", "-o", str(tmp_path), str(ROOT)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    for name, folder in SETUPTOOLS["package-dir"].items():
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in IN_WHEEL or file.name == "py.typed":
                assert f"{name.replace('.', '/')}/{file.relative_to(ROOT / folder)}" in names
    assert any(name.startswith("pslaunch/runtime/_core.") for name in names)
    assert not [name for name in names if name.startswith(("launcher/", "runtime/", "templates/", "tests/"))]
    shown = "print(hash(zipapp.make_zipapp()))"
    code = "import sys; sys.path.insert(0, sys.argv[1])\n"
    code += "from pslaunch.ship import zipapp; print(zipapp.__file__)"
    argv = [sys.executable, "-S", "-c", f"{code}; {shown}", str(tmp_path / "installed")]
    theirs = subprocess.run(argv, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "0"})
    assert theirs.stdout.startswith(str(tmp_path))
    argv = [sys.executable, "-c", f"from pslaunch.ship import zipapp; {shown}"]
    ours = subprocess.run(argv, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "0"})
    assert theirs.stdout.endswith(ours.stdout)
    assert wheel.name.startswith(f"pslaunch-{PROJECT['project']['version']}-cp311-abi3-")
