"""An API server that answers anything: each answer is an error in words, and none fills the memory."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from pslaunch.backends.k8s import api, pod_exec
from pslaunch.backends.k8s.api import Cluster
from pslaunch.backends.k8s.api_errors import AbsentError, Place, Right
from pslaunch.backends.k8s.pod_exec import MAX_FRAME_BYTES, PodExec
from pslaunch.backends.k8s.pods import Pods, list_job_objects
from pslaunch.backends.k8s.spec import Access
from pslaunch.errors import ClusterError, PslaunchError, RightsError
from support.process import poll_until

ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455


class Answers(BaseHTTPRequestHandler):
    """Answers of the server's `say`: a body, or what an exec says on its websocket."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        said = self.server.say  # type: ignore[attr-defined]
        if "Upgrade" in self.headers and callable(said):
            key = hashlib.sha1(self.headers["Sec-WebSocket-Key"].encode() + ACCEPT).digest()
            self.send_response(101)
            for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade")):
                self.send_header(name, value)
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(key).decode())
            self.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
            self.end_headers()
            with contextlib.suppress(OSError):
                said(self.connection)
            self.close_connection = True
            return
        if length := self.headers.get("Content-Length"):
            self.rfile.read(int(length))
        status, body = said
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def hostile() -> Iterator[Callable[[Any], Cluster]]:
    """Return a function that makes a client of a server with these answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # of a client that goes away
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    host = f"http://127.0.0.1:{server.server_address[1]}"
    settings = client.Configuration(host=host)
    settings.retries = False
    with contextlib.closing(
        Cluster(client.ApiClient(settings), Place(host, "test", "team"), Access())
    ) as cluster:

        def answer(said: Any) -> Cluster:
            server.say = said  # type: ignore[attr-defined]
            return cluster

        yield answer
    server.shutdown()
    server.server_close()
    thread.join()


POD = {
    "metadata": {"name": "j-0-abcde", "labels": {"batch.kubernetes.io/job-name": "j"}, "uid": "1",
                 "resourceVersion": "1"},
    "spec": {}, "status": {"containerStatuses": [{"state": {"terminated": {"exitCode": 1, "message": "m"}}}]},
}  # fmt: skip


def list_values(thing: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each place of some data: the mapping or list, and its key."""
    for key, value in thing.items() if isinstance(thing, dict) else enumerate(thing):
        yield thing, key
        if isinstance(value, (dict, list)):
            yield from list_values(value)


def ask_all(cluster: Cluster) -> None:
    """Ask what a launcher asks; any PslaunchError is an answer."""
    pods = Pods(cluster, "j")
    job = {"kind": "Job", "metadata": {"name": "j"}}
    asked: list[Callable[[], object]] = [
        pods.explain, pods.find_first, lambda: list_job_objects(cluster),
        lambda: cluster.has_right(Right("list", "pods")), lambda: cluster.create(job)["metadata"]["uid"],
        lambda: cluster.read_metadata("Job", "j"), lambda: cluster.get("read its version", "/version"),
    ]  # fmt: skip
    for ask in asked:
        with contextlib.suppress(PslaunchError):
            ask()


def test_any_answer_is_an_error_in_words(
    hostile: Callable[[Any], Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [b"", b"\xff", b"5", b"null", b"[]", b"[" * 100_000, b'{"items": null}', b'{"items": [5]}']
    for status in (200, 403, 500):
        for text in texts:
            ask_all(hostile((status, text)))
    for value in (None, 5, [5]):
        for number in range(sum(1 for _ in list_values(POD))):
            pod = json.loads(json.dumps(POD))
            place, key = list(list_values(pod))[number]
            place[key] = value
            cluster = hostile((200, json.dumps({"items": [pod]}).encode()))
            for ask in (Pods(cluster, "j").explain, lambda cluster=cluster: list_job_objects(cluster)):
                with contextlib.suppress(PslaunchError):
                    ask()
    monkeypatch.setattr(api, "MAX_ANSWER_BYTES", 1 << 20)
    for status in (200, 500):
        with pytest.raises(PslaunchError, match="its answer is over 1 MiB"):
            hostile((status, b" " * (2 << 20))).list_objects("Pod")


def make_frame(kind: int, data: bytes, length: int | None = None) -> bytes:
    """Return a frame of a server; length: a wrong one."""
    return bytes([0x80 | kind, 127]) + struct.pack("!Q", len(data) if length is None else length) + data


@pytest.mark.parametrize(
    "status",
    ["5", "[]", "null", '"x"', '{"status": 5}', '{"message": null}', "[" * 100_000, '{"message": "gone"}'],
)
def test_end_of_an_exec_is_told_in_words(hostile: Callable[[Any], Cluster], status: str) -> None:
    cluster = hostile(lambda sock: sock.sendall(make_frame(2, b"\3" + status.encode()) + make_frame(8, b"")))
    opened = PodExec(cluster, "pod-0", ["true"])
    assert opened.describe_end() == ("gone" if "gone" in status else "")
    os.close(opened.fd)


FORBIDDEN = {
    "message": 'pods "p" is forbidden: User "dev" cannot get resource "pods/exec" in API group "" in the '
    'namespace "team"'
}


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (403, json.dumps(FORBIDDEN).encode(), RightsError, "dev has no right to get pods/exec in namespace"),
        (404, b'{"message": "pods \\"p\\" not found"}', AbsentError, 'run a program in pod p: pods "p" not'),
        (401, b"", ClusterError, "the credentials of test: Handshake status 401 Unauthorized; log in"),
        (503, b"\xffaway", ClusterError, "run a program in pod p now .503.: \ufffdaway; try again later"),
    ],
)
def test_refused_exec_is_an_error_with_the_words_of_the_server(
    hostile: Callable[[Any], Cluster], status: int, body: bytes, kind: type, words: str
) -> None:
    with pytest.raises(kind, match=words):
        PodExec(hostile((status, body)), "p", ["true"])


def test_missing_program_for_credentials_is_refused_before_the_server_is_asked(tmp_path: Path) -> None:
    exec_ = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-program", "args": ["token"]}
    named = {"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
             "users": [{"name": "u", "user": {"exec": exec_}}],
             "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}  # fmt: skip
    paths = [tmp_path / "first", tmp_path / "second"]
    paths[0].write_text('{"current-context": "x"}')
    paths[1].write_text(json.dumps(named))
    with pytest.raises(ClusterError, match=f"of {paths[1]} come from no-such-program, which is not"):
        api.open_cluster(Access(), {"KUBECONFIG": os.pathsep.join(map(str, paths))})


def test_endless_frames_fill_no_memory(hostile: Callable[[Any], Cluster]) -> None:
    over = threading.Event()

    def say(sock: socket.socket) -> None:
        """Send pings without reading a pong, then a status without end, then a frame that is too long."""
        for _ in range(200):
            sock.sendall(make_frame(9, b"p" * 100) * 100)
        for _ in range(20):
            sock.sendall(make_frame(2, b"\3" + b"s" * 100_000))
        sock.sendall(make_frame(2, b"", MAX_FRAME_BYTES + 1))
        over.set()
        while sock.recv(65536):
            pass

    opened = PodExec(hostile(say), "pod-0", ["true"])
    assert over.wait(30)
    poll_until(opened._over.is_set, describe="the long frame ends the exec")
    os.close(opened.fd)
    held = [opened._incoming, *opened._said.values()]
    assert sum(map(len, held)) <= 2 * pod_exec.SAID_BYTES
    assert len(opened._outgoing) <= 3 * pod_exec.PIECE_BYTES


def test_silent_api_is_given_up(hostile: Callable[[Any], Cluster], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_exec, "LIMIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cluster = hostile(None)
        cluster.api.configuration.host = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterError, match=r"no answer within 0\.2 s"):
            PodExec(cluster, "pod-0", ["true"])
