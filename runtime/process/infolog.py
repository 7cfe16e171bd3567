"""paddle_trainer.INFO: the log of a trainer, also for a plain `python train.py`."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from ..shared import env
from .settings import Settings


def get_log_path(settings: Settings) -> Path:
    """Return the log file of this trainer; in `./log/` unless the launcher or the program names a folder."""
    job = settings.job
    folder = settings.log_dir or job.log_dir or "log"
    if job.launched:
        return Path(folder) / env.get_info_log(env.TRAINER, job.rank, job.local_rank)
    return Path(folder) / env.get_info_log(env.TRAINER, settings.trainer_id, settings.trainer_id)


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Return the metrics in one line, each as name=value."""
    return " ".join(f"{name}={value:.6g}" for name, value in metrics.items())


def format_line(level: str, program: str, text: str) -> str:
    """Return a line of a log in glog's form."""
    now, one_line = time.time(), text.replace("\n", " ")
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now))
    return f"{level}{stamp}.{int(now % 1 * 1e6):06d} {os.getpid():5d} {program}] {one_line}\n"


class InfoLog:
    """Appends lines in glog's form. A log that can't be written is reported once and never ends training."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", buffering=1, encoding="utf-8")
        except OSError as e:
            self._warn_lost(e)

    def info(self, text: str) -> None:
        """Write a line to the file."""
        self._write("I", text)

    def say(self, text: str) -> None:
        """Write a line to the file and to stderr."""
        self._write("I", text)
        print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """Write a warning to the file and to stderr."""
        self._write("W", text)
        print(f"WARNING: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, level: str, text: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(format_line(level, "trainer", text))
        except OSError as e:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):  # what it holds back can't be written either
                file.close()
            self._warn_lost(e)

    def _warn_lost(self, error: OSError) -> None:
        print(f"WARNING: {self.path}: {error.strerror}; training continues without this log", file=sys.stderr)
