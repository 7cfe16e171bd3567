"""A way to the API server that sees its requests: between the launcher's encryption and the server's."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import yaml

from support.kube import Kube
from support.pservers import HOST


class SeeingProxy:
    """Forwards to the API server of a cluster; `kubeconfig` leads to it here.

    answer: takes the beginning of each request and returns an answer instead of the server's, or None;
    a ConnectionError cuts the connection. b"" loses the server's answer.
    """

    def __init__(self, cluster: Kube, folder: Path, answer: Callable[[bytes], bytes | None]) -> None:
        self._cluster, self._answer = cluster, answer
        key, own = folder / "proxy.key", folder / "proxy.crt"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-keyout", key,
             "-out", own, "-subj", "/CN=proxy", "-addext", f"subjectAltName=IP:{cluster.address[0]}"],
            check=True, capture_output=True,
        )  # fmt: skip
        self._taking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._taking.load_cert_chain(own, key)
        read = yaml.safe_load(cluster.kubeconfig.read_text())
        self._giving = ssl.create_default_context(
            cafile=read["clusters"][0]["cluster"]["certificate-authority"]
        )
        for context in (self._taking, self._giving):  # 1.3 has messages of its own later
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        self._listener = socket.create_server((HOST, 0))
        self.kubeconfig = cluster.lead_through(self._listener.getsockname(), folder / "seen")
        led = yaml.safe_load(self.kubeconfig.read_text())
        led["clusters"][0]["cluster"]["certificate-authority"] = str(own)
        self.kubeconfig.write_text(yaml.safe_dump(led))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                taken = self._listener.accept()[0]
                self._open.append(taken)
                self._threads.append(threading.Thread(target=self._serve, args=[taken]))
                self._threads[-1].start()

    def _serve(self, taken: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            client = stack.enter_context(self._taking.wrap_socket(taken, server_side=True))
            self._open.append(client)
            bare = stack.enter_context(socket.create_connection(self._cluster.address))
            server = stack.enter_context(
                self._giving.wrap_socket(bare, server_hostname=self._cluster.address[0])
            )
            self._open.append(server)
            while self._forward(client, server):
                pass

    def _forward(self, client: ssl.SSLSocket, server: ssl.SSLSocket) -> bool:
        both = (client, server)
        ready = [end for end in both if end.pending()] or select.select(both, (), ())[0]
        for source in ready:
            data = source.recv(65536)
            own = self._answer(data) if source is client else None
            (client if own or source is server else server).sendall(own or data)
            if own == b"":
                server.recv(65536)
            if own == b"" or not data:
                return False
        return True

    def close(self) -> None:
        """Cut all connections and wait for the threads."""
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()
