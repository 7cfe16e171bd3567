"""paddle_pserver2.INFO: log of one pserver's connections, steps, waits and drops."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TextIO

from ..process.infolog import format_line
from ..shared import env
from ..shared.remedies import find_remedy


class ServerLog:
    """Appends lines in glog's form; drops them without a folder, or once the disk is full."""

    def __init__(self, folder: str, job: env.Job) -> None:
        """Open the log. Raises OSError naming the option if the folder or the file can't be created."""
        self._file: TextIO | None = None
        if folder:
            name = env.get_info_log(env.PSERVER, job.rank, job.local_rank)
            try:
                Path(folder).mkdir(parents=True, exist_ok=True)
                self._file = (Path(folder) / name).open("a", buffering=1, encoding="utf-8")
            except OSError as e:
                why = f"{e.strerror}{find_remedy(e)}"
                raise OSError(f"--log_dir={folder}: {name} can't be written there: {why}") from None

    def write(self, text: str) -> None:
        """Write a line."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.write(format_line("I", "pserver", text))

    def close(self) -> None:
        """Close the log. May be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None
