"""What a pserver counts, at GET /metrics in Prometheus' text format 0.0.4 (--metrics_port)."""

from __future__ import annotations

import contextlib
import hmac
import re
import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from ..shared import env, nics
from . import ports
from .counters import Tables

LABELS = ("id", "shard", "trainer", "object")
# All numbers of counters.py, with texts that end with "for each" of their table.
COUNTERS = {
    "passes": "Passes that all trainers have ended",
    "cuts": "Cuts (snapshots, saves, exports) that were sent to files",
    "lost_cuts": "Cuts (snapshots, saves, exports) that were lost",
    "in_bytes": "Bytes received",
    "out_bytes": "Bytes sent",
    "waits_for_turn": "Pushes that waited for their turn in the order of trainers",
    "waited_s": "Seconds of waiting for other trainers",
    "dropped": "Asynchronous pushes that were dropped because they came too late",
    "updates": "Updates that were applied",
    "pushes": "Asynchronous pushes that came, with dropped ones",
    "ages": "Sum of the ages of asynchronous pushes, in updates since the values of their gradients",
}
GAUGES = {
    "epoch": "Starts of the job before this one",
    "expected": "Trainers that are expected",
    "connected": "Trainers that are connected to all ports of a job, or to a port",
    "memory_bytes": "Bytes of memory that the process has (RSS)",
    "age_s": "Seconds since the begin of a wait longer than --stall_after",
    "objects": "Parameters and tables",
    "held_bytes": "Bytes of gradients that wait for their turn",
    "cut_age_s": "Seconds since the last cut",
    "wait_age_s": "Seconds since the begin of a wait for other trainers that goes on",
    "update_age_s": "Seconds since the last update",
    "rows": "Rows of a table",
    "keys": "Keys of a table that wait for a row by its entry rule",
    "bytes": "Bytes of values, state and keys",
}
HELP = COUNTERS | GAUGES
REQUEST_S = 5.0  # of one request, however slowly it comes
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def render_metrics(found: Tables) -> str:
    lines = []
    for of, rows in found.items():
        for key in [key for key in rows[0] if key not in (*LABELS, "text")] if rows else ():
            kind, end = ("counter", "_total") if key in COUNTERS else ("gauge", "")
            name = f"pslaunch_pserver_{of}_{re.sub('_s$', '_seconds', key)}{end}"
            lines += [f"# HELP {name} {HELP[key]}, for each {of}.", f"# TYPE {name} {kind}"]
            for row in [row for row in rows if row[key] is not None]:
                labels = (f'{one}="{str(row[one]).translate(ESCAPES)}"' for one in LABELS if one in row)
                lines.append(f"{name}{{{','.join(labels)}}} {row[key]}")
    return "\n".join(lines) + "\n"


def serve_metrics(
    address: str, rank: int, collect: Callable[[], Tables], secret: bytes
) -> socketserver.BaseServer:
    """Answer in a thread, beyond this machine with the secret as token. Raises PortError, EnvError."""
    host, port = env.split_addr(address if ":" in address else f"127.0.0.1:{address}", "--metrics_port")
    listener = ports.listen(host, env.parse_port(port + rank, "--metrics_port"), "--metrics_port")
    token = b"" if nics.is_loopback(listener.getsockname()[0]) else b"Bearer " + secret

    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):  # the client has gone
                limit = threading.Timer(REQUEST_S, self.connection.shutdown, [socket.SHUT_RDWR])
                limit.start()
                try:
                    super().handle()
                finally:
                    limit.cancel()

        def do_GET(self) -> None:
            code, text = 404, "only /metrics is here\n"
            given = self.headers.get("Authorization", "").encode()
            if token and not (secret and hmac.compare_digest(given, token)):
                code, text = 401, "the secret of --secret_file is missing: Authorization: Bearer SECRET\n"
            elif self.path.partition("?")[0] == "/metrics":
                code, text = 200, render_metrics(collect())
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            """Write nothing."""

    server = socketserver.ThreadingTCPServer(("", 0), Handler, bind_and_activate=False)
    server.daemon_threads = True
    server.socket.close()
    server.socket = listener
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
