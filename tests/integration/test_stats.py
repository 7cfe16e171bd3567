"""`pslaunch stats` and --metrics_port: numbers of real pservers, before and while they train."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslaunch.runtime.client.caller import Caller
from pslaunch.runtime.shared import env
from support.jobs import LocalPlace, run_pslaunch, succeeded
from support.process import poll_until
from support.pservers import HOST, PLAIN, ZERO, Cluster, cluster, find_free_ports, run_trainers

pytestmark = pytest.mark.asan

SIZE, DIM, KEYS = 1000, 4, np.arange(30, dtype=np.uint64)


def run_stats(found: Cluster, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command for the first pserver."""
    return run_pslaunch("stats", env.join_addr(*found.endpoints[0]), *options)


def read_stats(found: Cluster, *options: str) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of the first pserver."""
    done = run_stats(found, "--json", *options)
    assert done.returncode == 0, done.stderr
    tables: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return tables


def create(c: Caller) -> None:
    """Make the objects of these tests."""
    c.connect()
    c.create_dense("w", SIZE, PLAIN)
    c.create_sparse("e", 100, DIM, PLAIN, ZERO)
    c.init_dense({"w": np.zeros(SIZE, np.float32)})


def push(c: Caller) -> None:
    """Do one step."""
    rows = KEYS, np.ones((len(KEYS), DIM), np.float32)
    c.push_pull({"w": np.ones(SIZE, np.float32)}, {"w": np.empty(SIZE, np.float32)}, {"e": rows})


def test_numbers_are_those_of_the_pushes_also_while_a_trainer_waits(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"of the job\n")
    secret = f"--secret_file={tmp_path}/secret"
    with cluster(trainers=2, options=[secret, "--stall_after=0.2"]) as found:
        found.secret_file = f"{tmp_path}/secret"
        before = read_stats(found, secret)
        assert before["job"][0]["connected"] == 0 and before["job"][0]["expected"] == 2
        assert before["trainer"] == before["object"] == []
        refused = run_stats(found)
        assert refused.returncode == 78 and "secret is not the pserver's" in refused.stderr
        clients = [found.client(t) for t in range(2)]
        run_trainers(2, lambda t: create(clients[t]))
        for _ in range(3):
            run_trainers(2, lambda t: push(clients[t]))
        waiting = threading.Thread(target=push, args=(clients[0],))
        waiting.start()

        def read_stall() -> dict[str, list[dict[str, Any]]]:
            tables = read_stats(found, secret)
            return tables if tables["stall"] else {}

        tables = poll_until(read_stall, describe="a wait is reported")
        assert tables["stall"][0]["text"] == "step 4 of 'w' waits for trainer 1"
        assert [row["connected"] for row in tables["trainer"]] == [1, 1]
        assert tables["trainer"][0]["wait_age_s"] >= 0.2 and tables["trainer"][1]["wait_age_s"] is None
        ages = {row["object"]: row.pop("update_age_s") for row in tables["object"]}
        assert all(0 < age < 150 for age in ages.values())
        shared = {"shard": 0, "updates": 3, "keys": 0, "dropped": 0, "pushes": 0, "ages": 0}
        assert tables["object"] == [
            {**shared, "object": "w", "rows": 0, "bytes": 4 * SIZE},
            {**shared, "object": "e", "rows": len(KEYS), "bytes": len(KEYS) * (8 + 4 * DIM)},
        ]
        pushed = 4 * SIZE + len(KEYS) * (8 + 4 * DIM) + 2 * 64
        answered = 4 * SIZE + 2 * 64
        assert 3 * pushed < tables["trainer"][1]["in_bytes"] < 4 * pushed
        assert 3 * answered < tables["trainer"][1]["out_bytes"] < 4 * answered
        lines = run_stats(found, secret).stdout.splitlines()
        assert any("step 4 of 'w' waits for trainer 1" in line for line in lines)
        push(clients[1])
        waiting.join(60)
        assert read_stats(found, secret)["trainer"][0]["waited_s"] >= 0.2
        run_trainers(2, lambda t: clients[t].finish())
        assert found.codes() == [0]


def read_metrics(port: int) -> str:
    """Return what Prometheus would read there."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def test_dropped_pushes_ages_and_metrics_of_an_asynchronous_training() -> None:
    port = find_free_ports(1)
    with cluster(trainers=2, options=[f"--metrics_port={port}"]) as found:
        clients = [found.client(t, mode="half_async", discard=2) for t in range(2)]
        run_trainers(2, lambda t: create(clients[t]))
        for c in clients:
            c.mark()
        for t in (0, 0, 1):  # the last one is computed from values that are two updates old
            push(clients[t])
            clients[0].mark()
        tables = read_stats(found)
        text = read_metrics(port)
        for row in tables["object"]:
            assert (row["updates"], row["pushes"], row["dropped"]) == (2, 3, 1), row
            label = f'{{shard="0",object="{row["object"]}"}}'
            assert f"pslaunch_pserver_object_dropped_total{label} 1\n" in text
            assert f"pslaunch_pserver_object_ages_total{label} {row['ages']}\n" in text
        assert [row["dropped"] for row in tables["trainer"]] == [0, 2]
        run_trainers(2, lambda t: clients[t].finish())
        assert found.codes() == [0]


PROGRAM = """
import os, subprocess, sys, urllib.request
import pslaunch.runtime

for i, address in enumerate(os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")):
    subprocess.run([sys.executable, "-m", "pslaunch.runtime.client.observe", address], check=True)
    with urllib.request.urlopen(f"http://127.0.0.1:{int(sys.argv[1]) + i}/metrics", timeout=60) as answer:
        assert "pslaunch_pserver_job_expected" in answer.read().decode()
"""


def test_each_pserver_of_a_job_has_metrics_and_its_programs_may_ask(tmp_path: Path) -> None:
    port = find_free_ports(2)
    (tmp_path / "ask.py").write_text(PROGRAM)
    options = "--server_num=2", f"--metrics_port={port}"
    job = succeeded(LocalPlace(2), tmp_path, *options, program=["ask.py", str(port)])
    said = job.lines("trainer/0")
    assert sum(job.get_job()["job"] in line for line in said) == 2, said
