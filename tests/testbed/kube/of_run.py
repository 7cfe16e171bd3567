"""The one cluster of a run of the tests, made when a test first asks for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.__main__ import holder
from testbed.kube.__main__ import down, up
from testbed.kube.cluster import make_import
from testbed.kube.node import make_entry

# The folder of the cluster of this run, or of a cluster made by `make kube`, which then stays.
FOLDER = "PSLAUNCH_TEST_KUBE"
STATE = Path("/var/tmp")
LOAD_S = 200.0  # of a busy disk


def begin_run(pytest_config: pytest.Config) -> None:
    """Choose the folder for the whole run, in the parent of its workers; remove the cluster at its end."""
    if FOLDER in os.environ:
        return
    folder = STATE / f"pslt-kube-{uuid.uuid4().hex[:8]}"  # made when it is needed
    os.environ[FOLDER] = str(folder)

    def end() -> None:
        down(folder)

    pytest_config.add_cleanup(end)
    # For workers: the process at whose end the cluster ends too, however it ends.
    os.environ[f"{FOLDER}_OWNER"] = str(os.getpid())


def find() -> Path:
    """Return the folder of the run's cluster; the first worker that asks makes it."""
    folder = Path(os.environ[FOLDER])
    folder.mkdir(exist_ok=True)
    with _lock(folder):
        if (there := holder(folder)) is None:
            up(folder, int(os.environ[f"{FOLDER}_OWNER"]))
        else:
            os.close(there)
    return folder


def load(image: str, archive: Path | None = None) -> None:
    """Bring another image to the nodes of the run's cluster, as `make_import` does. May be done again."""
    folder = find()
    with _lock(folder):
        for init in (folder / "nodes").read_text().split():
            argv = make_entry(int(init), make_import(image, archive))
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=LOAD_S, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout.decode(errors="replace")


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let one worker in at a time."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
