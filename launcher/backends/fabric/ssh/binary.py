"""A channel over the ssh binary, for directives that paramiko does not support.

ssh applies the user's configuration; only options for a session without a terminal are added.
"""

from __future__ import annotations

import re
import subprocess
import threading

from ....errors import HostError
from .attempt import BusyError, Deadline, boot
from .boot import COMMAND, Boot
from .channel import BinaryChannel, Tail
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
    return [*argv, *settings.words, COMMAND]


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
    return deadline.keep_trying(settings.name, lambda: _try_once(argv, settings, booted, deadline, askpass))


def _try_once(
    argv: list[str], settings: HopSettings, booted: Boot, deadline: Deadline, askpass: Askpass | None
) -> BinaryChannel:
    pipe, env = subprocess.PIPE, askpass.make_environment(deadline) if askpass else None
    # In its own session: Ctrl+C goes to the launcher alone, which ends everything in order.
    channel = BinaryChannel(
        subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True, env=env
        )
    )
    try:
        boot(channel, settings.name, booted, deadline)
        return channel
    except HostError:
        if channel.status == _SSH_FAILED:
            raise _make_refusal(settings, channel.tail) from None
        raise


def _make_refusal(settings: HopSettings, tail: Tail) -> HostError | BusyError:
    words = tail.get_text()
    step = next((step for step, pattern in _STEPS if pattern.search(words)), "connect")
    if step == "connect" and _BUSY.search(words):
        return BusyError(f"ssh: {words}")
    if step == "host key" and re.search("No .* key is known", words):
        words += f"; {ADVICE}"
    return HostError(settings.name, step, f"ssh: {words or 'no reason given'}")
