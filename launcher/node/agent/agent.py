"""The agent: makes a node ready, starts and watches its programs, reports, ends them.

It obeys the head while the line to it lives; without that line, or without its keeper, it ends everything
by itself, as ending.py decides.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pslaunch.runtime.shared import busyport, env

from .. import codes, logs, ports, procs
from ..codes import Refusal, find_remedy
from ..ending import Ending
from ..line import reach
from ..line.trace import Trace
from ..line.wire import Data, Message, MessageLine
from ..loop import Loop
from ..procs import KILL_LIMIT_S, complain, reap
from .job_folders import JobFolders, write_text
from .keeper_link import KeeperLink
from .program import Program

if TYPE_CHECKING:
    from .. import messages
    from ..dispatch.filling import Filling
    from ..line.gate import Seals
    from .loan import Loan

END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
NOTED_WITHIN_S = 1.0  # limit for the head to take over the end of a signalled agent


class Agent:
    """One node of one job, from the head's hello to the clean end."""

    def __init__(
        self,
        loop: Loop,
        run_dir: str,
        keeper_fd: int,
        line_fds: tuple[int, int],
        *,
        lost_after_s: float,
        grace_s: float,
        seals: Seals | None = None,
        secret: bytes = b"",
        lent: Mapping[str, Loan] | None = None,
    ) -> None:
        """secret: of the job, given with `seals`, its proof by a line that was dialed; lent: by program."""
        self.loop, self._run_dir, self._grace_s = loop, run_dir, grace_s
        self._secret, self.lent = secret, lent or {}
        for key, loan in self.lent.items():
            loan.watch(loop, functools.partial(self._report_vanished, key))
        self.program_files = _raise_file_limit()
        self.held: dict[str, list[socket.socket]] = {}
        self._furnishing: messages.FurnishMsg | None = None  # the order in progress
        self._door: reach.Door | None = None
        self._filling: Filling | None = None
        self._marks: list[socket.socket] = []  # of all our ports, until the end of the job
        self._programs: dict[str, Program] = {}
        self._numbers: dict[str, int] = {}
        self._can_not_start = False  # a program failed to start; the job ends
        self._folders: JobFolders | None = None
        self._trace: Trace | None = None
        self._ending: Ending | None = None  # our own, without a head to order one
        self._noted = False  # the head ends the job for what we have reported
        self._linger_until_s = 0.0
        self._signalled = False
        self.code: int | None = None
        loop.handle_signals({signal.SIGCHLD: self._handle_children})
        self._keeper = KeeperLink(
            loop, keeper_fd, lost_after_s, lose=self._give_up, is_ending=lambda: self._ending is not None
        )
        self.line: MessageLine[messages.OfAgent] = MessageLine(
            loop,
            *line_fds,
            lost_after_s=lost_after_s,
            on_message=self._obey,
            on_lost=lambda reason: self._end_alone(f"the head is gone: {reason}"),
            on_data=self._take,
            seals=seals,
        )

    def end_on_signal(self, number: int, asker: str = "") -> None:
        """End after a signal to the agent itself: by orders of the head, alone only without any.

        asker: the scheduler whose signal is for the whole job.
        """
        self._signalled = True
        why = describe_end_signal(number, asker)
        self.report_trouble("", codes.TERM if asker else codes.NODE_LOST, why)
        self.loop.call_after(NOTED_WITHIN_S, lambda: None if self._noted else self._end_alone(why))

    # --- orders ---

    def _obey(self, message: Message) -> None:
        name = f"order_{message['type']}"
        order = getattr(self, name, None) or getattr(self._filling, name, None)
        if order is None:
            self.report_trouble("", codes.NODE_LOST, f"unknown order {message['type']!r}")
            return
        self._answer(lambda: order(message))

    def _answer(self, work: Callable[[], None]) -> None:
        """Carry out an order; report a refusal or a system error to the head."""
        try:
            work()
        except (Refusal, OSError) as e:
            self._refuse(e)

    def _refuse(self, e: Exception) -> None:
        """Report a refusal or a system error to the head; raise any other."""
        if not isinstance(e, (Refusal, OSError)):
            raise e
        code, text = codes.explain_failure(e)
        self.line.send({"type": "refused", "code": code, "text": text})

    def order_hello(self, _m: messages.HelloMsg) -> None:
        """Do nothing: the wire has compared the versions."""

    def order_prepare(self, m: messages.PrepareMsg) -> None:
        """Prepare folders, lock, node files and secret; answer with facts that only the node knows."""
        self._node = int(m["node"])
        if m["trace"]:
            self._trace = Trace(f"node {self._node}")
            self.line.trace = self._trace.make_note("head")
            self.line.trace("got", m)
        if m["secret"] is not None:
            self._secret = bytes.fromhex(m["secret"])
        addrs = [m["addr"]] if m["addr"] else _list_own_addrs(m["nic"])
        self._keeper.lost_after_s = self.line.lost_after_s = float(m["lost_after_s"])
        self._grace_s = float(m["grace_s"])
        self._folders = JobFolders(
            self.loop,
            m,
            run_dir=self._run_dir,
            hand_over=lambda lock_fd: self._keeper.hand_over(lock_fd, self._get_guards_log()),
            answer=self._answer,
            refuse=self._refuse,
            ready=lambda: self._report_prepared(addrs, filled=bool(m["filled"])),
        )
        self._folders.enter()

    def _get_guards_log(self) -> str:
        return os.path.join(self._folders.paths["log_dir"], logs.GUARDS_LOG) if self._folders else ""

    def _report_prepared(self, addrs: list[str], *, filled: bool) -> None:
        folders = self._folders
        assert folders is not None
        if self._trace:
            self._trace.begin(os.path.join(folders.paths["log_dir"], logs.NODE_TRACE))
        if filled and folders.shared is None:
            from ..dispatch.filling import Filling

            self._filling = Filling(
                self.loop,
                folders.workspace,
                self._secret,
                say=self.line.send,
                answer=self._answer,
                refuse=self._refuse,
                trace=self._trace,
            )
        write_text(os.path.join(self._run_dir, "secret"), self._secret.hex(), 0o600)
        self.line.send({
            "type": "prepared", "host": socket.gethostname(), "run_dir": self._run_dir,
            "python": sys.executable, "addrs": addrs, "shared": folders.shared, **folders.paths,
        })  # fmt: skip

    def order_furnish(self, m: messages.FurnishMsg) -> None:
        """Run the installation and setup as a program; answer on its exit."""
        # Not the whole order: other users of this machine can read a program's arguments.
        words = {
            "workspace": m["workspace"], "state_dir": m["state_dir"],
            "install": m["install"], "setup": m["setup"],
        }  # fmt: skip
        own = {"PSLAUNCH_PROGRESS": os.path.join(self._run_dir, "setup.sock")}
        if "TMPDIR" not in m["added_env"]:  # removed with our run folder, even if pip is killed
            own["TMPDIR"] = os.path.join(self._run_dir, "tmp")
            os.mkdir(own["TMPDIR"])
        order: messages.ProgramOrder = {
            "key": m["key"], "role": env.TRAINER, "argv": [*make_own_argv(), "furnish", json.dumps(words)],
            "cwd": m["workspace"], "added_env": m["added_env"], "contract": own, "log": m["log"],
            "keep_ports": False,
        }  # fmt: skip
        self._programs[m["key"]] = Program(self, int(m["number"]), order)
        self._furnishing = m

    def _report_furnished(self) -> None:
        from .install import read_chosen_python

        m, self._furnishing = self._furnishing, None
        assert m is not None
        program = self._programs.pop(m["key"])
        program.finish()
        assert program.process is not None
        if program.process.returncode == codes.OK:
            python = read_chosen_python(m["state_dir"])
            self.line.send({"type": "furnished", "python": python}, in_order=True)

    def _take(self, piece: Data) -> None:
        if self._filling:
            self._filling.take(piece)

    def order_inspect(self, m: messages.InspectMsg) -> None:
        """Report facts of this node; only `door`, `shut` and `reach` follow."""
        from .inspect import inspect_node

        self._node, self._secret = int(m["node"]), bytes.fromhex(m["secret"])
        self.line.send({"type": "clock", "time": time.time()})
        self.loop.do_aside(
            lambda: inspect_node(m, self._run_dir, next((x.describe() for x in self.lent.values()), "")),
            lambda facts: self.line.send({"type": "inspected", "facts": facts}),
            self._refuse,
        )

    def order_door(self, m: messages.DoorMsg) -> None:
        """Listen, at this port if it is free, so that other nodes can test our addresses."""
        self._door = reach.Door(self.loop, reach.make_word(self._secret, self._node), int(m["port"]))
        self.line.send({"type": "opened", "port": self._door.port})

    def order_shut(self, _m: messages.ShutMsg) -> None:
        """Close the door: its port is free for a program."""
        self._close_doors()
        self.line.send({"type": "shut"})

    def order_reach(self, m: messages.ReachMsg) -> None:
        """Try the doors of other nodes, in a thread."""

        def try_doors() -> list[tuple[int, str]]:
            targets = [reach.Target(*door) for door in m["doors"]]
            return [(t.node, t.addr) for t in reach.try_all(targets, self._secret, m["limit_s"])]

        self.loop.do_aside(
            try_doors, lambda reached: self.line.send({"type": "reached", "reached": reached}), self._refuse
        )

    def order_ports(self, m: messages.PortsMsg) -> None:
        """Bind all proposed ports of this node, or none."""
        ports.close_all({**self.held, "": self._marks})
        self.held, self._marks = {}, []
        try:
            self._marks = ports.mark_all(m["addr"], m["ports"])
            self.held = ports.bind_all(m["addr"], m["ports"])
        except ports.BusyPort as e:
            holder = busyport.find_holder(e.addr, e.port, e.mark) if m["last"] else ""
            self.line.send({
                "type": "busy", "key": e.key, "port": e.port,
                "busy": e.busy, "text": str(e), "holder": holder,
            })  # fmt: skip
            return
        self.line.send({"type": "bound"})

    def order_begin(self, m: messages.BeginMsg) -> None:
        """Write the list of nodes, keep the output numbers, close ports without a program."""
        self._close_doors()
        assert self._folders is not None
        self._folders.write_nodes(m["nodes"])
        os.makedirs(os.path.join(self._run_dir, "gloo"), exist_ok=True)
        self._numbers = dict(m["numbers"])
        ports.close_all({key: self.held.pop(key) for key in list(self.held) if key not in self._numbers})

    def order_start(self, m: messages.StartMsg) -> None:
        """Start a program, or report the failure; after one failure start no more."""
        key = m["key"]
        if self._can_not_start:
            self.line.send({"type": "not_started", "key": key})
            return
        try:
            program = Program(self, self._numbers[key], m)
        except (Refusal, OSError) as e:
            self._can_not_start = True
            self.report_trouble(key, *_explain_start_failure(e, m["argv"][0]))
            self.line.send({"type": "not_started", "key": key})
            return
        self._programs[key] = program
        assert program.process is not None
        self.line.send({"type": "started", "key": key, "pid": program.process.pid})

    def order_signal(self, m: messages.SignalMsg) -> None:
        if self._ending and m["number"] != signal.SIGKILL:
            return  # we have signalled all of them
        for key in m["keys"]:
            program = self._programs.get(key)
            if program:
                program.signal(m["number"])

    def order_finish(self, m: messages.FinishMsg) -> None:
        """End the job on this node; the agent may linger to serve its files."""
        self._linger_until_s = self.loop.now() + float(m["linger_s"])
        killed, left = self._clean()
        self.line.send({"type": "finished", "killed": killed, "left": [*map(str, left)]}, in_order=True)
        self.code = codes.OK

    def order_noted(self, _m: messages.NotedMsg) -> None:
        self._noted = True

    @property
    def is_over(self) -> bool:
        """True once nobody needs this process any more."""
        return self.code is not None and self.line.is_idle and not self._lingers

    @property
    def _lingers(self) -> bool:
        return self.loop.now() < self._linger_until_s and not self._signalled

    # --- reports ---

    def report_trouble(self, key: str, code: int, text: str) -> None:
        """Report a failure other than a program's exit; the head ends the job."""
        self.line.send({"type": "trouble", "key": key, "code": code, "text": text})

    def _handle_children(self) -> None:
        self._reap(reap())
        if self._furnishing and self._programs[self._furnishing["key"]].ended:
            self._report_furnished()
        if self._ending and self.code is None:
            self._carry_on()

    def _reap(self, ended: dict[int, int]) -> None:
        for program in self._programs.values():
            if program.process and program.process.pid in ended:
                program.handle_exit(ended[program.process.pid])
                if self._ending:
                    self._ending.remove(program.key)

    def _report_vanished(self, key: str) -> None:
        program = self._programs.get(key)
        if not (program and program.ended):
            self.line.send({"type": "vanished", "key": key})

    # --- ending without a head or without a keeper ---

    def _give_up(self, why: str) -> None:
        """End everything here without an order and report the reason, which the programs' exits lack."""
        if self.code is None and self._ending is None:
            self.report_trouble("", codes.NODE_LOST, why)
            self._end_alone(why)

    def _end_alone(self, why: str) -> None:
        if self._ending is not None or self.code is not None:
            return
        complain(f"agent: {why}; ending the programs here")
        alive = {p.key: p.role for p in self._programs.values() if not p.ended}
        self._ending = Ending(alive, self._grace_s, self.loop.now())
        self._carry_on()

    def _carry_on(self) -> None:
        assert self._ending is not None
        now = self.loop.now()
        for action in self._ending.decide(now):
            for key in action.keys:
                self._programs[key].signal(action.number)
        if self._ending.over:
            _, left = self._clean()
            procs.report_left("agent", left, self._get_guards_log())
            self.code = codes.PEER
        else:
            self.loop.call_at(min(self._ending.find_due_s(now), now + 1.0), self._carry_on_once)

    def _carry_on_once(self) -> None:
        if self.code is None:
            self._carry_on()

    def _clean(self) -> tuple[int, list[int]]:
        """Kill the remaining descendants, release ports, lock and files.

        Returns the number of killed processes, and those that can't be ended.
        """
        if self._filling:
            self._filling.stop()
        killed, ended, left = procs.kill_descendants(KILL_LIMIT_S)
        self._reap(ended)
        for program in self._programs.values():
            program.finish()
        for key, loan in self.lent.items():
            borrower = self._programs.get(key)
            process = borrower and borrower.process
            code = process.returncode if process else codes.NODE_LOST
            loan.dismiss(code, alone=self._ending is not None)
        self._close_doors()
        ports.close_all({**self.held, "": self._marks})
        if self._folders:
            self._folders.leave()
        if not self._lingers:  # else late observers find the head there
            shutil.rmtree(self._run_dir, ignore_errors=True)  # the keeper, if alive, does it too
        return killed, left

    def _close_doors(self) -> None:
        if self._door:
            self._door.close()
            self._door = None
        if self._filling:
            self._filling.close()


def _raise_file_limit() -> tuple[int, int]:
    """Raise our limit of open files to the maximum (four per program); return the limits before."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    return before


def describe_end_signal(number: int, asker: str = "") -> str:
    """Return the reason for ending after a signal to the agent, from whoever asks for it."""
    asked = f"{asker} asked for the end of the job" if asker else "the agent was asked to end"
    return f"{asked} ({signal.Signals(number).name})"


def make_own_argv() -> list[str]:
    """Return the command that starts this package: from our zipapp, or as an installed module."""
    base, inside, _ = str(__spec__.origin).partition("/pslaunch/node/")
    if not inside or not os.path.isfile(base):
        return [sys.executable, "-P", "-m", "pslaunch.node"]
    return [sys.executable, base.replace("/proc/self/", f"/proc/{os.getpid()}/")]


def _list_own_addrs(nic: str) -> list[str]:
    try:
        return reach.list_candidates(nic)
    except LookupError as e:
        raise Refusal(codes.PREFLIGHT, str(e.args[0])) from None


def _explain_start_failure(e: Refusal | OSError, program: str) -> tuple[int, str]:
    if isinstance(e, Refusal):
        return e.code, str(e)
    where = f" ({e.filename})" if e.filename else ""
    return (
        127 if e.errno == errno.ENOENT else 126,
        f"{program} can't be started: {e.strerror}{where}{find_remedy(e)}",
    )
