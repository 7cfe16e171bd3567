"""Pservers and trainers refuse bad peers with clear messages, and end when the other is gone."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslaunch.runtime.client import dialer, handshake
from pslaunch.runtime.client.caller import Caller
from pslaunch.runtime.client.dialer import PeerVanished
from support.progress import heard
from support.pservers import HOST, PLAIN, ZERO, bind_block, cluster, make_caller, run_trainers

pytestmark = pytest.mark.asan

ROWS, DIM = 400, 8


# --- What is refused, and how it is said. ---


def test_a_refused_argument_leaves_the_client_as_it_was() -> None:
    w, keys = np.zeros(5, np.float32), np.arange(3, dtype=np.uint64)
    with cluster(2, trainers=2) as found:

        def push(t: int) -> None:
            with found.client(t) as c:
                c.create_dense("a", 5, PLAIN)
                c.create_dense("b", 3 * 16384, PLAIN)  # on both
                c.create_sparse("e", ROWS, DIM, PLAIN, ZERO)
                out = {"a": w.copy(), "b": np.zeros(3 * 16384, np.float32)}
                c.init_dense({name: value.copy() for name, value in out.items()})
                grads = {name: np.ones_like(value) for name, value in out.items()}
                rows = np.ones((3, DIM), np.float32)
                with pytest.raises(ValueError, match="dense object 'c': size=0, expected 1 or more"):
                    c.create_dense("c", 0, PLAIN)
                for _ in range(2):
                    with pytest.raises(ValueError):
                        c.push_pull({**grads, "b": np.ones(6, np.float32)}, out)
                    with pytest.raises(ValueError):
                        c.push_pull(grads, out, {"e": (keys, rows[:2])})
                    with pytest.raises(TypeError):
                        c.pull_tables({"e": keys.astype(np.int32)})["e"]
                    c.push_pull(grads, out, {"e": (keys, rows)})
                assert (out["a"] == -4).all() and (out["b"] == -4).all()
                assert (c.pull_tables({"e": keys})["e"] == -4).all()
                c.barrier()
                c.finish()

        run_trainers(2, push)
        assert found.codes() == [0, 0]


def test_a_second_thread_gets_a_clear_error_and_the_first_goes_on() -> None:
    keys, refused = np.arange(100_000, dtype=np.uint64), threading.Event()

    def pull(thread: int) -> None:
        for _ in range(40):
            try:
                rows = c.pull_tables({"e": keys})["e"]
                assert not rows.any()
            except RuntimeError as e:
                assert "one thread at a time" in str(e)
                refused.set()
            if refused.is_set():
                return

    with cluster(ports=2) as found, found.client(0) as c:
        c.create_sparse("e", len(keys), DIM, PLAIN, ZERO)
        run_trainers(3, pull)
        assert refused.is_set()
        c._core.clear()
        assert not c.pull_tables({"e": keys})["e"].any()


def test_an_interrupted_step_is_completed_by_the_next_call() -> None:
    class Interrupted(Exception):
        pass

    def raise_interrupted(*_: object) -> None:
        raise Interrupted

    def push(c: Caller, value: float) -> float:
        out = np.zeros(2, np.float32)
        c.push_pull({"w": np.full(2, value, np.float32)}, {"w": out})
        return float(out[0])

    def begin(t: int) -> Caller:
        c = clients[t]
        c.create_dense("w", 2, PLAIN)
        c.init_dense({"w": np.zeros(2, np.float32)})
        return c

    def follow(t: int) -> list[float]:
        """Push what completes the interrupted step of trainer 0, then one step more."""
        found = [push(clients[t], 10.0), push(clients[t], 20.0)]
        clients[t].finish()
        return found

    before = signal.signal(signal.SIGALRM, raise_interrupted)
    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGALRM, before)
        found = stack.enter_context(cluster(ports=2, trainers=2))
        clients = [stack.enter_context(found.client(t)) for t in range(2)]
        run_trainers(2, begin)
        interrupted = np.ones(2, np.float32)
        for _ in range(2):  # the second one interrupts the completion of the first
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Interrupted):
                clients[0].push_pull({"w": interrupted}, {"w": np.zeros(2, np.float32)})
        other: list[list[float]] = []
        thread = threading.Thread(target=lambda: other.append(follow(1)))
        thread.start()
        assert push(clients[0], 2.0) == -33.0
        clients[0].finish()
        thread.join()
        assert other == [[-11.0, -33.0]]
        assert found.codes() == [0]


def cpu_s(pid: int) -> float:
    """Processor time that the process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_connections_beyond_the_limit_of_open_files_keep_no_trainer_out() -> None:
    under = ["sh", "-c", 'ulimit -n 24; exec "$@"', "sh"]
    with cluster(under=under) as found, contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(socket.create_connection(found.endpoints[0]))
        used_s, began_s = cpu_s(found.processes[0].pid), time.monotonic()
        with found.client(0) as c:
            c.connect()
            elapsed_s = time.monotonic() - began_s
            assert elapsed_s < 9  # before any of them has had all its time
            assert cpu_s(found.processes[0].pid) - used_s < 0.1 + 0.3 * elapsed_s
            c.finish()
        assert found.codes() == [0]


def test_a_foreign_protocol_names_the_script_mode() -> None:
    with cluster() as found:
        with socket.create_connection(found.endpoints[0]) as sock:
            sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            assert found.codes() == [78]
        assert "--server script" in found.processes[0].output()


# --- Endings. ---


def test_a_trainer_that_does_not_come_back_ends_the_pserver_with_75() -> None:
    with cluster(options=["--trainer_timeout=0.3"]) as found:
        with found.client(0) as c:
            c.connect()
        assert found.codes() == [75]
        assert "trainer 0 at" in found.processes[0].output()


def test_each_pserver_is_waited_for_when_the_trainer_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pserver that is gone after FINISH was sent had all it needs; the others are still to answer."""
    monkeypatch.setattr(dialer, "REFUSED_S", 0.05)
    broke: list[str] = []
    first_is_gone = threading.Event()

    def log(line: str) -> None:
        if " broke " in line:
            broke.append(line)
            first_is_gone.set()

    def vanish(listener: socket.socket, when: threading.Event | None) -> None:
        """A pserver that goes when it has read FINISH, and `when` is set."""
        side = handshake.make_side(b"", lambda hello: "")
        with listener, listener.accept()[0] as sock:
            while not side.proved:
                sock.sendall(side.feed(sock.recv(4096)))
            assert sock.recv(4096)
            if when is not None:
                assert when.wait(20)

    listeners = bind_block(2)
    endpoints = [(HOST, sock.getsockname()[1]) for sock in listeners]
    threads = [
        threading.Thread(target=vanish, args=(sock, when), daemon=True)
        for sock, when in zip(listeners, (None, first_is_gone), strict=True)
    ]
    for thread in threads:
        thread.start()
    make_caller(endpoints, log=log).finish()
    assert [f"{HOST}:{port}" in line for (_, port), line in zip(endpoints, broke, strict=True)] == [
        True,
        True,
    ]
    for thread in threads:
        thread.join()


def test_a_name_that_is_not_known_is_said_at_once_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, known = [], socket.getaddrinfo

    def answer(host: str, *args: Any, **kwargs: Any) -> Any:
        if host != "ps.invalid":
            return known(host, *args, **kwargs)
        asked.append(host)
        if len(asked) <= 2:  # DNS comes later
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(HOST, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    lines: list[str] = []
    with cluster() as found:
        endpoint = ("ps.invalid", found.endpoints[0][1])
        with found.client(0, endpoints=[endpoint], log=lines.append) as c:
            c.connect()
            c.finish()
        assert found.codes() == [0]
    text = (
        "unknown host name ps.invalid: Name or service not known (option pservers); "
        "trying again for up to 20 s (option connect_timeout)"
    )
    assert lines[1] == text
    assert lines.count(text) == 1
    assert len(asked) == 3


def test_a_table_that_a_trainer_lacks_is_named_while_both_wait() -> None:
    def push(c: Caller, tables: Sequence[str]) -> None:
        c.connect()
        for name in tables:
            c.create_sparse(name, 10, 2, PLAIN, ZERO)
        with pytest.raises(PeerVanished):
            for _ in range(2):
                c.push_pull({}, {})
        c.close()

    with cluster(trainers=2, options=["--stall_after=0.1", "--stall_timeout=0.5"]) as found:
        clients = [found.client(t) for t in range(2)]
        run_trainers(2, lambda t: push(clients[t], ["users", "items"][: 2 - t]))
        assert found.codes() == [75]
        assert "step 1 of 'items' waits for trainer 1 for" in found.processes[0].output()


def test_a_stalled_step_names_the_trainer_and_can_end_the_pserver(tmp_path: Path) -> None:
    def push(c: Caller) -> None:
        w = np.zeros(5, np.float32)
        c.create_dense("w", 5, PLAIN)
        c.init_dense({"w": w})
        c.push_pull({"w": w}, {"w": w.copy()})

    options = ["--stall_after=0.1", "--stall_timeout=1.5"]
    with heard(tmp_path) as reports, cluster(trainers=2, options=options) as found:
        with found.client(0) as c, found.client(1) as idle:
            idle.connect()
            with pytest.raises(PeerVanished):
                push(c)
        assert found.codes() == [75]
        assert "step 1 of 'w' waits for trainer 1 for" in found.processes[0].output()
        why = next(str(said["why"]) for said in reversed(reports()) if "why" in said)
        assert re.search(r"step 1 of 'w' waits for trainer 1 for \d s \(option --stall_timeout\)$", why)
