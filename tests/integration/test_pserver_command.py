"""`python -m pslaunch.runtime.pserver`: its options, what it prints, its signals."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from support.process import started
from support.pservers import HOST, bind_block, find_free_ports, make_caller

pytestmark = pytest.mark.asan


def pserver(*options: str) -> list[str]:
    """A command line."""
    return [sys.executable, "-P", "-m", "pslaunch.runtime.pserver", *options]


def test_a_busy_port_names_its_holder() -> None:
    (sock,) = bind_block(1)
    port = sock.getsockname()[1]
    with sock, started(pserver("--host=127.0.0.1", f"--port={port}")) as process:
        assert process.wait() == 69
    assert f"port {port}" in process.output()
    assert f"held by pid {os.getpid()} " in process.output()


def test_unusable_options_are_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for options, code, words in (
        (["--port=70000"], 2, "--port"),
        (["--nosuch=1"], 2, "--nosuch"),
        (["--prot=7164"], 2, "unknown option '--prot=7164'; did you mean --port?"),
        (["--port=7401", "--port", "7402"], 2, "--port is given twice"),
        (["--host=192.0.2.1", "--port=7401"], 69, "Cannot assign requested address"),
        ([f"--secret_file={tmp_path}/no"], 2, f"--secret_file={tmp_path}/no: No such file or directory"),
        (["--nics=nope0"], 2, "--nics: the interface 'nope0' does not exist; known: "),
        (
            [f"--log_dir={tmp_path}/file/log", "--port=7403"],
            74,
            f"{tmp_path}/file/log: paddle_pserver2.INFO can't be",
        ),
    ):
        with started(pserver(*options)) as process:
            assert process.wait() == code, process.output()
        (line,) = process.output().splitlines()
        assert words in line and "attempting" not in line, line


def test_log_announcement_hangup_and_term(tmp_path: Path) -> None:
    port = find_free_ports()
    nohup = (
        "import os,signal,sys;signal.signal(signal.SIGHUP,signal.SIG_IGN);os.execv(sys.argv[1],sys.argv[1:])"
    )
    argv = [sys.executable, "-c", nohup, *pserver(f"--port={port}", f"--log_dir={tmp_path}")]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with started(argv, env=env, ready=f"Server listening on 0.0.0.0:{port} selected port: {port}") as process:
        process.expect("no secret")
        process.expect(r"0 of 1 trainers connected \(num_gradient_servers counts trainers\)")
        process.proc.send_signal(signal.SIGHUP)
        with make_caller([(HOST, port)]) as c:
            c.connect()
        process.expect("1 of 1 trainers connected")
        process.proc.send_signal(signal.SIGTERM)
        assert process.wait() == 143
    assert "trainer 0 at 127.0.0.1" in (tmp_path / "paddle_pserver2.INFO").read_text()
