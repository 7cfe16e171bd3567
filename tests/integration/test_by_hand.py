"""pserver and trainers started by hand, word by word as the ancestor's pages say it."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.cluster import TESTS
from support.process import Started, poll_until, started
from support.pservers import find_free_ports

PROGRAM = """
import pslaunch.runtime as paddle
from support.models import digest, ngram_cost, ngrams

paddle.init(use_gpu=False, trainer_count=1)
cost = ngram_cost(sparse=True)
parameters = paddle.parameters.create(cost)
optimizer = paddle.optimizer.AdaGrad(learning_rate=2e-2)
trainer = paddle.trainer.SGD(cost, parameters, optimizer, is_local=False)
trainer.train(paddle.batch(ngrams(64), 16), 2)
print("digest", digest(parameters))
"""
# In a terminal: the shell stays until it is closed. Without job control the pserver is in the
# foreground's group, so that it gets the terminal's HUP as well.
IN_TERMINAL = """
stdbuf -oL nohup {pserver} --port={port} --ports_num=1 --ports_num_for_sparse=1 \
--num_gradient_servers={trainers} &> pserver.log &
echo $! > pid
read line
"""


@contextlib.contextmanager
def terminal(folder: Path, commands: str) -> Iterator[int]:
    """A shell with a terminal of its own; yields the terminal's other end, to be closed."""
    master, slave = os.openpty()
    with contextlib.closing(os.fdopen(master, "rb", buffering=0)) as screen:
        argv = ["setsid", "--ctty", "bash", "-c", commands]
        environ = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        shell = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=environ)
        os.close(slave)
        try:
            yield screen.fileno()
            screen.close()
            shell.wait(10)
        finally:
            shell.kill()
            shell.wait()


def trainers(folder: Path, n: int, port: int) -> list[contextlib.AbstractContextManager[Started]]:
    """`PADDLE_INIT_… python train.py`, one after the other."""
    (folder / "train.py").write_text(PROGRAM)
    environ = os.environ | {
        "PADDLE_INIT_PSERVERS": "127.0.0.1",
        "PADDLE_INIT_PORT": str(port),
        "PADDLE_INIT_PORTS_NUM_FOR_SPARSE": "1",
        "PADDLE_INIT_NUM_GRADIENT_SERVERS": str(n),
        "PYTHONPATH": str(TESTS),
    }
    argv = [sys.executable, "train.py"]
    return [started(argv, cwd=folder, env=environ | {"PADDLE_INIT_TRAINER_ID": str(i)}) for i in range(n)]


def digests(processes: Sequence[Started]) -> set[str]:
    """Return the digests of the trainers' values at the end; all trainers must end well."""
    found = set()
    for process in processes:
        assert process.wait() == 0, process.output()
        found.add(process.expect(r"^digest (\w+)$").group(1))
    return found


@contextlib.contextmanager
def held(pid: int) -> Iterator[int]:
    """A descriptor of a process that is not our child; it is killed at the end if it is still there."""
    fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)


def test_a_pserver_in_the_background_outlives_its_terminal_and_ends_by_itself(tmp_path: Path) -> None:
    n, port = 2, find_free_ports(2)
    log = tmp_path / "pserver.log"
    pserver = shlex.join([sys.executable, "-P", "-m", "pslaunch", "pserver"])
    said: list[str] = []
    with contextlib.ExitStack() as stack:
        with terminal(tmp_path, IN_TERMINAL.format(pserver=pserver, port=port, trainers=n)):
            poll_until(lambda: log.is_file() and f"0 of {n} trainers" in log.read_text(), describe="no lines")
            pid = int((tmp_path / "pid").read_text())
            process = stack.enter_context(held(pid))
            said = log.read_text().splitlines()
        assert not select.select([process], [], [], 0)[0], "it is there without its terminal"
        found = [stack.enter_context(t) for t in trainers(tmp_path, n, port)]
        assert len(digests(found)) == 1
        assert select.select([process], [], [], 10)[0], "it ends by itself"
    for p in (port, port + 1):
        assert f"Server listening on 0.0.0.0:{p} selected port: {p}" in said
    after = log.read_text().splitlines()[len(said) :]
    assert after == [
        *(f"{i} of {n} trainers connected (num_gradient_servers counts trainers)" for i in range(1, n + 1)),
        "all trainers finished",
    ]


def test_trainers_may_be_there_first(tmp_path: Path) -> None:
    port = find_free_ports(2)
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(t) for t in trainers(tmp_path, 2, port)]
        for process in processes:
            process.expect(r"server not ready, wait 0\.05 sec to retry\.\.\.")
            process.expect(rf"not ready endpoints:\['127.0.0.1:{port}', '127.0.0.1:{port + 1}'\]")
        argv = [
            sys.executable,
            "-P",
            "-m",
            "pslaunch",
            "pserver",
            f"--port={port}",
            "--ports_num_for_sparse=1",
        ]
        pserver = stack.enter_context(started([*argv, "--num_gradient_servers=2", "--host=127.0.0.1"]))
        assert len(digests(processes)) == 1
        assert pserver.wait() == 0
