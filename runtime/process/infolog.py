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


class InfoLog:
    """Lines in glog's form. A file that can't be written is reported once, and never ends training."""

    def __init__(self, path: Path, program: str = env.TRAINER) -> None:
        self.path, self._program = path, program
        self._file: TextIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", buffering=1, encoding="utf-8")
        except OSError as e:
            self._lose(e)

    def info(self, text: str, level: str = "I") -> None:
        if self._file is None:
            return
        now, one_line = time.time(), text.replace("\n", " ")
        stamp = f"{time.strftime('%m%d %H:%M:%S', time.localtime(now))}.{int(now % 1 * 1e6):06d}"
        try:
            self._file.write(f"{level}{stamp} {os.getpid():5d} {self._program}] {one_line}\n")
        except OSError as e:
            self._lose(e)

    def say(self, text: str) -> None:
        self.info(text)
        print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """Write a warning to the file and to stderr."""
        self.info(text, "W")
        print(f"WARNING: {text}", file=sys.stderr, flush=True)

    def _lose(self, error: OSError) -> None:
        self.close()
        print(f"WARNING: {self.path}: {error.strerror}; training continues without this log", file=sys.stderr)

    def close(self) -> None:
        """Close the file; lines are dropped from then on. May be called twice."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # what it holds back can't be written
                self._file.close()
            self._file = None


def open_server_log(folder: str, job: env.Job) -> InfoLog:
    """Open a pserver's log, without a folder for nothing. Raises OSError naming the option if it can't."""
    name = env.get_info_log(env.PSERVER, job.rank, job.local_rank)
    path = Path(folder, name) if folder else Path(os.devnull)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as e:
        why = f"{e.strerror}{find_remedy(e)}"
        raise OSError(f"--log_dir={folder}: {name} can't be written there: {why}") from None
    return InfoLog(path, env.PSERVER)
