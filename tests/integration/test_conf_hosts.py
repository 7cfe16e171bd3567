"""A job whose cluster a conf.py describes, on hosts by SSH: what it says is what every process sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node import codes
from support.jobs import PSLAUNCH, parse_events
from support.process import started
from testbed import Hosts

CONF = """
HOSTS = [
    "{user}@{hosts[0].name}",
    "{user}@{hosts[1].name}",
    "{user}@{hosts[1].name}",
]
'''
where workspaces go
'''
ROOT_DIR = "{hosts.root_dir}"
PADDLE_NIC = "eth0"
PADDLE_PORT = 7164
PADDLE_PORTS_NUM = 2
PADDLE_PORTS_NUM_FOR_SPARSE = 1
PADDLE_USE_GPU = "False"
LD_LIBRARY_PATH = "/usr/local/cuda/lib64:/usr/lib64"
WORDS = "a  b'c$HOME"
"""

# In both roles. Pservers end at their signal, which comes after the trainers' end: these wait for them.
SHOW = """
import contextlib, json, os, signal, socket, sys, time
names = ("PADDLE_INIT_", "PADDLE_PSERVERS", "PSLAUNCH_NODE", "LD_", "WORDS", "POD_IP", "TRAINING_ROLE")
found = {name: value for name, value in os.environ.items() if name.startswith(names)}
print(json.dumps({"argv": sys.argv, **found}), flush=True)
if os.environ["TRAINING_ROLE"] == "PSERVER":
    with socket.create_server((os.environ["POD_IP"], int(os.environ["PADDLE_PORT"]))):
        signal.sigwait([signal.SIGTERM])
    sys.exit()
for endpoint in os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(","):
    host, _, port = endpoint.rpartition(":")
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection((host, int(port))).close()
            break
        time.sleep(0.02)
"""


@pytest.fixture
def folder(tmp_path: Path, hosts: Hosts) -> Path:
    """A folder with a conf.py for two of the hosts, and a package with a program."""
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/train.py").write_text(SHOW)
    (tmp_path / "conf.py").write_text(CONF.format(hosts=hosts, user=hosts[0].user))
    return tmp_path


def run(hosts: Hosts, folder: Path, *words: str) -> tuple[int, str, dict[str, dict[str, Any]]]:
    """Exit code, output, and what each process saw."""
    argv = hosts.as_user([*PSLAUNCH, "fabric", "--json", *words])
    with started(argv, cwd=folder) as launcher:
        code = launcher.wait(timeout_s=60)
        events = parse_events(launcher.output())
        return (
            code,
            launcher.output(),
            {
                e["process"]: json.loads(e["text"])
                for e in events
                if e["event"] == "line" and e["text"].startswith("{")
            },
        )


def test_a_published_conf_beside_the_command(hosts: Hosts, folder: Path) -> None:
    code, output, seen = run(hosts, folder, "--job_dispatch_package=ws", "--num_passes=3", "--lr=0.1")
    assert code == codes.OK, output
    assert sorted(seen) == [f"{role}/{i}" for role in ("pserver", "trainer") for i in range(3)]
    first, second = (seen[f"trainer/{i}"]["POD_IP"] for i in (0, 1))
    assert first != second
    for name, found in seen.items():
        assert (found["LD_LIBRARY_PATH"], found["WORDS"]) == (
            "/usr/local/cuda/lib64:/usr/lib64",
            "a  b'c$HOME",
        ), name
        assert found["PADDLE_PSERVERS_IP_PORT_LIST"] == f"{first}:7164,{second}:7164,{second}:7167"
        assert found["PADDLE_INIT_PORTS_NUM"] == "2" and found["PADDLE_INIT_PORTS_NUM_FOR_SPARSE"] == "1"
        assert found["PADDLE_INIT_USE_GPU"] == "False" and found["argv"][1:] == ["--lr=0.1"]
        assert ("PADDLE_INIT_NUM_PASSES" in found) == name.startswith("trainer")
    assert [seen[f"trainer/{i}"]["PSLAUNCH_NODE_ID"] for i in range(3)] == ["0", "1", "1"]
    assert (hosts[0].root / "ws/log/train.log").exists() and (hosts[1].root / "ws/log/train.2.log").exists()
    assert not (hosts[2].root / "ws").exists()


def test_a_workspace_that_is_there_already(hosts: Hosts, folder: Path) -> None:
    for host in hosts:
        (host.root / "there").mkdir()
        (host.root / "there/mine.py").write_text(SHOW)
    line = (
        f"--job_workspace={hosts.root_dir}/there",
        "--exclude",
        hosts[1].name,
        "--server=script",
        "mine.py",
        "--x",
    )
    code, output, seen = run(hosts, folder, *line)
    assert code == codes.OK, output
    assert sorted(seen) == ["pserver/0", "trainer/0"]
    assert seen["trainer/0"]["argv"] == ["mine.py", "--x"]


def test_an_interface_that_a_host_has_not(hosts: Hosts, folder: Path) -> None:
    code, output, _ = run(hosts, folder, "--job_dispatch_package=ws", "--nics=ib7", "--detach")
    assert code == codes.PREFLIGHT, output
    assert "'ib7' does not exist; known: eth0 " in output
    assert "an interface that every host has (PADDLE_NIC, --nics)" in output  # of the table
