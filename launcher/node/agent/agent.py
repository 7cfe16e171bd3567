"""The agent: makes a node ready, starts and watches its programs, reports, ends them.

It obeys the head while the line to it lives; without that line, or without its keeper, it ends everything
by itself, as ending.py decides.
"""

from __future__ import annotations

import contextlib
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
from ..beginning import LostHead
from ..codes import Refusal
from ..ending import CUT, Shutdown
from ..line import reach
from ..line.trace import Trace
from ..line.wire import NONSENSE, Data, Line, Message, MessageLine
from ..listing import CHOSEN_PYTHON, mark_unfetched, read_lines, write_text
from ..loop import Loop
from ..run_dir import SPAWNER_FILE, end_leftovers
from .job_folders import JobFolders
from .loan import Loans
from .partner import Partner
from .program import Program, explain_start_failure, follow_usage, make_own_argv
from .resources import find_resources, follow_gpus

if TYPE_CHECKING:
    from .. import messages
    from ..beginning import Dial
    from ..dispatch.filling import Filling
    from .loan import Loan

NOTED_WITHIN_S = 1.0  # limit for the head to take over the end of a signalled agent


class Agent:
    """One node of one job, from the head's hello to the clean end."""

    def __init__(
        self,
        loop: Loop,
        run_dir: str,
        keeper: socket.socket,
        line: Line,
        *,
        lost_after_s: float,
        grace_s: float,
        secret: bytes,
        lent: Mapping[str, Loan],
        dial: Dial | None = None,
    ) -> None:
        """secret: of the job, if `line` was dialed with its proof; lent: by program."""
        self._loop, self._run_dir, self._grace_s = loop, run_dir, grace_s
        self._secret, self._lent = secret, Loans(loop, lent)
        for key, loan in lent.items():
            loop.watch(loan.fileno(), read=functools.partial(self._report_vanished, key))
        most = Program.file_limits[1]  # a program needs four files here
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._held: dict[str, list[socket.socket]] = {}  # ports of programs not started, and all marks
        self._furnishing: messages.FurnishMsg | None = None  # the order in progress
        self._door: reach.Door | None = None
        self._filling: Filling | None = None
        self._programs: dict[str, Program] = {}
        self._numbers: dict[str, int] = {}
        self._can_not_start = False  # a program failed to start; the job ends
        self._folders: JobFolders | None = None
        self._trace: Trace | None = None
        self._ending: Shutdown | None = None  # our own, without a head to order one
        self._lost_head = LostHead(loop, dial, lambda message: self._line.send(message))
        self._noted = False  # the head ends the job for what we have reported
        self._linger_until_s = 0.0
        self._unfetched: list[str] = []  # marks of our files, for that time
        self._signalled = False
        self.code: int | None = None
        loop.handle_signals({signal.SIGCHLD: self._handle_children})
        self._keeper, self._keeper_pid = Partner(loop, keeper, lost_after_s, self._lose_keeper), os.getppid()
        self._open_line(line, lost_after_s)

    def _open_line(self, line: Line, lost_after_s: float) -> None:
        self._line: MessageLine[messages.OfAgent] = MessageLine(
            self._loop, line, lost_after_s=lost_after_s,
            on_message=self._obey, on_lost=self._lose_head, on_data=self._take,
        )  # fmt: skip

    def end_on_signal(self, number: int, asker: str = "") -> None:
        """End after a signal to the agent itself: by orders of the head, alone only without any.

        asker: the scheduler whose signal is for the whole job.
        """
        self._signalled = True
        self._leave_if_fetched()
        asked = f"{asker} asked for the end of the job" if asker else "the agent was asked to end"
        why = f"{asked} ({signal.Signals(number).name})"
        self._report_trouble("", codes.TERM if asker else codes.NODE_LOST, why)
        self._loop.call_after(NOTED_WITHIN_S, lambda: None if self._noted else self._end_alone(why))

    # --- orders ---

    def _obey(self, message: Message) -> None:
        name = f"order_{message['type']}"
        hearers = self, self._filling, self._lost_head
        order = next((getattr(one, name) for one in hearers if hasattr(one, name)), None)
        if order is None:
            self._report_trouble("", codes.NODE_LOST, f"unknown order {message['type']!r}")
            return
        self._answer(lambda: order(message))

    def _answer(self, work: Callable[[], None]) -> None:
        """Carry out an order; report to the head why that fails."""
        try:
            work()
        except (Refusal, OSError, *NONSENSE) as e:
            self._refuse(e)

    def _refuse(self, e: Exception) -> None:
        """Report a refusal, a system error, or what an order that can't be right has led to."""
        self._report_trouble("", *codes.explain_failure(e))

    def order_hello(self, _m: messages.HelloMsg) -> None:
        """Do nothing: the wire has compared the versions."""

    def order_prepare(self, m: messages.PrepareMsg) -> None:
        """Prepare folders, lock, node files and secret; answer with facts that only the node knows."""
        self._node = int(m["node"])
        if m["trace"]:
            self._trace = Trace(f"node {self._node}")
            self._line.trace = self._trace.make_note("head")
            self._line.trace("got", m)
        if m["secret"] is not None:
            self._secret = bytes.fromhex(m["secret"])
        addrs = [m["addr"]] if m["addr"] else reach.list_candidates(m["nic"])
        self._keeper.lost_after_s = self._line.lost_after_s = float(m["lost_after_s"])
        self._grace_s = float(m["grace_s"])
        folders = self._folders = self._folders or JobFolders(m, self._keeper.hand_over)

        def enter() -> str:
            left = end_leftovers()
            folders.enter()
            return left

        def report(left: str) -> None:
            self._answer(lambda: self._report_prepared(folders, addrs, left, m))

        self._loop.do_aside(enter, report, self._refuse)

    def _report_prepared(
        self, folders: JobFolders, addrs: list[str], left: str, m: messages.PrepareMsg
    ) -> None:
        if self._trace:
            self._trace.begin(os.path.join(folders.paths["log_dir"], logs.NODE_TRACE))
        if m["filled"] and folders.shared is None:
            from ..dispatch.filling import Filling

            self._filling = Filling(
                self._loop,
                folders.workspace,
                self._secret,
                say=self._line.send,
                answer=self._answer,
                refuse=self._refuse,
                trace=self._trace,
            )
        write_text(os.path.join(self._run_dir, "secret"), self._secret.hex(), 0o600)
        for loan in self._lent.values():
            write_text(os.path.join(self._run_dir, SPAWNER_FILE), loan.spawner, 0o600)
        self._line.send({
            "type": "prepared", "host": socket.gethostname(), "run_dir": self._run_dir,
            "python": sys.executable, "addrs": addrs, "shared": folders.shared, "left": left,
            "resources": find_resources(with_cores=bool(m["bind_cores"])), **folders.paths,
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
            os.makedirs(own["TMPDIR"], exist_ok=True)
        order: messages.ProgramOrder = {
            "key": m["key"], "role": env.TRAINER, "argv": [*make_own_argv(), "furnish", json.dumps(words)],
            "cwd": m["workspace"], "added_env": m["added_env"], "contract": own, "log": m["log"],
            "cores": [],
        }  # fmt: skip
        self._programs[m["key"]] = Program(self._loop, self._line, int(m["number"]), order)
        self._furnishing = m

    def _report_furnished(self) -> None:
        m, self._furnishing = self._furnishing, None
        assert m is not None
        program = self._programs.pop(m["key"])
        program.finish()
        if program.process.returncode == codes.OK:
            python = "".join(read_lines(m["state_dir"], CHOSEN_PYTHON))
            self._line.send({"type": "furnished", "python": python}, in_order=True)

    def _take(self, piece: Data) -> None:
        if self._filling:
            self._filling.take(piece)

    def order_inspect(self, m: messages.InspectMsg) -> None:
        """Report facts of this node; only `door`, `shut` and `reach` follow."""
        from .inspect import inspect_node

        self._node, self._secret = int(m["node"]), bytes.fromhex(m["secret"])
        self._line.send({"type": "clock", "time": time.time()})
        self._loop.do_aside(
            lambda: inspect_node(m, self._run_dir, self._lent.values()),
            lambda facts: self._line.send({"type": "inspected", "facts": facts}),
            self._refuse,
        )

    def order_door(self, m: messages.DoorMsg) -> None:
        """Listen, at this port if it is free, so that other nodes can test our addresses."""
        self._door = reach.Door(self._loop, reach.make_word(self._secret, self._node), int(m["port"]))
        self._line.send({"type": "opened", "port": self._door.port})

    def order_shut(self, _m: messages.ShutMsg) -> None:
        self._close_doors()
        self._line.send({"type": "shut"})

    def order_reach(self, m: messages.ReachMsg) -> None:
        self._loop.do_aside(
            lambda: reach.try_all(m["doors"], self._secret, m["limit_s"]),
            lambda reached: self._line.send({"type": "reached", "reached": reached}),
            self._refuse,
        )

    def order_allreduce(self, m: messages.AllreduceMsg) -> None:
        from .inspect import try_allreduce

        loans, python = self._lent.values(), os.path.expanduser(m["python"]) or sys.executable
        self._loop.do_aside(
            lambda: try_allreduce(loans, python, m["env"], m["limit_s"]),
            lambda text: self._line.send({"type": "allreduced", "text": text}),
            self._refuse,
        )

    def order_ports(self, m: messages.PortsMsg) -> None:
        ports.close_all(*self._held.values())
        self._held = {}
        try:
            self._held = ports.hold_all(m["addr"], m["ports"])
        except ports.BusyPort as e:
            holder = busyport.find_holder(e.addr, e.port, e.mark) if m["last"] else ""
            self._line.send({
                "type": "busy", "key": e.key, "port": e.port,
                "busy": e.busy, "text": str(e), "holder": holder,
            })  # fmt: skip
            return
        self._line.send({"type": "bound"})

    def order_begin(self, m: messages.BeginMsg) -> None:
        """Write the list of nodes, keep the output numbers, close ports without a program."""
        self._close_doors()
        assert self._folders is not None
        self._folders.write_nodes(m["nodes"])
        gloo = os.path.join(self._run_dir, "gloo")
        shutil.rmtree(gloo, ignore_errors=True)  # of the epoch before
        os.mkdir(gloo)
        if not self._numbers:  # the first epoch; preparation is not measured
            follow_usage(self._loop, self._programs, follow_gpus())
        self._numbers = dict(m["numbers"])
        for key in self._held.keys() - {ports.PORT_MARKS, *self._numbers}:
            ports.close_all(self._held.pop(key))

    def order_start(self, m: messages.StartMsg) -> None:
        """Start a program, or report the failure; after one failure start no more."""
        if not self._can_not_start:
            try:
                self._start(m)
            except (Refusal, OSError) as e:
                self._can_not_start = True
                self._report_trouble(m["key"], *explain_start_failure(e, m["argv"][0]))
        if self._can_not_start:
            self._line.send({"type": "not_started", "key": m["key"]})

    def _start(self, m: messages.StartMsg) -> None:
        key = m["key"]
        held, loan = self._held.pop(key, []), self._lent.get(key)
        kept_fds = [s.fileno() for s in held] if m["keep_ports"] else []
        if not kept_fds:
            ports.close_all(held)
        try:
            program = Program(self._loop, self._line, self._numbers[key], m, kept_fds=kept_fds, loan=loan)
        finally:
            ports.close_all(held)
        self._programs[key] = program
        if program.role == env.TRAINER:
            self._keeper.hand_over(b"%d " % program.process.pid)  # which the kernel tells of our end
        self._line.send({"type": "started", "key": key, "pid": program.process.pid})

    def order_signal(self, m: messages.SignalMsg) -> None:
        if self._ending and m["number"] != signal.SIGKILL:
            return  # we have signalled all of them
        for key in m["keys"]:
            program = self._programs.get(key)
            if program:
                program.signal(m["number"])
        if m["number"] != CUT:
            self._lent.signal(m["keys"], m["number"], self._grace_s)

    def order_clear(self, m: messages.ClearMsg) -> None:
        """End what is left of the programs; those of the next epoch follow."""

        def clear() -> None:
            if self._ending or self.code is not None:
                return
            left = self._end_programs()[1]
            self._programs.clear()
            self._lent.renew()
            answer: messages.ClearedMsg = {"type": "cleared", "epoch": m["epoch"], "left": [*map(str, left)]}
            self._line.send(answer, in_order=True)

        self._lent.end_spawned(self._grace_s, clear)

    def order_finish(self, m: messages.FinishMsg) -> None:
        """End the job on this node; the agent may linger to serve its files."""
        self._linger_until_s = self._loop.now() + float(m["linger_s"])
        self._lent.end_spawned(self._grace_s, self._finish)

    def _finish(self) -> None:
        killed, left = self._clean()
        self._line.send({"type": "finished", "killed": killed, "left": [*map(str, left)]}, in_order=True)
        self.code = codes.OK
        self._leave_if_fetched()

    def _leave_if_fetched(self) -> None:
        """Linger no more after a signal, unless for a fetch: a cluster that has lost one pod signals all."""
        if self._signalled and self.code is not None and not any(map(os.path.lexists, self._unfetched)):
            self._linger_until_s = 0.0

    def order_noted(self, _m: messages.NotedMsg) -> None:
        self._noted = True

    @property
    def is_over(self) -> bool:
        """True once nobody needs this process any more."""
        return self.code is not None and self._line.is_idle and not self._lingers

    @property
    def _lingers(self) -> bool:
        return self._loop.now() < self._linger_until_s

    # --- reports ---

    def _report_trouble(self, key: str, code: int, text: str) -> None:
        """Report a failure other than a program's exit; the head ends the job."""
        self._line.send({"type": "trouble", "key": key, "code": code, "text": text})

    def _handle_children(self) -> None:
        self._reap(procs.reap())
        if self._furnishing and self._programs[self._furnishing["key"]].ended:
            self._report_furnished()
        self._carry_on()

    def _reap(self, ended: dict[int, int]) -> None:
        for program in self._programs.values():
            if program.process.pid in ended:
                program.handle_exit(ended[program.process.pid])
                if self._ending:
                    self._ending.remove(program.key)

    def _report_vanished(self, key: str) -> None:
        self._loop.watch(self._lent[key].fileno())
        program = self._programs.get(key)
        if not (program and program.ended):
            text = "lost its rank process, which was ended from outside"
            self._report_trouble(key, codes.NODE_LOST, text)

    # --- ending without a head or without a keeper ---

    def _lose_head(self, reason: str) -> None:
        """End the programs, and then all else, unless another head may come: it starts them again."""
        if self._ending is None and self.code is None and not self._signalled:
            self._lost_head.lose(reason)
        self._end_alone(f"the head is gone: {reason}")

    def _seek_head(self) -> None:
        self._close_doors()
        self._end_programs()
        self._programs.clear()
        self._ending, self._furnishing, self._lost_head.is_sought = None, None, True
        procs.complain("agent: waiting for another head")

        def take(found: Line) -> None:
            if self.code is None and self._ending is None:
                self._lost_head.is_lost = self._lost_head.is_sought = False
                self._open_line(found, self._line.lost_after_s)
            else:
                found.close()

        assert self._lost_head.dial is not None
        self._loop.do_aside(self._lost_head.dial, take, lambda e: self._end_alone(f"no other head: {e}"))

    def _lose_keeper(self, silent_s: float) -> None:
        """End everything here without an order and report the reason, which the programs' exits lack."""
        why = f"its keeper was silent for {silent_s:.0f} s" if silent_s else "its keeper was killed"
        if silent_s and self._ending is None:
            keeper = procs.read_proc(self._keeper_pid)
            if keeper and os.getppid() == self._keeper_pid:  # still our parent: the pid was not reused
                procs.send(keeper, signal.SIGKILL)
        if self.code is None and self._ending is None:
            self._report_trouble("", codes.NODE_LOST, why)
            self._end_alone(why)

    def _end_alone(self, why: str) -> None:
        if self._ending is not None or self.code is not None:
            return
        procs.complain(f"agent: {why}; ending the programs here")
        alive = {p.key: p.role for p in self._programs.values() if not p.ended}
        self._ending = Shutdown(alive, self._grace_s, self._loop.now())
        self._carry_on()

    def _carry_on(self) -> None:
        """Send the signals that are due, if we end the programs ourselves and they have not all ended."""
        if self._ending is None or self.code is not None:
            return
        now = self._loop.now()
        for action in self._ending.decide(now):
            for key in action.keys:
                self._programs[key].signal(action.number)
            self._lent.signal(action.keys, action.number, self._grace_s)
        if self._ending.over:
            self._lent.end_spawned(self._grace_s, self._leave)
        else:
            self._loop.call_at(min(self._ending.find_due_s(now), now + 1.0), self._carry_on)

    def _leave(self) -> None:
        if self._lost_head.is_lost and not (self._signalled or self._lost_head.is_sought):
            self._seek_head()
        elif self.code is None:
            if self._lost_head.is_lost:  # none comes: as at any end
                self._linger_until_s = self._loop.now() + self._lost_head.linger_s
            _, left = self._clean()
            procs.report_left("agent", left, self._folders.guards_log if self._folders else "")
            self.code = codes.PEER
            self._leave_if_fetched()

    def _clean(self) -> tuple[int, list[int]]:
        """Kill the remaining descendants, release ports, lock and files.

        Returns the number of killed processes, and those that can't be ended.
        """
        self._close_doors()
        killed, left = self._end_programs()
        for key, loan in self._lent.items():
            borrower = self._programs.get(key)
            code = borrower.process.returncode if borrower and borrower.ended else codes.NODE_LOST
            self._loop.watch(loan.fileno())
            loan.dismiss(code, alone=self._ending is not None)
        self._lent.clear()
        ports.close_all(*self._held.values())
        if self._folders:
            self._folders.leave()
        if self._lingers and self._folders and self._numbers:
            with contextlib.suppress(OSError):  # without marks a signal ends us sooner
                self._unfetched = mark_unfetched(self._folders.paths["state_dir"], with_output=not self._node)
        if not self._lingers:  # else late observers find the head there
            shutil.rmtree(self._run_dir, ignore_errors=True)  # the keeper, if alive, does it too
        return killed, left

    def _end_programs(self) -> tuple[int, list[int]]:
        """Kill the remaining descendants; return as `_clean`."""
        killed, ended, left = procs.kill_descendants()
        self._reap(ended)
        for program in self._programs.values():
            program.finish()
        return killed, left + self._lent.left

    def _close_doors(self) -> None:
        if self._door:
            self._door.close()
            self._door = None
        if self._filling:
            self._filling.close()
