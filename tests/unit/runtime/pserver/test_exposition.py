"""Prometheus' text format, and who may read it."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pslaunch.runtime.pserver import exposition, ports
from pslaunch.runtime.pserver.counters import Counters, Tables
from pslaunch.runtime.pserver.exposition import render_metrics, serve_metrics
from pslaunch.runtime.pserver.ports import PortError
from pslaunch.runtime.pserver.pserver_options import parse_options
from pslaunch.runtime.shared.env import EnvError

FOUND: Tables = {
    "job": [{"id": "j", "memory_bytes": 7}],
    "stall": [],
    "trainer": [
        {"shard": 0, "trainer": 0, "in_bytes": 12, "waited_s": 1.5, "wait_age_s": None},
        {"shard": 0, "trainer": 1, "in_bytes": 0, "waited_s": 0.0, "wait_age_s": 2.25},
    ],
    "object": [{"shard": 0, "object": 'a"b\\c\nd', "updates": 3}],
}
SAMPLE = re.compile(
    r'(# (HELP|TYPE) \w+ .+|\w+\{\w+="[^"\\\n]*(\\.[^"\\\n]*)*"(,\w+="([^"\\\n]|\\.)*")*\} [0-9.]+)'
)


def test_text_has_help_type_and_samples_with_labels() -> None:
    text = render_metrics(FOUND)
    assert text.endswith("\n")
    assert all(SAMPLE.fullmatch(line) for line in text.splitlines())
    assert text.splitlines()[3:] == [
        "# HELP pslaunch_pserver_trainer_in_bytes_total Bytes received, for each trainer.",
        "# TYPE pslaunch_pserver_trainer_in_bytes_total counter",
        'pslaunch_pserver_trainer_in_bytes_total{shard="0",trainer="0"} 12',
        'pslaunch_pserver_trainer_in_bytes_total{shard="0",trainer="1"} 0',
        "# HELP pslaunch_pserver_trainer_waited_seconds_total "
        "Seconds of waiting for other trainers, for each trainer.",
        "# TYPE pslaunch_pserver_trainer_waited_seconds_total counter",
        'pslaunch_pserver_trainer_waited_seconds_total{shard="0",trainer="0"} 1.5',
        'pslaunch_pserver_trainer_waited_seconds_total{shard="0",trainer="1"} 0.0',
        "# HELP pslaunch_pserver_trainer_wait_age_seconds "
        "Seconds since the begin of a wait for other trainers that goes on, for each trainer.",
        "# TYPE pslaunch_pserver_trainer_wait_age_seconds gauge",
        'pslaunch_pserver_trainer_wait_age_seconds{shard="0",trainer="1"} 2.25',
        "# HELP pslaunch_pserver_object_updates_total Updates that were applied, for each object.",
        "# TYPE pslaunch_pserver_object_updates_total counter",
        r'pslaunch_pserver_object_updates_total{shard="0",object="a\"b\\c\nd"} 3',
    ]


def test_each_number_has_a_text() -> None:
    counters = Counters(1)
    counters.note_object("w")
    words = {key for kind in range(3) for key in counters.read(kind)}
    assert words | {"epoch", "expected", "connected", "memory_bytes", "age_s"} == exposition.HELP.keys()


@contextmanager
def served(monkeypatch: pytest.MonkeyPatch, host: str, secret: bytes) -> Iterator[int]:
    """Serve at a free port of the host."""
    with socket.create_server((host, 0)) as listener:
        monkeypatch.setattr(ports, "listen", lambda *_: listener)
        server = serve_metrics("1", 0, lambda: FOUND, secret)
        try:
            yield listener.getsockname()[1]
        finally:
            server.shutdown()  # a thread that goes on polling keeps pipes of later tests open


def get(port: int, path: str = "/metrics", token: str = "") -> tuple[int, str]:
    """Return code and text."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if token:
        request.add_header("Authorization", token)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=20) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read().decode()


def test_this_machine_needs_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(monkeypatch, "127.0.0.1", b"s") as port:
        assert get(port) == (200, render_metrics(FOUND))
        assert get(port, "/metrics?x=1")[0] == 200
        assert get(port, "/")[0] == 404


@pytest.mark.parametrize(
    ("secret", "token", "code"),
    [
        (b"s", "Bearer s", 200),
        (b"s", "", 401),
        (b"s", "Bearer t", 401),
        (b"s", "Bearer ", 401),
        (b"s", "s", 401),
        (b"s", "Bearer \N{SNOWMAN}".encode().decode("latin-1"), 401),
        (b"", "Bearer ", 401),  # there is none to give
        (b"", "", 401),
    ],
)
def test_others_need_the_secret(
    monkeypatch: pytest.MonkeyPatch, secret: bytes, token: str, code: int
) -> None:
    with served(monkeypatch, "0.0.0.0", secret) as port:
        found, text = get(port, token=token)
        assert found == code
        assert ("pslaunch_pserver" in text) == (code == 200)


def test_clients_that_go_or_say_nonsense_leave_no_trace(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with served(monkeypatch, "127.0.0.1", b"") as port:
        for said in (
            b"",
            b"GET",
            b"\0\xff\r\n\r\n",
            b"PUT /metrics HTTP/1.1\r\n\r\n",
            b"GET " + b"x" * 70_000,
        ):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset
                sock.sendall(said)
        assert get(port)[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_slow_client_holds_up_nobody_and_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "REQUEST_S", 0.2)
    with served(monkeypatch, "127.0.0.1", b"") as port, socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert get(port)[0] == 200
        sock.settimeout(20.0)
        assert sock.recv(100) == b""


@pytest.mark.parametrize(
    ("text", "rank", "address"),
    [
        ("9100", 0, ("127.0.0.1", 9100)),
        ("9100", 3, ("127.0.0.1", 9103)),
        ("0.0.0.0:9100", 0, ("0.0.0.0", 9100)),
        ("[::]:9100", 1, ("::", 9101)),
    ],
)
def test_each_pserver_of_a_job_has_its_own_port(
    monkeypatch: pytest.MonkeyPatch, text: str, rank: int, address: tuple[str, int]
) -> None:
    def listen(*asked: object) -> None:
        assert asked == (*address, "--metrics_port")
        raise PortError("busy")

    monkeypatch.setattr(ports, "listen", listen)
    with pytest.raises(PortError):
        serve_metrics(text, rank, dict, b"")


@pytest.mark.parametrize(
    ("text", "rank"), [("x", 0), ("0", 0), ("65536", 0), ("65535", 1), ("h:", 0), (":1", 0)]
)
def test_an_unusable_port_is_an_error(text: str, rank: int) -> None:
    with pytest.raises(EnvError, match="--metrics_port"):
        serve_metrics(text, rank, dict, b"")


def test_option_overrules_the_variable_of_a_job() -> None:
    assert parse_options([], {}).metrics is None
    environ = {"PSLAUNCH_METRICS_PORT": "9100"}
    assert parse_options([], environ).metrics == "9100"
    assert parse_options(["--metrics_port=1"], environ).metrics == "1"
