"""Search for a name: each question is for another type of record, and only an answer to it counts.

That a job's pods find the first of them by it is tested on a real cluster (test_kube_jobs.py).
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pslaunch.node.line.names import UNUSED_TYPES, Search

NAME = b"\3job\7example\0"
KNOWN, MISSING = 0, 3  # codes of answers (RFC 1035)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(45.0)
        yield sock


@pytest.fixture
def search(server: socket.socket, tmp_path: Path) -> Iterator[Search]:
    path = tmp_path / "resolv.conf"
    path.write_text("# of a pod\nsearch example other\nnameserver 127.0.0.1\nnameserver 192.0.2.1\n")
    with contextlib.closing(Search("job", str(path), server.getsockname()[1])) as search:
        yield search


def answer(question: bytes, code: int) -> bytes:
    return question[:2] + bytes([0x80, code]) + question[4:]


def test_each_question_is_for_another_unused_type(server: socket.socket, search: Search) -> None:
    kinds = set()
    for _ in range(20):
        assert not search.wait(0.0)
        question = server.recv(512)
        assert question[2:12] == bytes([1, 0, 0, 1, 0, 0, 0, 0, 0, 0])
        assert question[12:].startswith(NAME) and question.endswith(b"\0\1")
        kinds.add(int.from_bytes(question[-4:-2], "big"))
    assert len(kinds) == 20 and kinds <= set(UNUSED_TYPES)


def test_known_name_ends_the_wait(server: socket.socket, search: Search) -> None:
    assert not search.wait(0.0)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(search.wait, 45.0)
        question, asking = server.recvfrom(512)
        stranger = bytes([question[0] ^ 1]) + question[1:]
        for said in (b"", b"\0", answer(question, MISSING), answer(stranger, KNOWN), answer(question, KNOWN)):
            assert not found.done()
            server.sendto(said, asking)
        assert found.result()


def test_missing_name_is_waited_for(server: socket.socket, search: Search) -> None:
    begun_s = time.monotonic()
    assert not search.wait(0.1)
    question, asking = server.recvfrom(512)
    server.sendto(answer(question, MISSING), asking)
    assert not search.wait(0.1)
    assert time.monotonic() - begun_s >= 0.2


@pytest.mark.parametrize(
    "text", ["", "search example\n", "nameserver 127.0.0.1\n", "nameserver nobody\nsearch a"]
)
def test_machine_without_a_name_server_waits_too(tmp_path: Path, text: str) -> None:
    path = tmp_path / "resolv.conf"
    path.write_text(text)
    with contextlib.closing(Search("job", str(path))) as search:
        begun_s = time.monotonic()
        assert not search.wait(0.05)
        assert time.monotonic() - begun_s >= 0.05
