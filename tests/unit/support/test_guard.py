"""A run of the tests that is killed leaves nothing behind."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

from support.process import poll_until, started, until_gone

TESTS = Path(__file__).parents[2]
RUN = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from support import guard
mark, folder = sys.argv[2:]
guard.start(mark, folder)
name, _, value = mark.partition("=")
stubborn = "import signal; signal.signal(15, signal.SIG_IGN); print('here', flush=True); signal.pause()"
argv = [sys.executable, "-c", stubborn]
job = subprocess.Popen(argv, env=os.environ | {name: value}, start_new_session=True)
print("job", job.pid, flush=True)
job.wait()
"""


def test_processes_of_a_killed_run_end_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "of the run"
    folder.mkdir()
    mark = f"PSLAUNCH_TEST_GUARDED={uuid.uuid4().hex}"
    with started([sys.executable, "-c", RUN, str(TESTS), mark, str(folder)]) as run:
        job = int(run.expect(r"^job (\d+)$")[1])
        run.expect("^here$")
        os.kill(run.pid, 9)
        until_gone(job, within_s=20)
    poll_until(lambda: not folder.exists(), describe=f"{folder} is removed")
