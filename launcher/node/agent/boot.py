"""Start of an agent's process: opens the line of its mode and runs the agent to its end."""

from __future__ import annotations

import functools
import json
import os
import select
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import codes, procs
from ..loop import Loop
from ..silence import Silence
from .agent import END_SIGNALS, Agent, describe_end_signal

if TYPE_CHECKING:
    from ..head.on_node import Lead
    from ..line.gate import Seals
    from .loan import Loan

MAX_DIAL_BYTES = 16 * 1024


def main(
    mode: str, run_dir: str, keeper_fd: int, lost_after_s: float, grace_s: float, lent: Mapping[str, Loan]
) -> int:
    """Run the agent below its keeper.

    Modes: `serve` has its line to the head on standard input and output; `dial` reads the head's address
    there, and facts of this node for it, as one JSON object; `lead` runs the head itself, and has the
    launcher's line there.
    """
    os.set_inheritable(keeper_fd, False)
    procs.become_subreaper()
    os.mkdir(run_dir, 0o700)
    fds = _take_standard_streams()
    loop, seals, secret, lead = Loop(), None, b"", None
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
    loop.run(lambda: agent.code is not None and agent.line.is_idle and lead.is_over, after_each=[lead.push])
    return agent.code or 0


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
    read_fd: int, write_fd: int, where: dict[str, Any], lost_after_s: float
) -> tuple[tuple[int, int], Seals, bytes]:
    """Connect to the head; close the standard streams, which our starter needs no more."""
    from ..line import gate

    os.close(write_fd)
    os.close(read_fd)
    addrs, port, secret = where.pop("addrs"), int(where.pop("port")), bytes.fromhex(where.pop("secret"))
    fd, seals = gate.dial(addrs, port, secret, json.dumps(where).encode(), lost_after_s)
    return (fd, fd), seals, secret


def _take_standard_streams() -> tuple[int, int]:
    """Move standard input and output to other descriptors, out of reach of programs and stray prints."""
    fds = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return fds
