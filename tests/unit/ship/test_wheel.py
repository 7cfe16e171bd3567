"""Wheels of the running pslaunch."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from pslaunch.ship.wheel import RUNTIME_FILES, make_wheel

IMPORT = """
import sys
sys.path.insert(0, sys.argv[1])
import pslaunch, pslaunch.runtime._core as core
print(pslaunch.__file__, core.__file__, sep="|")
"""


def test_wheel_of_the_runtime_is_imported_and_has_no_launcher(tmp_path: Path) -> None:
    packed, there = tmp_path / "x.whl", tmp_path / "there"
    packed.write_bytes(make_wheel(RUNTIME_FILES))
    with zipfile.ZipFile(packed) as wheel:
        info = next(name for name in wheel.namelist() if name.endswith("/RECORD"))
        recorded = [line.split(",")[0] for line in wheel.read(info).decode().splitlines()]
        assert sorted(recorded) == sorted(wheel.namelist())
        assert "pslaunch/cli.py" not in recorded
        wheel.extractall(there)
    argv = [sys.executable, "-I", "-c", IMPORT, str(there)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert all(Path(line).is_relative_to(there) for line in done.stdout.split("|"))


def test_equal_files_give_an_equal_wheel() -> None:
    assert make_wheel(RUNTIME_FILES) == make_wheel(RUNTIME_FILES)
