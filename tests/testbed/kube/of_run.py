"""The one cluster of a run of the tests, made when a test first asks for it."""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path

import pytest

from testbed.__main__ import holder
from testbed.kube.__main__ import down, up

# The folder of the cluster of this run, or of a cluster made by `make kube`, which then stays.
FOLDER = "PSLAUNCH_TEST_KUBE"
STATE = Path("/var/tmp")


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
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (there := holder(folder)) is None:
            up(folder, int(os.environ[f"{FOLDER}_OWNER"]))
        else:
            os.close(there)
    return folder
