"""The word2vec example with little text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.others import ROOT


def make_workspace(folder: Path) -> None:
    """Make the example's workspace for two trainers: six batches from the license."""
    prepare = ROOT / "examples" / "word2vec" / "prepare.py"
    options = ("--split_count=2", "--min_freq=3", f"--corpus={ROOT / 'LICENSE'}")
    subprocess.run([sys.executable, prepare, folder, *options], check=True)
