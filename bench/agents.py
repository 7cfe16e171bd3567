"""Measure the memory of the launcher's processes, and a head with many agents: `python bench/agents.py`.

Memory of a keeper with its agent is read while a job runs. The thousand agents speak the real wire to a real
head over socket pairs, all from one process: each greets, prepares, starts one trainer that says a line and
ends, and cleans up; none of them starts anything.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import resource
import socket
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pslaunch.node.head.head import Head
from pslaunch.node.job import Count, Limits, Node, Plan, Role, place
from pslaunch.node.line.wire import Line, Message, MessageLine, Output
from pslaunch.node.loop import Loop
from pslaunch.runtime.shared.env import TRAINER
from turns import Table, find_beside_python, make_fresh_folder, make_user_environ

WAIT = "import sys; open('ready', 'w').close(); sys.stdin.read(); import signal; signal.pause()\n"
LIMIT_S = 60.0
MB = 1e6


def measure_memory(pid: int) -> tuple[float, float]:
    """PSS and RSS of a process in bytes: PSS counts a page that n processes share as 1/n."""
    kb = {"Pss": 0, "Rss": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in kb:
            kb[name] = int(value.split()[0])
    return kb["Pss"] * 1024.0, kb["Rss"] * 1024.0


def list_children(pid: int) -> list[int]:
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def weigh_guards() -> tuple[float, float]:
    """PSS and RSS of a keeper and its agent together, while a trainer runs."""
    with make_fresh_folder() as folder, make_user_environ() as environ:
        (folder / "wait.py").write_text(WAIT)
        argv = [find_beside_python("pslaunch"), "local", "--server_num=0", str(folder / "wait.py")]
        launcher = subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: (folder / "ready").exists() or launcher.poll() is not None)
            keeper = list_children(launcher.pid)[0]
            both = [measure_memory(pid) for pid in (keeper, list_children(keeper)[0])]
        finally:
            launcher.terminate()
            launcher.wait()
    return sum(pss for pss, _ in both), sum(rss for _, rss in both)


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end_s:
            raise SystemExit(f"nothing happened within {LIMIT_S:g} s")
        time.sleep(0.01)


# --- a head with many agents ---


class Peer:
    """An agent that only speaks: answers each order as a node would whose trainer is done at once."""

    def __init__(self, loop: Loop, fd: int, number: int) -> None:
        self.number = number
        self.numbers: dict[str, int] = {}
        self.done = False
        self.line: MessageLine[Any] = MessageLine(
            loop, Line(fd, fd), lost_after_s=LIMIT_S, on_message=self._answer, on_lost=lambda _: self._close()
        )

    def _answer(self, message: Message) -> None:
        answer = getattr(self, f"_{message['type']}", None)
        if answer:
            answer(message)

    def _prepare(self, message: Message) -> None:
        folders = {name: message[name] for name in ("workspace", "log_dir", "output_dir", "state_dir")}
        own = {"host": f"host{self.number}", "run_dir": "/run/x", "python": "/usr/bin/python3"}
        self.line.send({"type": "prepared", **own, "addrs": [message["addr"]], "shared": None, **folders})

    def _ports(self, _message: Message) -> None:
        self.line.send({"type": "bound"})

    def _begin(self, message: Message) -> None:
        self.numbers = dict(message["numbers"])

    def _start(self, message: Message) -> None:
        key, text = message["key"], b"Pass 0, cost 1.0\n"
        self.line.send({"type": "started", "key": key, "pid": 1})
        self.line.send_output(Output(self.numbers[key], 0, text))
        how = {"code": 0, "signal": "", "asked": False, "oom": False, "tail": [], "ahead": False}
        self.line.send({"type": "exited", "key": key, "written": len(text), **how}, in_order=True)

    def _finish(self, _message: Message) -> None:
        self.line.send({"type": "finished", "killed": 0, "left": []}, in_order=True)

    def _close(self) -> None:
        self.done = True


def speak(fds: list[int], heads: list[int]) -> None:
    """All agents, in this process, until the head has closed every line."""
    for fd in heads:
        os.close(fd)
    loop = Loop()
    peers = [Peer(loop, fd, i) for i, fd in enumerate(fds)]
    end_s = time.monotonic() + LIMIT_S
    loop.call_every(0.5, lambda: None)
    loop.run(lambda: all(p.done for p in peers) or time.monotonic() > end_s)


def make_plan(nodes: int) -> Plan:
    """A trainer on each node, alone."""
    there = tuple(
        Node(i, f"n{i}", f"10.0.{i // 250}.{i % 250 + 1}", "/w", "/w/log", "/w/out", "/w/s")
        for i in range(nodes)
    )
    role = Role(TRAINER, Count("per_node", 1), ("train.py",))
    named: dict[str, Any] = {
        "job_id": "bench",
        "name": "bench",
        "epoch": 0,
        "backend": "local",
        "server": "none",
    }
    more: dict[str, Any] = {
        "why": "",
        "port": None,
        "ports_num": 1,
        "ports_num_for_sparse": 0,
        "trainer_count": 1,
    }
    last: dict[str, Any] = {
        "use_gpu": False,
        "added_env": {},
        "flags": {},
        "limits": Limits(5.0, 30.0, 60.0, None, 60.0),
        "nodes": there,
    }
    return Plan(roles=(role,), **named, **more, **last)


def lead(nodes: int) -> dict[str, float]:
    """Run one job over so many agents: seconds, descriptors and bytes of the head's process."""
    before_bytes = measure_memory(os.getpid())[0]
    pairs = [socket.socketpair() for _ in range(nodes)]
    heads, agents = [a.detach() for a, _ in pairs], [b.detach() for _, b in pairs]
    speaker = mp.get_context("fork").Process(target=speak, args=(agents, heads), daemon=True)
    speaker.start()
    for fd in agents:
        os.close(fd)
    loop, plan = Loop(), make_plan(nodes)
    begin_s = time.monotonic()
    head = Head(loop, place(plan, plan.nodes), "00" * 32, time.time)
    for node, fd in zip(plan.nodes, heads, strict=True):
        head.attach(node, Line(fd, fd))
    cursor = running = fds = 0
    started_s = most_bytes = 0.0
    while not head.done and time.monotonic() - begin_s < LIMIT_S:
        loop.run_once(1.0)
        events, cursor = head.list_events(cursor)
        running += sum(e["event"] == "process" and e["state"] == "running" for e in events)
        if running == nodes and not started_s:
            started_s = time.monotonic() - begin_s
            fds, most_bytes = len(list(Path("/proc/self/fd").iterdir())), measure_memory(os.getpid())[0]
    ended_s = time.monotonic() - begin_s
    speaker.join(10)
    loop.close()
    if not head.done or head.code != 0 or not started_s:
        raise SystemExit(f"the job of {nodes} agents did not end well")
    return {"start_s": started_s, "end_s": ended_s, "fds": fds, "bytes": most_bytes - before_bytes}


def _lead_apart(nodes: int, answer: Any) -> None:
    answer.send(lead(nodes))


def lead_apart(nodes: int) -> dict[str, float]:
    """The same in a fresh process, so that memory is of this job alone."""
    ours, theirs = mp.get_context("spawn").Pipe()
    process = mp.get_context("spawn").Process(target=_lead_apart, args=(nodes, theirs))
    process.start()
    theirs.close()
    found: dict[str, float] = ours.recv()
    process.join()
    return found


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5, help="of each (%(default)s)")
    parser.add_argument("--agents", type=int, default=1000, help="of one head (%(default)s)")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    table = Table("Weight", beside="limit")
    weights = [weigh_guards() for _ in range(options.turns)]
    pss, rss = (statistics.median(w[i] for w in weights) / MB for i in range(2))
    table.add_row("agent with its keeper, memory (PSS)", f"{pss:.1f} MB", "30 MB", pss / 30, "<= 1.0")
    table.add_row("the same, RSS of both added", f"{rss:.1f} MB", "30 MB", rss / 30)
    runs = [lead_apart(options.agents) for _ in range(options.turns)]
    median = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    name = f"{options.agents} agents on one head"
    table.add_row(f"{name}: last trainer started after", f"{median['start_s']:.2f} s")
    table.add_row(f"{name}: all over after", f"{median['end_s']:.2f} s")
    table.add_row(f"{name}: descriptors of the head", f"{median['fds']:.0f}")
    per_kb = median["bytes"] / options.agents / 1024
    table.add_row(
        f"{name}: memory of the head for them", f"{median['bytes'] / MB:.1f} MB, {per_kb:.0f} KiB each"
    )


if __name__ == "__main__":
    main()
