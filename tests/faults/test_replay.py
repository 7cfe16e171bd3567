"""Recorded messages are sent again: between trainer and pserver, and between agent and head."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pslaunch.node import codes
from pslaunch.node.line import wire
from pslaunch.node.line.wire import Seal
from pslaunch.runtime.client.caller import Caller
from pslaunch.runtime.engine.kernel_numbers import Optim
from pslaunch.runtime.shared import prove
from support.constants import OPERATIONS
from support.faults import Control, control
from support.jobs import Job, LocalPlace, hash_model, running, succeeded
from support.proxy import Tap
from support.pservers import Cluster, cluster, run_trainers
from support.trainings import TRAIN

pytestmark = pytest.mark.asan

F32 = npt.NDArray[np.float32]
FRAME_BYTES, LENGTH_AT = 64, 48  # docs/protocol.md
STRANGER = "127.0.2.1"
SIZE = 5000


def said_to(target: tuple[str, int], data: bytes) -> tuple[str, bytes]:
    """Say this from an address that nobody else has; who we were, and the answer."""
    with socket.create_connection(target, timeout=20, source_address=(STRANGER, 0)) as sock:
        host, port = sock.getsockname()
        answer = b""
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)
            while piece := sock.recv(4096):
                answer += piece
        return f"{host}:{port}", answer


# --- trainer and pserver ---


def frames(said: bytes) -> list[bytes]:
    """The frames of a trainer's session, without the handshake before."""
    at = 0
    for _ in range(2):
        at += prove.HEAD.size + prove.HEAD.unpack_from(said, at)[3]
    found = []
    while at < len(said):
        length = FRAME_BYTES + int.from_bytes(said[at + LENGTH_AT : at + LENGTH_AT + 8], "little")
        found.append(bytes(said[at : at + length]))
        at += length
    return found


Attack = Callable[[Tap, Sequence[Caller]], None]


def trained(folder: Path, attack: Attack) -> tuple[F32, Cluster]:
    """Two trainers' values after four steps, with the attack after two of them."""
    folder.mkdir()
    secret = str(folder / "secret")
    Path(secret).write_text("of the job")
    options = [f"--secret_file={secret}", f"--log_dir={folder}"]
    with (
        cluster(trainers=2, options=options) as found,
        contextlib.closing(Tap(found.endpoints[0])) as tap,
        found.client(0, secret_file=secret, endpoints=[tap.endpoint]) as first,
        found.client(1, secret_file=secret) as second,
    ):
        clients = (first, second)
        values = [np.zeros(SIZE, np.float32) for _ in clients]

        def begin(t: int) -> None:
            clients[t].create_dense("w", SIZE, Optim(method="adagrad", learning_rate=0.1))
            clients[t].init_dense({"w": values[t]})

        def steps(numbers: range) -> Callable[[int], None]:
            def run(t: int) -> None:
                for step in numbers:
                    gradient = np.random.default_rng([t, step]).standard_normal(SIZE, dtype=np.float32)
                    clients[t].push_pull({"w": gradient}, {"w": values[t]})

            return run

        run_trainers(2, begin)
        run_trainers(2, steps(range(2)))
        attack(tap, clients)
        run_trainers(2, steps(range(2, 4)))
        run_trainers(2, lambda t: clients[t].finish())
        assert found.codes() == [0]
        assert (values[0] == values[1]).all()
        return values[0], found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> F32:
    return trained(tmp_path_factory.mktemp("undisturbed") / "run", lambda *_: None)[0]


def test_a_trainers_session_said_again_is_refused(tmp_path: Path, undisturbed: F32) -> None:
    strangers = []

    def attack(tap: Tap, _clients: Sequence[Caller]) -> None:
        who, answer = said_to(tap.target, bytes(tap.said[0]))
        assert b"secret" in answer
        strangers.append(who)

    values, found = trained(tmp_path / "run", attack)
    assert values.tobytes() == undisturbed.tobytes()
    assert f"refused {strangers[0]}: the trainer's secret is not the pserver's" in found.processes[0].output()


def test_a_trainers_frames_said_again_on_its_line_change_nothing(tmp_path: Path, undisturbed: F32) -> None:
    names = {number: name for name, number in OPERATIONS.items()}
    tried: set[str] = set()

    def attack(tap: Tap, clients: Sequence[Caller]) -> None:
        for frame in frames(bytes(tap.said[0])):
            tried.add(names[int.from_bytes(frame[6:8], "little")])
            run_trainers(
                2, lambda t: clients[t].barrier()
            )  # the line was closed: the trainer makes a new one
            tap.insert(-1, frame)

    values, _ = trained(tmp_path / "run", attack)
    assert tried == {"CREATE", "INIT", "PUSH"}
    assert values.tobytes() == undisturbed.tobytes()
    log = (tmp_path / "run/paddle_pserver2.INFO").read_text()
    assert re.search(r"trainer 0 lost at port 0: request 1 repeated on one connection: a replay", log)


# --- agent and head ---

OPTIONS = ("--worker_num=2", "--grace=1", "--lost_after=20")


@contextlib.contextmanager
def tapped_job(workspace: Path) -> Iterator[tuple[Job, Tap, Control]]:
    """A training on two nodes, held in a batch, its second agent's line to the head tapped."""
    place = LocalPlace(2, "--head=node")
    with control("trainer/1 batch2 1") as ctl, contextlib.ExitStack() as stack:
        job = stack.enter_context(running(place, workspace, *OPTIONS, env=ctl.env(dial=True), text=TRAIN))
        held = ctl.held()
        given, told = held.fds
        with os.fdopen(given, "rb") as file:
            (dial,) = wire.Decoder().feed(file.read())
        assert isinstance(dial, dict)
        tap = stack.enter_context(contextlib.closing(Tap((dial["addrs"][0], dial["port"]))))
        host, port = tap.endpoint
        with os.fdopen(told, "wb") as file:
            file.write(wire.encode_control({**dial, "addrs": [host], "port": port}))
        held.tell()
        yield job, tap, ctl


def test_an_agents_session_said_again_is_refused_and_the_job_goes_on(workspace: Path, tmp_path: Path) -> None:
    with tapped_job(workspace) as (job, tap, ctl):
        held = ctl.held()
        who, answer = said_to(tap.target, bytes(tap.said[0]))
        assert b"secret" in answer
        refused = f"refused a connection: {who}: the agent's secret is not the head's"
        job.until(lambda events: any(refused in e.get("text", "") for e in events), refused)
        held.tell()
        assert job.launcher.wait() == 0, job.launcher.output()
    alone = tmp_path / "undisturbed"
    alone.mkdir()
    with control() as ctl:
        succeeded(LocalPlace(2, "--head=node"), alone, *OPTIONS, env=ctl.env(), text=TRAIN)
    assert hash_model(workspace) == hash_model(alone)


def test_an_agents_frame_said_again_on_its_line_is_no_order_and_costs_the_node(workspace: Path) -> None:
    with tapped_job(workspace) as (job, tap, ctl):
        held = ctl.held()
        said = bytes(tap.said[0])
        at = 0
        for _ in range(2):
            at += prove.HEAD.size + prove.HEAD.unpack_from(said, at)[3]
        length = wire.HEADER.size + wire.HEADER.unpack_from(said, at)[0] + Seal.mac_bytes
        tap.insert(0, said[at : at + length])
        held.tell()
        assert job.launcher.wait() == codes.NODE_LOST, job.launcher.output()
        end = job.end()
        assert "node 1" in end["failure"]["what"] and "is not of this line" in end["reason"], end
