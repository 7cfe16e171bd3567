"""Records losses.json with PaddlePaddle 2.6.2, after a change of the import lines:

    python record.py PYTHON

PYTHON is one that has it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Copy all files, change them, and run steps.py."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / HERE.name
        shutil.copytree(HERE, copy, ignore=shutil.ignore_patterns("data", "log", "output", "__pycache__"))
        for path in copy.rglob("*.py"):
            path.write_text(path.read_text().replace("import pslaunch.runtime", "import paddle"))
        subprocess.run([sys.argv[1], "steps.py", "--write", *sys.argv[2:]], cwd=copy, check=True)
        shutil.copy(copy / "losses.json", HERE)


if __name__ == "__main__":
    main()
