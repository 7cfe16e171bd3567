"""Real pserver processes on loopback ports that are bound before they start, and trainers as threads."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pslaunch.runtime.client.caller import Caller, Init
from pslaunch.runtime.engine.kernel_numbers import Mode, Optim
from pslaunch.runtime.engine.strategy import Strategy
from pslaunch.runtime.process.settings import resolve
from support.process import Started, started

HOST = "127.0.0.1"
PLAIN = Optim(method="sgd", learning_rate=1.0)  # with whole numbers every sum is exact, in any order
ZERO, NORMAL = (Init(kind="normal", mean=0.0, std=std) for std in (0.0, 0.1))


def bind_block(n: int) -> list[socket.socket]:
    """`n` sockets that listen on neighbouring ports, below those that the kernel gives to clients."""
    rng = random.Random()
    for _ in range(100):
        first = rng.randrange(15000, 31000)
        with contextlib.ExitStack() as stack:
            try:
                block = [stack.enter_context(socket.create_server((HOST, first + i))) for i in range(n)]
            except OSError:
                continue
            stack.pop_all()
            return block
    raise AssertionError(f"no {n} free neighbouring ports")


def find_free_ports(n: int = 1) -> int:
    """The first of so many neighbouring ports that nobody has."""
    block = bind_block(n)
    first = int(block[0].getsockname()[1])
    for sock in block:
        sock.close()
    return first


def make_caller(
    endpoints: Sequence[tuple[str, int]],
    trainer: int = 0,
    *,
    mode: Mode = "sync",
    discard: int = 0,
    log: Callable[[str], None] = lambda line: None,
    **arguments: object,
) -> Caller:
    """A client with these arguments of init(), not connected yet."""
    pservers = ",".join(f"{host}:{port}" for host, port in endpoints)
    settings = resolve({"pservers": pservers, "trainer_id": trainer, **arguments}, {})
    trainers = settings.num_gradient_servers
    ratio = (discard + 0.5) / trainers if discard else None
    return Caller(settings, Strategy(mode=mode, discard_ratio=ratio, k_steps=int(mode == "geo")), log)


@dataclass
class Cluster:
    """Pservers that run, and how clients reach them."""

    endpoints: list[tuple[str, int]]
    ports_num: int
    ports_num_for_sparse: int
    trainers: int
    processes: list[Started] = field(default_factory=list)
    secret_file: str = ""

    def client(
        self, trainer: int, *, endpoints: Sequence[tuple[str, int]] | None = None, **more: Any
    ) -> Caller:
        """A client that is not connected yet."""
        numbers = {
            "ports_num": self.ports_num,
            "ports_num_for_sparse": self.ports_num_for_sparse,
            "num_gradient_servers": self.trainers,
        }
        own: dict[str, Any] = {**numbers, "secret_file": self.secret_file, "connect_timeout": 20.0, **more}
        return make_caller(endpoints or self.endpoints, trainer, **own)

    def codes(self) -> list[int]:
        """Exit codes of all pservers, which must end by themselves."""
        return [p.wait() for p in self.processes]


@contextlib.contextmanager
def cluster(
    pservers: int = 1,
    ports: int = 1,
    sparse: int = 0,
    *,
    trainers: int = 1,
    options: Sequence[str] = (),
    under: Sequence[str] = (),
) -> Iterator[Cluster]:
    """Run pservers, under another program if given; they are killed at the end if they did not end."""
    with contextlib.ExitStack() as stack:
        found = Cluster([], ports, sparse, trainers)
        for _ in range(pservers):
            block = bind_block(ports + sparse)
            fds = [sock.fileno() for sock in block]
            argv = [*under, sys.executable, "-P", "-m", "pslaunch.runtime.pserver", f"--ports_num={ports}"]
            argv += [f"--ports_num_for_sparse={sparse}", f"--num_gradient_servers={trainers}", *options]
            env = {**os.environ, "PSLAUNCH_LISTEN_FDS": ",".join(map(str, fds))}
            found.endpoints.append((HOST, block[0].getsockname()[1]))
            found.processes.append(stack.enter_context(started(argv, env=env, pass_fds=fds)))
            for sock in block:
                sock.close()
        for process in found.processes:
            process.expect("trainers connected")
        yield found


def run_trainers(n: int, train: Callable[[int], Any], *, timeout_s: float = 150.0) -> list[Any]:
    """Run `train(trainer)` in a thread for each; their results in order. The first error is raised."""
    results: list[Any] = [None] * n
    errors: list[BaseException] = []

    def run(t: int) -> None:
        try:
            results[t] = train(t)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(t,), daemon=True) for t in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), f"trainers still run after {timeout_s:g} s"
    return results
