"""paddle_trainer.INFO and paddle_pserver2.INFO: logs of trainers and pservers, also without a launcher."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from ..shared import env
from ..shared.remedies import find_remedy
from .settings import Settings


def get_log_path(settings: Settings) -> Path:
    """Return the log file of this trainer; in `./log/` unless the launcher or the program names a folder."""
    job = settings.job
    folder = settings.log_dir or job.log_dir or "log"
    if job.launched:
        return Path(folder) / env.get_info_log(env.TRAINER, job.rank, job.local_rank)
    return Path(folder) / env.get_info_log(env.TRAINER, settings.trainer_id, settings.trainer_id)


def format_metrics(metrics: Mapping[str, float]) -> str:
    return " ".join(f"{name}={value:.6g}" for name, value in metrics.items())


class _GlogFile:
    """A file of lines in glog's form. Without it lines are dropped."""

    program: str
    _file: TextIO | None = None

    def _open(self, path: Path) -> None:
        """Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def _write(self, level: str, text: str) -> None:
        """Write a line. Raises OSError."""
        if self._file is not None:
            now, one_line = time.time(), text.replace("\n", " ")
            stamp = f"{time.strftime('%m%d %H:%M:%S', time.localtime(now))}.{int(now % 1 * 1e6):06d}"
            self._file.write(f"{level}{stamp} {os.getpid():5d} {self.program}] {one_line}\n")

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None


class InfoLog(_GlogFile):
    """Log of a trainer. One that can't be written is reported once and never ends training."""

    program = "trainer"

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._open(path)
        except OSError as e:
            self._warn_lost(e)

    def info(self, text: str) -> None:
        self._append("I", text)

    def say(self, text: str) -> None:
        self._append("I", text)
        print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """Write a warning to the file and to stderr."""
        self._append("W", text)
        print(f"WARNING: {text}", file=sys.stderr, flush=True)

    def _append(self, level: str, text: str) -> None:
        try:
            self._write(level, text)
        except OSError as e:
            with contextlib.suppress(OSError):  # what it holds back can't be written either
                self.close()
            self._file = None
            self._warn_lost(e)

    def _warn_lost(self, error: OSError) -> None:
        print(f"WARNING: {self.path}: {error.strerror}; training continues without this log", file=sys.stderr)


class ServerLog(_GlogFile):
    """Log of a pserver's connections, steps, waits and drops; it drops lines once the disk is full."""

    program = "pserver"

    def __init__(self, folder: str, job: env.Job) -> None:
        """Open it, if there is a folder. Raises OSError naming the option if it can't be created."""
        name = env.get_info_log(env.PSERVER, job.rank, job.local_rank)
        try:
            if folder:
                self._open(Path(folder) / name)
        except OSError as e:
            why = f"{e.strerror}{find_remedy(e)}"
            raise OSError(f"--log_dir={folder}: {name} can't be written there: {why}") from None

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._write("I", text)
