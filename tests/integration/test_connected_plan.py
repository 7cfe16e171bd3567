"""--dry_run --connect: the plan with what only the hosts know, and nothing started or left there."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from pslaunch.node import codes
from support.jobs import run_pslaunch
from testbed import Hosts


def connected(hosts: Hosts, package: Path, *options: str) -> subprocess.CompletedProcess[str]:
    where = [
        f"--hosts={','.join(h.name for h in hosts)}",
        "--root_dir=~/jobs",
        f"--job_dispatch_package={package}",
    ]
    return run_pslaunch("fabric", "--dry_run", "--connect", "--json", *where, *options, hosts=hosts)


def test_addresses_paths_pythons_and_free_ports_are_literal(hosts: Hosts, workspace: Path) -> None:
    (workspace / "train.py").write_text("import os\nos.environ['TRAINING_ROLE']\n")
    done = connected(hosts, workspace, "--job_name=dry", "--server=script")
    assert done.returncode == 0, done.stderr
    plan: dict[str, Any] = json.loads(done.stdout)
    home = hosts[0].run("sh", "-c", "echo $HOME").stdout.strip()
    assert [(n["addr"], n["workspace"], n["python"]) for n in plan["nodes"]] == [
        (h.address, f"{home}/jobs/dry", "/usr/bin/python3") for h in hosts
    ]
    env = plan["processes"][0]["env"]
    assert env["PADDLE_PSERVERS_IP_PORT_LIST"] == ",".join(f"{h.address}:7164" for h in hosts)
    assert "{" not in " ".join([*plan["processes"][0]["argv"], env["PSLAUNCH_NODES"], env["PADDLE_PORT"]])
    for host in hosts:
        assert host.processes() == {} and host.run("ls", "-A", f"{home}/jobs", check=False).returncode != 0


def test_faulty_host_is_reported_in_the_table_of_check(hosts: Hosts, workspace: Path) -> None:
    (workspace / "train.py").write_text("")
    done = connected(hosts, workspace, "--nics=eth77", "--server_num=0")
    assert done.returncode == codes.PREFLIGHT and not done.stdout
    assert "eth77" in done.stderr and done.stderr.count("node2") >= 1
