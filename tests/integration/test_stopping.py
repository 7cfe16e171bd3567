"""Ctrl+C is heard whatever a launcher of jobs on hosts is waiting for."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.jobs import PSLAUNCH, QUICK, FabricPlace, running
from support.process import started
from testbed import Hosts

SOON_S = 6.0  # an interpreter of a busy machine has to end
LARGE = "import os\nos.truncate(os.open('output/large', os.O_CREAT | os.O_RDWR), 4 << 30)\n"


@pytest.mark.parametrize("head", ["launcher", "node"])
def test_while_a_host_does_not_answer(workspace: Path, head: str) -> None:
    (workspace / "train.py").write_text("print('never')")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(20)
        where = (f"--hosts=me@127.0.0.1:{silent.getsockname()[1]}", f"--root_dir={workspace}/there")
        options = (f"--job_dispatch_package={workspace}", "--connect_timeout=60", f"--head={head}")
        with started([*PSLAUNCH, "fabric", *where, *options, "train.py"]) as launcher:
            with silent.accept()[0]:
                launcher.proc.send_signal(signal.SIGINT)
                assert launcher.wait(timeout_s=SOON_S) == codes.INT, launcher.output()
            assert "PROBLEM" not in launcher.output()  # nobody wants to know now


def test_while_results_are_fetched(hosts: Hosts, workspace: Path, tmp_path: Path) -> None:
    (workspace / "train.py").write_text(LARGE)
    place = FabricPlace(hosts)
    with running(place, workspace, "--server_num=0", f"--fetch_output={tmp_path}/results", *QUICK) as job:
        job.until(lambda events: any(e["event"] == "end" for e in events), "the job's end")
        job.launcher.proc.send_signal(signal.SIGINT)
        assert job.launcher.wait(timeout_s=SOON_S) == codes.INT, job.launcher.output()
        assert "fetching results was interrupted" in job.launcher.output()
