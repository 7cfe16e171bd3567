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

from .. import procs
from ..line.beats import keep_beating
from ..line.wire import READ_BYTES, Decoder, Line, WireError
from ..loop import Loop, Silence
from ..run_dir import lock_run_dir
from .agent import Agent
from .program import Program

if TYPE_CHECKING:
    from ..beginning import Dial
    from ..head.leader import Leader
    from .loan import Loan
    from .stand_in import StandIn


def main(
    mode: str,
    run_dir: str,
    keeper: socket.socket,
    lost_after_s: float,
    grace_s: float,
    lent: Mapping[str, Loan],
    words: Sequence[str],
    asker: str,
) -> int:
    """Run the agent below its keeper.

    Modes: `serve` has its line to the head on standard input and output; `lead` runs the head itself, and has
    the launcher's line there. `dial [MODE [WORDS]]` reads an address there, connects to it, and goes on in
    the next mode, on that line. `begin FOLDER NAME NODE` does one or the other by a file (beginning.py):
    node 0 leads, and ends with the job's exit code.

    asker: the scheduler that ends the whole job by a signal to its agents; "": a signal ends this one alone.
    """
    procs.become_subreaper()
    _make_run_dir(run_dir, keeper)
    line = _take_standard_streams()
    loop, secret, lead, stand_in, dial = Loop(), b"", None, None, None
    # From a thread: the search for a name can't be interrupted.
    with keep_beating(b".") as beaten:
        beaten(keeper.fileno())
        if mode == "begin":
            mode, line, secret, stand_in, dial = _begin(loop, words, run_dir, line)
        while mode == "dial":
            where = _read_endpoint(line, keeper, lost_after_s)
            line, secret = _dial(line, {"secret": secret.hex(), **where}, lost_after_s)
            mode, words = (words[0], words[1:]) if words else ("serve", ())
    if mode == "lead":
        from ..head.leader import Leader

        ours, heads = socket.socketpair()
        lead = Leader(loop, line, heads.detach(), run_dir, lost_after_s, secret)
        line = Line(ours.fileno(), ours.detach())
    agent = Agent(
        loop, run_dir, keeper, line,
        lost_after_s=lost_after_s, grace_s=grace_s, secret=secret, lent=lent, dial=dial,
    )  # fmt: skip
    return _run(loop, agent, lead, stand_in, asker)


def _make_run_dir(path: str, keeper: socket.socket) -> None:
    """Make the run folder, whose lock the keeper shares; let nobody else write what we make."""
    Program.umask = os.umask(0o077)
    os.umask(Program.umask | 0o022)
    os.mkdir(path, 0o700)
    socket.send_fds(keeper, [b"."], [lock_run_dir(path)])


def _run(loop: Loop, agent: Agent, lead: Leader | None, stand_in: StandIn | None, asker: str) -> int:
    """Run agent, head and stand-in until all are over; return the exit code."""

    def end(number: int) -> None:
        if lead:
            lead.wait_for_nobody()
        agent.end_on_signal(number, asker)

    for number in procs.END_SIGNALS:
        loop.handle_signals({number: functools.partial(end, number)})
    loop.run(
        lambda: (
            agent.is_over
            and (lead is None or lead.is_over)
            and (stand_in is None or stand_in.code is not None)
        ),
        after_each=[lead.push] if lead else (),
    )
    return (stand_in and stand_in.code) or agent.code or 0


def _begin(
    loop: Loop, words: Sequence[str], run_dir: str, line: Line
) -> tuple[str, Line, bytes, StandIn | None, Dial | None]:
    """Begin a job from a file; return also who acts as launcher, and the way to a head that comes later."""
    from .. import beginning
    from ..line import gate

    folder, name, node = words
    beginning.check_name(folder, name)
    begun, secret = beginning.read_beginning(folder), beginning.read_secret(folder)
    _take_wheel(os.path.join(folder, beginning.WHEEL), run_dir)
    if int(node):
        line.close()  # which our starter needs no more
        text, limit_s = json.dumps({"node": int(node)}).encode(), begun.wait_timeout_s
        dial = functools.partial(gate.dial, [begun.head], begun.port, secret, text, limit_s, to_come=True)
        return "serve", dial(), secret, None, dial if begun.plan.outlives_head else None
    from .stand_in import StandIn

    ours, heads = socket.socketpair()
    stand_in = StandIn(loop, ours.detach(), begun, secret, folder, run_dir, line.write_fd)
    return "lead", Line(heads.fileno(), heads.detach()), secret, stand_in, None


def _take_wheel(folder: str, run_dir: str) -> None:
    """Let programs import pslaunch from the wheel in a folder that fits this Python and machine, if any."""
    import platform
    import sysconfig
    from zipfile import ZipFile

    from ..beginning import is_wheel_for

    machine = sysconfig.get_platform().rpartition("-")[2]
    libc = "many" if platform.libc_ver()[0] == "glibc" else "musl"
    for name in os.listdir(folder) if os.path.isdir(folder) and sys.version_info >= (3, 11) else ():
        if is_wheel_for(name, machine, libc):
            there = os.path.join(run_dir, "wheel")
            with ZipFile(os.path.join(folder, name)) as wheel:
                wheel.extractall(there)
            others = os.environ.get("PYTHONPATH")
            os.environ["PYTHONPATH"] = f"{there}:{others}" if others else there


def _read_endpoint(line: Line, keeper: socket.socket, lost_after_s: float) -> dict[str, Any]:
    """Read an address to dial, the only message of a line, and facts of this node for the other side.

    Raises OSError also if the keeper has ended.
    """
    decoder, silence = Decoder(line.seals and line.seals[1]), Silence(time.monotonic())
    while True:
        keeper.send(b".")
        if select.select([line.read_fd], [], [], procs.BEAT_S)[0]:
            silence.hear(time.monotonic())
            piece = os.read(line.read_fd, READ_BYTES)
            for item in decoder.feed(piece):
                if not isinstance(item, dict) or item.pop("type") != "dial":
                    raise WireError("expected an address to dial")
                return item
            if not piece:
                raise EOFError("the launcher's line ended before it said where the head is")
        elif silence.measure(time.monotonic()) >= lost_after_s:
            raise TimeoutError(f"no message from the launcher for {lost_after_s:g} s")


def _dial(line: Line, where: dict[str, Any], limit_s: float) -> tuple[Line, bytes]:
    """Connect to the head; close the former line, which our starter needs no more."""
    from ..line import gate

    line.close()
    addrs, port, secret = where.pop("addrs"), int(where.pop("port")), bytes.fromhex(where.pop("secret"))
    return gate.dial(addrs, port, secret, json.dumps(where).encode(), limit_s), secret


def _take_standard_streams() -> Line:
    """Move standard input and output to other descriptors, out of reach of programs and stray prints."""
    line = Line(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return line
