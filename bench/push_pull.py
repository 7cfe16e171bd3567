"""Steps through a pserver next to plain Python sockets with numpy: `python bench/push_pull.py`.

A step pushes a gradient, waits until the server has added those of all workers and changed the value
(SGD), and takes the new value. Plain means `socket.sendall`, `recv_into` and two lines of numpy, which
peers hardly beat (bench/README.md). Medians; a ratio above 1 is faster than plain.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue

import numpy as np
import numpy.typing as npt

from pslaunch.runtime.client import Client, Init, Optim

F32 = npt.NDArray[np.float32]
Keys = npt.NDArray[np.uint64]
HOST = "127.0.0.1"
ROWS, DIM, VOCABULARY = 5_500, 16, 100_000
SIZES = {"4 KiB": 1024, "1 MiB": 1 << 18, "16 MiB": 1 << 22}  # floats
SPAWN = mp.get_context("spawn")


def receive(sock: socket.socket, array: F32 | Keys) -> bool:
    """Fill `array`; False when the other side closed."""
    view = array.data.cast("B")
    while view:
        got = sock.recv_into(view)
        if got == 0:
            return False
        view = view[got:]
    return True


def plain_server(listener: socket.socket, workers: int, size: int, rows: int) -> None:
    """Adds the gradients of all workers in their order, then answers all; `rows` > 0: rows of a table."""
    socks = [listener.accept()[0] for _ in range(workers)]
    for sock in socks:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    value = np.zeros((VOCABULARY, DIM) if rows else size, dtype=np.float32)
    grad = np.empty((rows, DIM) if rows else size, dtype=np.float32)
    keys = np.empty(rows, dtype=np.uint64)
    while True:
        for sock in socks:
            if rows and not receive(sock, keys):
                return
            if not receive(sock, grad):
                return
            if rows:
                value[keys] -= np.float32(0.01) * grad
            else:
                value -= np.float32(0.01) * grad
        for sock in socks:
            sock.sendall((value[keys] if rows else value).data)


def plain_step(address: tuple[str, int], size: int, keys: Keys | None) -> Callable[[], None]:
    """One step against plain_server."""
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    shape = (len(keys), DIM) if keys is not None else (size,)
    grad, out = np.ones(shape, dtype=np.float32), np.empty(shape, dtype=np.float32)

    def step() -> None:
        if keys is not None:
            sock.sendall(keys.data)
        sock.sendall(grad.data)
        if not receive(sock, out):
            raise ConnectionError("the plain server closed the connection")

    return step


def our_step(client: Client, size: int, keys: Keys | None) -> Callable[[], None]:
    """The same step through a pserver."""
    optim = Optim(method="sgd", learning_rate=0.01)
    if keys is not None:
        client.create_sparse("table", VOCABULARY, DIM, optim, Init(kind="uniform", mean=0.0, std=0.0))
        grad, rows = np.ones((len(keys), DIM), dtype=np.float32), np.empty((len(keys), DIM), dtype=np.float32)
        client.init_dense({})
        found = keys

        def sparse_step() -> None:
            client.push_pull({}, {}, {"table": (found, grad)})
            client.pull_rows("table", found, rows)

        return sparse_step
    grads, out = {"value": np.ones(size, dtype=np.float32)}, {"value": np.empty(size, dtype=np.float32)}
    client.create_dense("value", size, optim)
    client.init_dense({"value": np.zeros(size, dtype=np.float32)})
    return lambda: client.push_pull(grads, out)


def worker(
    ours: bool,
    address: tuple[str, int],
    own: int,
    workers: int,
    size: int,
    rows: int,
    rounds: int,
    times: Queue[float],
) -> None:
    """Run the steps of one worker; the first one gives the median time of a step."""
    keys = (
        np.random.default_rng(own).choice(VOCABULARY, rows, replace=False).astype(np.uint64) if rows else None
    )
    client = None
    if ours:
        client = Client([address], trainer_id=own, num_gradient_servers=workers, log=lambda _: None)
        client.connect()
        step = our_step(client, size, keys)
    else:
        step = plain_step(address, size, keys)
    found = []
    for _ in range(rounds):
        begin_s = time.perf_counter()
        step()
        found.append(time.perf_counter() - begin_s)
    if client is not None:
        client.finish()
    if own == 0:
        times.put(statistics.median(found[rounds // 5 :]))


@contextmanager
def plain_serving(workers: int, size: int, rows: int) -> Iterator[tuple[str, int]]:
    """A plain server; yields its address."""
    with socket.create_server((HOST, 0)) as listener:
        address = (HOST, int(listener.getsockname()[1]))
        process = SPAWN.Process(target=plain_server, args=(listener, workers, size, rows))
        process.start()
    try:
        yield address
        process.join(5)
    finally:
        process.kill()
        process.join()


@contextmanager
def pserver_serving(workers: int) -> Iterator[tuple[str, int]]:
    """A pserver with one port; yields its address."""
    with socket.create_server((HOST, 0)) as listener:
        address = (HOST, int(listener.getsockname()[1]))
    argv = [sys.executable, "-m", "pslaunch.runtime.pserver", f"--host={HOST}", f"--port={address[1]}"]
    pserver = subprocess.Popen([*argv, f"--num_gradient_servers={workers}"], stdout=subprocess.DEVNULL)
    try:
        yield address
        pserver.wait(10)
    finally:
        pserver.kill()
        pserver.wait()


def median_step_s(ours: bool, workers: int, size: int, rows: int, rounds: int) -> float:
    """Median time of one step with `workers` at once."""
    times: Queue[float] = SPAWN.Queue()
    serving = pserver_serving(workers) if ours else plain_serving(workers, size, rows)
    with serving as address:
        processes = [
            SPAWN.Process(target=worker, args=(ours, address, own, workers, size, rows, rounds, times))
            for own in range(workers)
        ]
        for process in processes:
            process.start()
        try:
            return times.get(timeout=120)
        finally:
            for process in processes:
                process.join(10)
                process.kill()
                process.join()


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=3, help="measurements of each; the best counts")
    options = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    cases = [(f"dense, {name}", size, 0) for name, size in SIZES.items()]
    cases.append((f"sparse, {ROWS} x {DIM}", 0, ROWS))
    print(f"{os.cpu_count()} CPUs, numpy {np.__version__}, 1 server with 1 port; a step, push and pull")
    print(f"{'':24}{'workers':>8}{'pserver':>12}{'plain':>12}{'ratio':>8}")
    for name, size, rows in cases:
        rounds = 400 if size < 1 << 17 else 60
        for workers in (1, 2):
            ours, plain = (
                min(median_step_s(kind, workers, size, rows, rounds) for _ in range(options.repeat))
                for kind in (True, False)
            )
            print(
                f"{name:24}{workers:>8}{ours * 1e6:>9.0f} µs{plain * 1e6:>9.0f} µs{plain / ours:>8.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
