"""How an agent's process begins: it takes its line as its mode says, and runs the agent to its end."""

from __future__ import annotations

import functools
import json
import os
import select
import socket
import time
from typing import TYPE_CHECKING

from .. import codes, procs
from ..loop import Loop
from .agent import END_SIGNALS, Agent, why_asked

if TYPE_CHECKING:
    from ..head.on_node import Lead
    from ..line.gate import Seals

MAX_DIAL_BYTES = 4096
FIRST_WORD_S = 600.0  # for a launcher that still reaches other hosts, or asks its user for a passphrase


def main(mode: str, run_dir: str, keeper_fd: int, lost_after_s: float, grace_s: float) -> int:
    """Run the agent below its keeper.

    Modes: `serve` has its line to the head on standard input and output; `dial` reads there, as one JSON
    object, where the head listens; `lead` runs the head itself, and has the launcher's line there.
    """
    os.set_inheritable(keeper_fd, False)
    procs.become_subreaper()
    os.mkdir(run_dir, 0o700)
    fds = _take_standard_streams()
    loop, seals, secret, lead = Loop(), None, b"", None
    if mode == "dial":
        _until_told(fds[0], keeper_fd, max(lost_after_s, FIRST_WORD_S))
        fds, seals, secret = _dial(*fds, lost_after_s)
    elif mode == "lead":
        from ..head.on_node import Lead

        ours, heads = socket.socketpair()
        lead = Lead(loop, *fds, heads.detach(), run_dir, lost_after_s)
        fd = ours.detach()
        fds = fd, fd
    agent = Agent(
        loop,
        run_dir,
        keeper_fd,
        fds,
        lost_after_s=lost_after_s,
        grace_s=grace_s,
        first_after_s=FIRST_WORD_S if mode == "serve" else 0.0,
        seals=seals,
        secret=secret,
    )
    if lead is None:
        loop.run(lambda: agent.code is not None and agent.line.idle)
        return agent.code or 0
    for number in END_SIGNALS:
        loop.on_signals({number: functools.partial(_end_led, lead, agent, number)})
    loop.run(lambda: agent.code is not None and agent.line.idle and lead.over, after_each=[lead.push])
    return agent.code or 0


def _end_led(lead: Lead, agent: Agent, number: int) -> None:
    """The head here ends the whole job, if it has one."""
    if lead.leads:
        agent.trouble("", codes.NODE_LOST, why_asked(number))
    else:
        agent.asked_to_end(number)


def _until_told(read_fd: int, keeper_fd: int, limit_s: float) -> None:
    """Wait for the word where the head is, or the end of the line; the keeper hears that we live."""
    end_s = time.monotonic() + limit_s
    while not select.select([read_fd], [], [], procs.BEAT_S)[0]:
        if time.monotonic() >= end_s:
            raise TimeoutError(f"nobody said for {limit_s:g} s where the head is")
        os.write(keeper_fd, b".")


def _dial(read_fd: int, write_fd: int, lost_after_s: float) -> tuple[tuple[int, int], Seals, bytes]:
    """Read where the head is, and go there; who started us needs our standard streams no more."""
    from ..line import gate

    os.close(write_fd)
    with os.fdopen(read_fd, "rb", buffering=0) as f:
        where = json.loads(f.readline(MAX_DIAL_BYTES))
    text = json.dumps({"node": where["node"]}).encode()
    secret = bytes.fromhex(where["secret"])
    fd, seals = gate.dial(where["addrs"], int(where["port"]), secret, text, lost_after_s)
    return (fd, fd), seals, secret


def _take_standard_streams() -> tuple[int, int]:
    """Descriptors of what standard input and output are; programs and stray prints find neither there."""
    fds = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return fds
