"""`pslaunch stats`: its table, and its errors for whatever answers at an address."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pslaunch.runtime.client import observe
from pslaunch.runtime.client.control import Control
from pslaunch.runtime.client.handshake import PLANE, Hello, make_side
from pslaunch.runtime.client.observe import list_lines, main
from pslaunch.runtime.shared import prove

TABLES = {
    "stall": [],
    "object": [
        {"object": "a\x1b[2J", "updates": 12345, "age_s": None},
        {"object": "b", "updates": 0, "age_s": 1.5},
    ],
}


def refuse(_hello: Hello) -> str:
    raise AssertionError("an observer is compared with nobody")


@contextmanager
def answered(side: prove.Server | bytes, *answers: Any) -> Iterator[str]:
    """Be a pserver for one connection; yield its address."""

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            if isinstance(side, bytes):
                sock.recv(4096)
                sock.sendall(side)
                return
            while not (side.proved or side.failure):
                sock.sendall(side.feed(sock.recv(4096)))
            if side.proved:  # a question that nobody has read would reset the connection
                control = Control(sock)
                assert control.receive(20) == {"ask": "stats"}
                for answer in answers:
                    control.send(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(20)


def test_table_is_aligned_and_moves_no_cursor() -> None:
    assert [*list_lines(TABLES)] == [
        "object  updates  age_s",
        " a?[2J   12,345      -",
        "     b        0    1.5",
        "",
    ]


def test_answer_is_printed_as_table_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "secret").write_bytes(b"s\n")
    for options, read in (([], str.splitlines), (["--json"], json.loads)):
        with answered(make_side(b"s", refuse), TABLES) as address:
            assert main([address, f"--secret_file={tmp_path}/secret", *options]) == 0
        found: Any = read(capsys.readouterr().out)
        assert found == (TABLES if options else [*list_lines(TABLES)])


def make_old(text: bytes) -> str:
    Hello.decode(text)
    return ""


@pytest.mark.parametrize(
    ("side", "code", "said"),
    [
        (lambda: make_side(b"other", refuse), 78, "on both sides); a job's is in the file"),
        (lambda: prove.Server(PLANE, b"", make_old), 78, "of an older pslaunch: a hello must have exactly"),
        (lambda: b"HTTP/1.1 400 Bad Request\r\n\r\n", 78, "not pslaunch's protocol: first bytes b'HTTP/1.1"),
        (lambda: b"", 69, "closed the connection during the handshake"),
        (lambda: make_side(b"", refuse), 69, "the other end has closed the connection"),
    ],
)
def test_other_answers_are_errors(
    side: Callable[[], Any], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answered(side()) as address:
        assert main([address]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pslaunch stats: ") and address in line and said in line


def test_no_answer_in_time_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(observe, "ATTEMPT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert main([f"127.0.0.1:{listener.getsockname()[1]}"]) == 69
    assert "timed out" in capsys.readouterr().err


def test_a_free_port_a_bad_address_and_a_lost_secret_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for argv, code, said in (
        ([f"127.0.0.1:{port}"], 69, "no pserver answers at 127.0.0.1:"),
        (["127.0.0.1:x"], 2, "address='x': expected a whole number"),
        (["h", f"--secret_file={tmp_path}/no"], 74, "No such file or directory"),
    ):
        assert main(argv) == code
        assert said in capsys.readouterr().err
