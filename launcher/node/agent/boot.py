"""Start of an agent's process: opens the line of its mode and runs the agent to its end."""

from __future__ import annotations

import functools
import json
import os
import select
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import codes, procs
from ..line.beats import keep_beating
from ..loop import Loop
from ..silence import Silence
from .agent import END_SIGNALS, Agent, describe_end_signal

if TYPE_CHECKING:
    from ..head.on_node import Lead
    from ..line.gate import Seals
    from .loan import Loan

MAX_DIAL_BYTES = 16 * 1024


def main(
    mode: str,
    run_dir: str,
    keeper_fd: int,
    lost_after_s: float,
    grace_s: float,
    lent: Mapping[str, Loan],
    words: Sequence[str],
) -> int:
    """Run the agent below its keeper.

    Modes: `serve` has its line to the head on standard input and output; `dial` reads the head's address
    there, and facts of this node for it, as one JSON object; `lead` runs the head itself, and has the
    launcher's line there. `begin FOLDER NODE` does one or the other by a file (beginning.py): node 0 leads,
    and ends with the job's exit code.
    """
    os.set_inheritable(keeper_fd, False)
    procs.become_subreaper()
    os.mkdir(run_dir, 0o700)
    fds = _take_standard_streams()
    loop, seals, secret, lead, stand_in = Loop(), None, b"", None, None
    if mode == "begin":
        from .. import beginning
        from .stand_in import StandIn

        folder, node = words[0], int(words[1])
        begun, secret = beginning.read(folder), beginning.read_secret(folder)
        _take_wheel(os.path.join(folder, beginning.WHEEL), run_dir)
        if node:
            where = {"addrs": [begun.head], "port": begun.port, "secret": secret.hex(), "node": node}
            # From a thread: the search for a name can't be interrupted.
            with keep_beating(b".") as beaten:
                beaten(keeper_fd)
                fds, seals, secret = _dial(*fds, where, begun.wait_timeout_s, listens=False)
        else:
            ours, heads = socket.socketpair()
            stand_in = StandIn(loop, ours.detach(), begun, secret, folder, run_dir, fds[1])
            fds, mode = (heads.fileno(), heads.detach()), "lead"
    if mode == "dial":
        where = _read_endpoint(fds[0], keeper_fd, lost_after_s)
        fds, seals, secret = _dial(*fds, where, lost_after_s)
    elif mode == "lead":
        from ..head.on_node import Lead

        ours, heads = socket.socketpair()
        lead = Lead(loop, *fds, heads.detach(), run_dir, lost_after_s)
        fd = ours.detach()
        fds = fd, fd
    agent = Agent(
        loop, run_dir, keeper_fd, fds,
        lost_after_s=lost_after_s, grace_s=grace_s, seals=seals, secret=secret, lent=lent,
    )  # fmt: skip
    if lead is None:
        loop.run(lambda: agent.code is not None and agent.line.is_idle)
        return agent.code or 0
    for number in END_SIGNALS:
        loop.handle_signals({number: functools.partial(_end_job, lead, agent, number)})
    loop.run(
        lambda: (
            agent.code is not None
            and agent.line.is_idle
            and lead.is_over
            and (stand_in is None or stand_in.code is not None)
        ),
        after_each=[lead.push],
    )
    return (stand_in and stand_in.code) or agent.code or 0


def _take_wheel(folder: str, run_dir: str) -> None:
    """Let programs import pslaunch from the wheel in a folder, if it fits this Python and machine."""
    import sysconfig
    import zipfile

    system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    for name in os.listdir(folder) if os.path.isdir(folder) and sys.version_info >= (3, 11) else ():
        if name.endswith(f"-{system}.whl"):
            there = os.path.join(run_dir, "wheel")
            with zipfile.ZipFile(os.path.join(folder, name)) as wheel:
                wheel.extractall(there)
            others = os.environ.get("PYTHONPATH")
            os.environ["PYTHONPATH"] = f"{there}:{others}" if others else there


def _end_job(lead: Lead, agent: Agent, number: int) -> None:
    """End the whole job if the head here leads one, else the agent alone."""
    if lead.has_job:
        agent.report_trouble("", codes.NODE_LOST, describe_end_signal(number))
    else:
        agent.end_on_signal(number)


def _read_endpoint(read_fd: int, keeper_fd: int, lost_after_s: float) -> dict[str, Any]:
    """Read the head's endpoint, a line of JSON; spaces before it are the launcher's heartbeat."""
    said, silence = b"", Silence(time.monotonic())
    while not said.endswith(b"\n"):
        os.write(keeper_fd, b".")
        if select.select([read_fd], [], [], procs.BEAT_S)[0]:
            silence.hear(time.monotonic())
            piece = os.read(read_fd, MAX_DIAL_BYTES)
            said = (said + piece).lstrip()
            if not piece or len(said) > MAX_DIAL_BYTES:
                raise EOFError("the launcher's line ended before it said where the head is")
        elif silence.measure(time.monotonic()) >= lost_after_s:
            raise TimeoutError(f"nothing was heard of the launcher for {lost_after_s:g} s")
    where: dict[str, Any] = json.loads(said)
    return where


def _dial(
    read_fd: int, write_fd: int, where: dict[str, Any], limit_s: float, *, listens: bool = True
) -> tuple[tuple[int, int], Seals, bytes]:
    """Connect to the head; close the standard streams, which our starter needs no more."""
    from ..line import gate

    os.close(write_fd)
    os.close(read_fd)
    addrs, port, secret = where.pop("addrs"), int(where.pop("port")), bytes.fromhex(where.pop("secret"))
    fd, seals = gate.dial(addrs, port, secret, json.dumps(where).encode(), limit_s, listens=listens)
    return (fd, fd), seals, secret


def _take_standard_streams() -> tuple[int, int]:
    """Move standard input and output to other descriptors, out of reach of programs and stray prints."""
    fds = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return fds
