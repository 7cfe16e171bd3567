"""`pslaunch stats`: what a running pserver has counted. An observer asks, for which nobody waits."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..shared import env, prove
from .control import Control, Message
from .dialer import ATTEMPT_S, ClientError, NotReached
from .handshake import OBSERVER, PLANE


def ask_stats(host: str, port: int, secret: bytes) -> Message:
    """Return what a pserver has counted: its tables by name. Raises NotReached, ClientError."""
    addr = env.join_addr(host, port)
    try:
        with socket.create_connection((host, port), timeout=ATTEMPT_S) as sock:
            prove.dial(sock, PLANE, secret, OBSERVER, time.monotonic() + ATTEMPT_S)
            control = Control(sock)
            control.send({"ask": "stats"})
            if (answer := control.receive(ATTEMPT_S)) is None:
                raise TimeoutError("timed out")
    except prove.ProofError as e:
        older = ": it is of an older pslaunch" if "a hello must have" in str(e) else ""
        lacks = not secret and "secret" in str(e)
        where = "; a job's is in the file that PSLAUNCH_SECRET_FILE of its programs names" if lacks else ""
        raise ClientError(f"{addr} refuses an observer{older}: {e}{where}") from None
    except OSError as e:
        raise NotReached(f"no pserver answers at {addr}: {e.strerror or e}") from None
    return answer


def list_lines(tables: Message) -> Iterator[str]:
    """Yield the lines of the tables that have rows, for people."""
    for rows in filter(None, tables.values()):
        cells = [[*rows[0]], *([_format(value) for value in row.values()] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            yield "  ".join(map(str.rjust, row, widths))
        yield ""


def _format(value: object) -> str:
    text = "-" if value is None else f"{value:,}" if isinstance(value, (int, float)) else str(value)
    return "".join(c if c.isprintable() else "?" for c in text)


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="pslaunch stats", allow_abbrev=False)
    p.add_argument("address", metavar="HOST[:PORT]", help="Any port of the pserver [default: 7164].")
    given = env.read_init_args(os.environ).get("secret_file", "")
    p.add_argument("--secret_file", metavar="FILE", default=given, help="The job's secret.")
    p.add_argument("--json", action="store_true", help="Print JSON.")
    a = p.parse_args(argv)
    try:
        host, port = env.split_addr(a.address, "address", env.INIT_ARGS["port"].default)
        found = ask_stats(host, port, Path(a.secret_file).read_bytes().strip() if a.secret_file else b"")
        print(json.dumps(found) if a.json else "\n".join(list_lines(found)), flush=True)
    except (env.EnvError, ClientError, OSError) as e:
        print(f"pslaunch stats: {e}", file=sys.stderr)
        return 2 if isinstance(e, env.EnvError) else getattr(e, "exit_code", 74)
    return 0


if __name__ == "__main__":
    sys.exit(main())
