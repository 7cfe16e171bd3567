"""One exchange of a parameter server's data plane, done by a pserver, by plain Python sockets, by a C stream.

Plain Python is `sendall`, `recv_into`, numpy's loops and a thread for each connection: no frames, no
versions, no order of sums, no second chance. The C stream computes nothing at all. Each is a contender of
turns.py: it is started once, then measures a few rounds whenever it is its turn.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pslaunch.runtime import Client
from pslaunch.runtime.client.caller import Caller, Init
from pslaunch.runtime.engine.kernel_numbers import Optim
from pslaunch.runtime.process.settings import resolve
from turns import Turn

F32 = npt.NDArray[np.float32]
Keys = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Array = F32 | Keys | Bytes
Address = tuple[str, int]
Step = Callable[[], object]
HOST = "127.0.0.1"
ROWS, DIM, VOCABULARY = 5_500, 16, 100_000
LEARNING_RATE = 0.01
SPAWN = mp.get_context("spawn")


@dataclass(frozen=True, kw_only=True)
class Case:
    """An exchange: `what` is push, pull or step (both); `size` floats, or with 0 rows of `tables` tables."""

    what: str
    size: int
    workers: int = 1
    ports: int = 1
    tables: int = 1
    rows: int = ROWS  # of each table
    apart: bool = False  # the rows of each table are pulled by a call of their own

    @property
    def bytes_moved(self) -> int:
        """By all workers in a round, values alone."""
        values = self.size or ROWS * DIM
        return 4 * values * self.workers * (2 if self.what == "step" else 1)

    @property
    def rounds(self) -> int:
        """In one turn."""
        return 8 if self.size > 1 << 20 else 100


# --- plain Python ---


def receive(sock: socket.socket, array: Array) -> bool:
    """Fill `array`; False when the other side closed."""
    view = array.data.cast("B")
    while view:
        got = sock.recv_into(view)
        if got == 0:
            return False
        view = view[got:]
    return True


class PlainServer:
    """Adds what comes, and answers when all workers' has been added."""

    def __init__(self, case: Case) -> None:
        self.case = case
        # Written to, as trained values are: what never was is one page of zeros, again and again.
        self.value = np.full((VOCABULARY, DIM) if not case.size else case.size, 0.0, dtype=np.float32)
        self.lock, self.all_here = threading.Lock(), threading.Barrier(case.workers)

    def serve(self, sock: socket.socket) -> None:
        """One worker to its end."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        case, word = self.case, np.zeros(1, dtype=np.uint8)
        keys = np.empty(ROWS, dtype=np.uint64)
        grad = np.empty(case.size or (ROWS, DIM), dtype=np.float32)
        with contextlib.suppress(ConnectionResetError):
            while True:
                if not case.size and not receive(sock, keys):
                    return
                if not receive(sock, word if case.what == "pull" else grad):
                    return
                if case.what != "pull":
                    self.add(keys, grad)
                answer = word if case.what == "push" else self.value if case.size else self.value[keys]
                sock.sendall(answer.data)

    def add(self, keys: Keys, grad: F32) -> None:
        """Into the value, as soon as no other worker does; returns when all have."""
        with self.lock if self.case.workers > 1 else contextlib.nullcontext():
            if self.case.size:
                self.value += grad
            else:
                self.value[keys] -= np.float32(LEARNING_RATE) * grad
        if self.case.workers > 1:
            self.all_here.wait()


def run_plain_server(listener: socket.socket, case: Case) -> None:
    """A thread for each worker; the only worker has this one."""
    server = PlainServer(case)
    threads = [
        threading.Thread(target=server.serve, args=(listener.accept()[0],)) for _ in range(case.workers - 1)
    ]
    for thread in threads:
        thread.start()
    server.serve(listener.accept()[0])
    for thread in threads:
        thread.join()


@contextmanager
def start_plain_server(case: Case) -> Iterator[Address]:
    with socket.create_server((HOST, 0)) as listener:
        address = (HOST, int(listener.getsockname()[1]))
        process = SPAWN.Process(target=run_plain_server, args=(listener, case))
        process.start()
    try:
        yield address
        process.join(5)
    finally:
        process.kill()
        process.join()


@contextmanager
def connect_plain(case: Case, address: Address, own: int) -> Iterator[Step]:
    keys = _choose_keys(own)
    word = np.zeros(1, dtype=np.uint8)
    grad, out = (np.ones(case.size or (ROWS, DIM), dtype=np.float32) for _ in range(2))

    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def step() -> None:
            if not case.size:
                sock.sendall(keys.data)
            sock.sendall(word.data if case.what == "pull" else grad.data)
            if not receive(sock, word if case.what == "push" else out):
                raise ConnectionError("the plain server closed the connection")

        yield step


# --- ours ---


def _find_free_block(ports: int) -> int:
    """The first of so many free ports in a row, below those that the kernel gives to outgoing connections."""
    for first in range(20_000, 32_000, ports):
        with ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + ports):
                stack.enter_context(socket.create_server((HOST, port)))
            return first
    raise SystemExit("no free ports from 20000 to 32000")


@contextmanager
def start_pserver(case: Case, *options: str) -> Iterator[Address]:
    port = _find_free_block(case.ports)
    argv = [sys.executable, "-m", "pslaunch.runtime.pserver", f"--host={HOST}", f"--port={port}"]
    argv += [f"--ports_num={case.ports}", f"--num_gradient_servers={case.workers}", *options]
    pserver = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    try:
        yield HOST, port
    finally:
        pserver.terminate()
        pserver.wait()


def make_caller(case: Case, address: Address, own: int, ports: int = 1) -> Caller:
    numbers = {"trainer_id": own, "num_gradient_servers": case.workers, "ports_num": ports}
    settings = resolve({"pservers": f"{address[0]}:{address[1]}", **numbers}, {})
    return Caller(settings, log=lambda _: None)


@contextmanager
def connect_pserver(case: Case, address: Address, own: int) -> Iterator[Step]:
    client = make_caller(case, address, own, case.ports)
    client.connect()
    yield _make_dense_step(client, case) if case.size else _make_sparse_step(client, case, own)
    client.finish()


@contextmanager
def connect_client(case: Case, address: Address, own: int) -> Iterator[Step]:
    """The public client, for a dense step."""
    servers = [f"{address[0]}:{address[1]}"]
    with Client(servers, trainer=own, trainers=case.workers, log=lambda _: None) as client:
        w = client.tensor("value", (case.size,), Optim(method="sgd", learning_rate=LEARNING_RATE))
        grad, out = np.ones(case.size, np.float32), np.empty(case.size, np.float32)
        yield lambda: client.push_pull({w: grad}, {w: out}).wait()


@contextmanager
def connect_core(case: Case, address: Address, own: int) -> Iterator[Step]:
    """The calls of the compiled core alone, for a dense step."""
    client = make_caller(case, address, own)
    _make_dense_step(client, case)
    core, grad, out = client._core, np.ones(case.size, np.float32), np.empty(case.size, np.float32)

    def step() -> None:
        core.push(0, grad, out)
        call = core.begin()
        core.progress()
        core.run(500, call)

    yield step
    client.finish()


def _make_dense_step(client: Caller, case: Case) -> Step:
    grads, out = {"value": np.ones(case.size, np.float32)}, {"value": np.empty(case.size, np.float32)}
    client.create_dense("value", case.size, Optim(method="sgd", learning_rate=LEARNING_RATE))
    client.init_dense({"value": np.zeros(case.size, np.float32)})
    if case.what == "pull":
        return lambda: client.pull(out)
    if case.what == "push":
        return lambda: client.push_pull(grads, {})
    return lambda: client.push_pull(grads, out)


def _make_sparse_step(client: Caller, case: Case, own: int) -> Step:
    optim = Optim(method="sgd", learning_rate=LEARNING_RATE)
    names = [f"table{i}" for i in range(case.tables)]
    for name in names:
        client.create_sparse(name, VOCABULARY, DIM, optim, Init(kind="uniform", mean=0.0, std=0.0))
    client.init_dense({})
    keys = {name: _choose_keys(own, case.rows) for name in names}
    grads = {name: (keys[name], np.ones((case.rows, DIM), np.float32)) for name in names}
    rows = {name: np.empty((case.rows, DIM), np.float32) for name in names}

    def step() -> None:
        if case.what != "pull":
            client.push_pull({}, {}, grads, {name: (keys[name], rows[name]) for name in names})
        elif case.apart:
            for name in names:
                client.pull_tables({name: keys[name]})
        else:
            client.pull_tables(keys)

    return step


def _choose_keys(own: int, rows: int = ROWS) -> Keys:
    """Rows that a batch of the wide and deep model touches: others for each worker."""
    return np.random.default_rng(own).choice(VOCABULARY, rows, replace=False).astype(np.uint64)


# --- contenders ---

KINDS = {
    "pserver": (start_pserver, connect_pserver),
    "client": (start_pserver, connect_client),
    "core": (start_pserver, connect_core),
    "python": (start_plain_server, connect_plain),
}


def _run_worker(kind: str, case: Case, address: Address, own: int, orders: Connection) -> None:
    """Run as many steps as is ordered and answer their median in seconds, until the order is 0."""
    with KINDS[kind][1](case, address, own) as step:
        while rounds := int(orders.recv()):
            times = []
            for _ in range(rounds):
                begin_s = time.perf_counter()
                step()
                times.append(time.perf_counter() - begin_s)
            orders.send(statistics.median(times))


@contextmanager
def start_contender(kind: str, case: Case) -> Iterator[Turn]:
    """A server with its workers, each in a process of its own; a turn is the median seconds of a step."""
    with ExitStack() as stack:
        address = stack.enter_context(KINDS[kind][0](case))
        pipes = [SPAWN.Pipe() for _ in range(case.workers)]
        for own, (_, theirs) in enumerate(pipes):
            process = SPAWN.Process(target=_run_worker, args=(kind, case, address, own, theirs), daemon=True)
            process.start()
            stack.callback(process.join, 10)
            theirs.close()

        def take_turn(rounds: int = case.rounds) -> float:
            for ours, _ in pipes:
                ours.send(rounds)
            return statistics.mean(float(ours.recv()) for ours, _ in pipes)

        take_turn(max(2, case.rounds // 4))  # connections, pages and caches are warm in all turns that count
        yield take_turn
        for ours, _ in pipes:
            ours.send(0)


def compile_stream(folder: Path) -> Path:
    """bench/stream.c as a program."""
    program = folder / "stream"
    source = Path(__file__).with_name("stream.c")
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, "-o", program, source], check=True)
    return program


@contextmanager
def start_c_stream(program: Path, case: Case) -> Iterator[Turn]:
    """The bytes of one worker's exchange through a plain stream."""
    whole = 4 * case.size
    up, down = 1 if case.what == "pull" else whole, 1 if case.what == "push" else whole
    argv = [str(program), str(up), str(down)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def take_turn() -> float:
            print(case.rounds, file=stdin, flush=True)
            return float(stdout.readline())

        take_turn()
        yield take_turn
        stdin.close()
