"""A channel over the ssh binary, for directives that paramiko does not support.

ssh applies the user's configuration; only options for a session without a terminal are added.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import threading
from collections.abc import Mapping

from ....errors import HostError
from ....node.procs import write_all
from .attempt import SLICE_S, Deadline, RefusedError, make_start_error
from .boot import COMMAND, Boot, NoMarkerError, wait_for_marker
from .channel import STDERR_S, BinaryChannel, Tail, keep_tail
from .hostkeys import ADVICE
from .questions import Askpass
from .settings import HopSettings

_SSH_FAILED = 255
_STEPS = (
    ("host key", re.compile(r"host key|HOST IDENTIFICATION|REVOKED", re.IGNORECASE)),
    ("resolve", re.compile(r"Could not resolve|Bad configuration|bad configuration", re.IGNORECASE)),
    ("authenticate", re.compile(r"Permission denied|authentication failures|sign_and_send|passphrase")),
)
_BUSY = re.compile(r"kex_exchange_identification|banner exchange|Connection (reset|closed) by")


def make_ssh_command(ssh: str, settings: HopSettings, limit_s: float, *, asks: bool) -> list[str]:
    """Return the command line of ssh. `asks`: a user can answer its questions."""
    options = {
        "BatchMode": "no" if asks else "yes",
        "ClearAllForwardings": "yes",
        "ForwardX11": "no",
        "Tunnel": "no",
        "RemoteCommand": "none",
        "ConnectTimeout": str(max(1, int(settings.connect_timeout_s or limit_s))),
        "ServerAliveInterval": str(settings.keepalive_s),
        "StrictHostKeyChecking": settings.strict,
    }
    argv = [ssh, "-T"]
    for name, value in options.items():
        argv += ["-o", f"{name}={value}"]
    argv += ["-l", settings.user_given] if settings.user_given else []
    argv += ["-p", str(settings.port_given)] if settings.port_given else []
    return [*argv, "--", settings.name, COMMAND]


def boot_by_binary(
    ssh: str,
    settings: HopSettings,
    booted: Boot,
    limit_s: float,
    cancel: threading.Event,
    askpass: Askpass | None,
) -> BinaryChannel:
    """Connect and boot. Retries a connection that closes before its banner. Raises HostError."""
    deadline = Deadline((settings.connect_timeout_s or limit_s) + limit_s, cancel)
    argv = make_ssh_command(ssh, settings, limit_s, asks=askpass is not None)
    while True:
        try:
            env = askpass.make_environment(deadline) if askpass else None
            return _try_once(argv, settings, booted, deadline, env)
        except HostError as e:
            busy = e.step == "connect" and _BUSY.search(e.detail)
            if not busy or not deadline.pause():
                raise


def _try_once(
    argv: list[str], settings: HopSettings, booted: Boot, deadline: Deadline, env: Mapping[str, str] | None
) -> BinaryChannel:
    pipe = subprocess.PIPE
    # In its own session: Ctrl+C goes to the launcher alone, which ends everything in order.
    process = subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True, env=env
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    tail = Tail()
    said = keep_tail(process.stderr, tail)
    writer = threading.Thread(target=_send, args=(process.stdin.fileno(), booted.payload), daemon=True)
    writer.start()
    try:
        out = process.stdout.fileno()
        wait_for_marker(lambda n: _read(out, n, deadline), booted.marker)
        writer.join()
        return BinaryChannel(process, tail, said)
    except (NoMarkerError, TimeoutError) as e:
        failed = e
    code = _end(process, writer, said)
    if code == _SSH_FAILED:
        raise _make_refusal(settings, tail)
    raise make_start_error(settings.name, failed, tail, code)


def _send(fd: int, data: bytes) -> None:
    with contextlib.suppress(OSError):
        write_all(fd, data)


def _read(fd: int, n: int, deadline: Deadline) -> bytes:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while not poll.poll(SLICE_S * 1000):
        if deadline.is_over:
            raise TimeoutError(f"no answer within {deadline.limit_s:g} s")
    return os.read(fd, n)


def _end(process: subprocess.Popen[bytes], writer: threading.Thread, said: threading.Thread) -> int | None:
    """End the process; return its exit code if it ended by itself."""
    assert process.stdin is not None and process.stdout is not None
    try:
        code = process.wait(0.5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        code = None
    for thread in (writer, said):  # bounded: a process left behind may hold the pipes open
        thread.join(STDERR_S)
    process.stdin.close()
    process.stdout.close()
    return code


def _make_refusal(settings: HopSettings, tail: Tail) -> HostError:
    words = tail.get_text()
    step = next((step for step, pattern in _STEPS if pattern.search(words)), "connect")
    if step == "host key" and re.search("No .* key is known", words):
        words += f"; {ADVICE}"
    error = RefusedError if step == "authenticate" else HostError
    return error(settings.name, step, f"ssh: {words or 'no reason given'}")
