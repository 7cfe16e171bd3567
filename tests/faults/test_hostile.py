"""Hostile peers at every port of the data plane, while a job trains: it goes on, and its log names them."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pslaunch.runtime.client import handshake
from pslaunch.runtime.shared import prove
from support import reference
from support.constants import CONSTANTS, OPERATIONS
from support.faults import control
from support.jobs import LocalPlace, running
from support.process import Started, poll_until, read_memory, started
from support.pservers import PLAIN, cluster
from support.trainings import TRAIN

pytestmark = pytest.mark.asan

MEMORY_BYTES = 40 << 20  # that a pserver may take beyond what it has without hostile peers
HUGE = 2**63


Dial = Callable[[], socket.socket]


def dialer(stack: contextlib.ExitStack, port: int, source: str = "127.0.0.1") -> Dial:
    """Connects from an address of its own, so that what is said of it is not counted with others."""

    def dial() -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(source, 0))
        return stack.enter_context(sock)

    return dial


def answer(sock: socket.socket) -> bytes:
    """All that the other side says until it closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(4096):
            data += piece
    return data


def name(sock: socket.socket) -> str:
    host, port = sock.getsockname()
    return f"{host}:{port}"


def make_hello(**numbers: int) -> handshake.Hello:
    return handshake.Hello(**dict.fromkeys(handshake.Hello.__dataclass_fields__, 0) | numbers)


def random_bytes(dial: Dial, rng: random.Random) -> Iterator[str]:
    """Not our protocol; refused at once."""
    for _ in range(10):
        sock = dial()
        sock.sendall(b"\xff" + rng.randbytes(rng.randrange(1, 5000)))
        answer(sock)
        yield name(sock)


def huge_lengths(dial: Dial, rng: random.Random) -> Iterator[str]:
    """The greatest length that a handshake can name, and frames of 2**63 bytes before any handshake."""
    for begin in (
        prove.HEAD.pack(prove.MAGIC, prove.VERSION, prove.MessageKind.NONCE, 0xFFFF),
        struct.pack("<IHHIIQQIIQQII", 0x314C5350, 1, 4, 0, 1, 1, 1, 0, 0, 0, HUGE, 0, 0),
    ):
        sock = dial()
        sock.sendall(begin)
        assert b"PSHS" in answer(sock)[:4]
        yield name(sock)


def wrong_secret(dial: Dial, rng: random.Random) -> Iterator[str]:
    """A trainer of another job."""
    sock = dial()
    yield name(sock)
    with sock, pytest.raises(prove.ProofError, match="secret"):
        handshake.greet(sock, b"guessed", make_hello())


def test_a_training_goes_on(workspace: Path, rng: random.Random) -> None:
    options = ("--worker_num=2", "--ports_num=2", "--ports_num_for_sparse=1", "--grace=1")
    with (
        control("trainer/1 batch1 1", "trainer/1 batch3 1") as ctl,
        running(LocalPlace(1), workspace, *options, env=ctl.env(), text=TRAIN) as job,
        contextlib.ExitStack() as stack,
    ):
        held = ctl.held()
        ports = [int(line.split()[-1]) for line in job.lines("pserver/0") if "selected port" in line]
        assert len(ports) == 3
        pserver, hostile = job.pid("pserver/0"), list[str]()
        before = read_memory(pserver)
        for i, port in enumerate(ports):
            for attack in (random_bytes, huge_lengths, wrong_secret):
                hostile += attack(dialer(stack, port, f"127.0.1.{i + 1}"), rng)
        # A thousand that never speak, and some that speak slowly: they stay while the training goes on.
        slow = [dialer(stack, port)() for port in ports]
        silent = [dialer(stack, ports[i % 3])() for i in range(1000)]
        for sock in slow:
            sock.send(b"P")
        held.tell()
        held = ctl.held()
        for sock in slow:
            with contextlib.suppress(OSError):
                sock.send(b"S")
        assert read_memory(pserver) - before < MEMORY_BYTES
        path = workspace / "log/paddle_pserver2.INFO"
        poll_until(  # the training is held meanwhile: the first silent ones run out of time
            lambda: any(f"{who} dropped" in path.read_text() for who in map(name, silent)),
            describe=path.read_text,
            timeout_s=30,
        )
        held.tell()
        assert job.launcher.wait() == 0, job.launcher.output()
        log = path.read_text()
        assert not [who for who in hostile if f"refused {who}: " not in log and f"{who} dropped: " not in log]
        assert log.count(" dropped: ") <= 2 * prove.IN_FULL  # the test may take longer than a minute
        assert re.search(r"\.\.\. and \d+ more from 127.0.0.1 in the last minute", log)


FLOOD = """
import selectors, socket, sys
address, many = ("127.0.0.1", int(sys.argv[1])), 2000
selector = selectors.DefaultSelector()
def call():
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex(address)
    selector.register(sock, selectors.EVENT_READ)
for _ in range(many): call()
print("they come", flush=True)
while True:
    for key, _ in selector.select():  # closed: it comes again
        selector.unregister(key.fileobj)
        key.fileobj.close()
        call()
"""


def flood(port: int) -> contextlib.AbstractContextManager[Started]:
    """Two thousand connections that say nothing, and come again whenever they are closed."""
    return started([sys.executable, "-c", FLOOD, str(port)])


def test_a_trainer_gets_in_through_a_flood_that_never_speaks() -> None:
    with cluster(trainers=1) as found, flood(found.endpoints[0][1]) as strangers:
        strangers.expect("they come")
        with found.client(0, connect_timeout=5.0) as c:  # less than what the silent ones have
            c.connect()
            c.finish()
        assert found.codes() == [0]
        found.processes[0].expect("127.0.0.1:.* connections of strangers may delay trainers")


def listening_port(pid: int) -> int:
    """The one TCP port at which a process listens."""
    inodes = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    rows = (row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:])
    (port,) = {int(r[1].split(":")[1], 16) for r in rows if r[3] == "0A" and f"socket:[{r[9]}]" in inodes}
    return port


def test_agents_get_in_through_a_flood_that_never_speaks(workspace: Path) -> None:
    # The launcher is held when node 0 leads, before it starts the others, whose agents dial.
    with (
        control("launcher subprocess.Popen 2") as ctl,
        running(LocalPlace(3, "--head=node"), workspace, "--worker_num=2", env=ctl.env(), text=TRAIN) as job,
        contextlib.ExitStack() as stack,
    ):
        held = ctl.held()
        (keeper,) = children(job.launcher.pid)
        (agent,) = children(keeper)
        stack.enter_context(flood(listening_port(agent))).expect("they come")
        held.tell()
        assert job.launcher.wait() == 0, job.launcher.output()
        notes = [e["text"] for e in job.events() if e["event"] == "note"]
        assert any("it did not prove the secret, and others wait" in text for text in notes), notes
        assert len(notes) <= 2 * prove.IN_FULL + 2


def children(pid: int) -> list[int]:
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_trainer_that_has_proved_itself_can_not_harm_others() -> None:
    with cluster(trainers=2) as found, found.client(0) as c:
        c.create_dense("w", 1000, PLAIN)
        before = read_memory(found.processes[0].pid)
        hello = make_hello(trainer_id=1, num_gradient_servers=2, ports_num=1, incarnation=77, pservers=1)
        for op in (*OPERATIONS.values(), 0xFFFF):
            for length in (HUGE, 2**64 - 1, CONSTANTS["PS_MAX_DENSE_BYTES"] + 1):
                with socket.create_connection(found.endpoints[0], timeout=20) as sock:
                    handshake.greet(sock, b"", hello)
                    numbers = {"length": length, "count": 2**32 - 1}
                    sock.sendall(reference.encode_header(op=op, trainer=1, sequence=1, **numbers))
                    refusal = sock.recv(4096)
                    assert refusal == b"" or refusal[6:8] == OPERATIONS["ERROR"].to_bytes(2, "little")
        c.create_dense("v", 10, PLAIN)  # the others are served
        assert read_memory(found.processes[0].pid) - before < MEMORY_BYTES
        found.processes[0].expect("refused trainer 1")


GRPC, BRPC = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"PRPC" + bytes(8)
AS_NOBODY = """
import encodings.idna, os, socket, sys  # all before another user may read nothing here
os.setuid(65534)
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as sock:
    sock.sendall(bytes.fromhex(sys.argv[2]))
    while sock.recv(4096): pass
"""


@pytest.mark.parametrize(
    ("who", "first_bytes", "protocol"),
    [("another user", GRPC, "gRPC"), ("a closed connection", BRPC, "brpc")],
    ids=["another user", "a closed connection"],
)
def test_foreign_protocol_from_outside_the_job_is_reported_as_a_guess(
    who: str, first_bytes: bytes, protocol: str
) -> None:
    with cluster() as found:
        port = found.endpoints[0][1]
        if who == "another user":
            if os.geteuid() != 0:
                pytest.skip("becomes another user")
            argv = [sys.executable, "-c", AS_NOBODY, str(port), first_bytes.hex()]
            subprocess.run(argv, check=True)
        else:
            found.processes[0].proc.send_signal(signal.SIGSTOP)  # it looks only once the connection is closed
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.sendall(first_bytes)
            found.processes[0].proc.send_signal(signal.SIGCONT)
        found.processes[0].expect(f"speaks {protocol}, .*if it is a program of this job, .*--server script")
        with found.client(0) as c:
            c.finish()
        assert found.codes() == [0]
        assert "brings its own" not in found.processes[0].output()
