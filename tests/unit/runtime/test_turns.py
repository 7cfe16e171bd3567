"""Turns, reads after a step, resends and reconnections of a shard against numpy, in any interleaving."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pslaunch.runtime import _core
from pslaunch.runtime.engine.entry import ANY
from pslaunch.runtime.engine.kernel_numbers import Schedule
from pslaunch.runtime.pserver.counters import Counters
from pslaunch.runtime.pserver.threads import EVENT, MAIL
from support import reference

pytestmark = pytest.mark.asan

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]

RULE = reference.Rule(method=reference.ADAM, lr=0.1, l2=1e-3, numbers=(0.9, 0.999, 1e-8))
SIZE, DIM, KEYS = 20_000, 3, 40  # of a size that does not fit into a socket at once
DENSE, TABLE = 0, 1
LIMIT_MS = 20_000


@dataclass
class Push:
    """A trainer's part in a step, and the arrays of its answers."""

    grad: F32
    keys: U64
    rows: F32
    wanted: U64  # rows that are read after the step
    factor: float  # of the learning rate
    out: F32 = field(default_factory=lambda: np.zeros(SIZE, np.float32))
    read: F32 = field(default_factory=lambda: np.zeros((0, DIM), np.float32))


@dataclass
class Trainer:
    """A client, and the calls of it that are not done."""

    core: _core.Client
    pushes: list[Push] = field(default_factory=list)  # in this pass
    call: int = 0  # of its last push; 0: done
    ending: int = 0  # of its END_PASS; 0: none


class Shard:
    """A shard in a thread, fed through its mailbox."""

    def __init__(self, trainers: int) -> None:
        mail_out, self._mail = os.pipe()
        self._events, event_in = os.pipe()
        os.set_blocking(event_in, False)

        def run() -> None:
            memory = Counters(trainers).memory
            _core.run_shard(trainers, 0, mail_out, event_in, 0.0, lambda *_: None, -1, memory)
            os.close(event_in)
            os.close(mail_out)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def connect(self, core: _core.Client, trainer: int) -> None:
        """Give the client a new connection."""
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        os.write(self._mail, MAIL.pack(theirs.detach(), trainer, trainer + 1))
        core.attach(0, ours.detach())

    def stop(self) -> None:
        """End the thread; it has refused nothing."""
        os.write(self._mail, MAIL.pack(-1, 0, 0))
        errors = []
        while data := os.read(self._events, EVENT.size):
            kind, _, _, text = EVENT.unpack(data)
            errors += [text.split(b"\0")[0].decode()] if kind == 6 else []
        self._thread.join()
        os.close(self._mail)
        os.close(self._events)
        assert errors == []


class TurnsMachine(RuleBasedStateMachine):
    """Lets trainers push, read, end passes and lose connections in any order."""

    shard: Shard | None = None

    @initialize(n=st.integers(1, 3), seed=st.integers(0, 99))
    def begin(self, n: int, seed: int) -> None:
        self.shard, self.rng, self.passes = Shard(n), np.random.default_rng(seed), 0
        self.trainers = [Trainer(_core.Client(1, 0, t)) for t in range(n)]
        self.values, self.slots = np.zeros(SIZE, np.float32), np.zeros((2, SIZE), np.float32)
        self.table = reference.SparseTable(dim=DIM, rule=RULE, table=reference.hash_name("e"), std=0.5)
        self.applied = self.before = 0  # steps: of the model, of earlier passes
        self.models: list[tuple[F32, F32]] = []  # values and rows after each step
        whole, zero = np.array([0, 0, SIZE], np.uint64), np.zeros(SIZE, np.float32)
        for t, trainer in enumerate(self.trainers):
            self.shard.connect(trainer.core, t)
            trainer.core.add("w", SIZE, RULE.pack(), Schedule().pack(), 0, 0, whole)
            rule, schedule = RULE.pack(), Schedule().pack()
            table = (DIM, ANY.pack(), 1, 0, 0.0, 0.5)
            trainer.core.add("e", KEYS, rule, schedule, 0, 0, np.zeros(3, np.uint64), table)
            trainer.core.init_dense(DENSE, zero if t == 0 else None)
        for t in range(n):
            self.finish(t, 0)

    def finish(self, t: int, call: int) -> None:
        """Run a call of a trainer to its end, 0: all of them; the others send what they have begun."""
        assert self.shard
        for _ in range(LIMIT_MS // 20):
            report = self.trainers[t].core.run(20, call)
            if report is None:
                return
            assert report[0] in ("wait", "broken"), report
            if report[0] == "broken":
                self.shard.connect(self.trainers[t].core, t)
            for other in range(len(self.trainers)):
                self.advance(other)
        raise AssertionError(f"call {call} of trainer {t} does not end")

    def advance(self, t: int) -> None:
        """Let a client send and receive what its connection takes at once."""
        assert self.shard
        while (report := self.trainers[t].core.progress()) is not None:
            assert report[0] == "broken", report
            self.shard.connect(self.trainers[t].core, t)

    @precondition(lambda self: self.shard is not None)
    @rule(t=st.integers(0, 2), size=st.integers(0, 60), factor=st.sampled_from([1.0, 0.3, 0.0]))
    def push(self, t: int, size: int, factor: float) -> None:
        trainer = self.trainers[t % len(self.trainers)]
        if trainer.call or trainer.ending:
            return
        keys = self.rng.integers(0, KEYS, size).astype(np.uint64)
        rows = self.rng.standard_normal((size, DIM)).astype(np.float32)
        wanted = self.rng.integers(0, KEYS, 20).astype(np.uint64)
        made = Push(self.rng.standard_normal(SIZE).astype(np.float32), keys, rows, wanted, factor)
        made.read = np.zeros((20, DIM), np.float32)
        trainer.core.push(DENSE, made.grad, made.out, 7, factor)
        trainer.core.push_rows(TABLE, keys, rows, 7, factor)
        trainer.core.pull_rows(TABLE, wanted, made.read)
        trainer.pushes.append(made)
        trainer.call = trainer.core.begin()

    @precondition(lambda self: self.shard is not None)
    @rule(t=st.integers(0, 2), times=st.integers(1, 30))
    def progress(self, t: int, times: int) -> None:
        t %= len(self.trainers)
        trainer = self.trainers[t]
        for _ in range(times):
            self.advance(t)
        if trainer.call and trainer.core.is_done(trainer.call):
            self.check(trainer)

    @precondition(lambda self: self.shard is not None)
    @rule(t=st.integers(0, 2))
    def cut(self, t: int) -> None:
        assert self.shard
        t %= len(self.trainers)
        self.shard.connect(self.trainers[t].core, t)

    @precondition(lambda self: self.shard is not None)
    @rule(t=st.integers(0, 2))
    def end_pass(self, t: int) -> None:
        trainer = self.trainers[t % len(self.trainers)]
        if trainer.call or trainer.ending:
            return
        trainer.core.tell("END_PASS", self.passes)
        trainer.ending = trainer.core.begin()
        if all(other.ending for other in self.trainers):
            self.close_pass()

    def close_pass(self) -> None:
        """Let all trainers end the pass, after which they take part in steps again."""
        for t, trainer in enumerate(self.trainers):
            self.finish(t, trainer.ending)
        self.apply(self.before + max(len(trainer.pushes) for trainer in self.trainers))
        self.before, self.passes = self.applied, self.passes + 1
        for trainer in self.trainers:
            trainer.ending = 0
            trainer.pushes.clear()
            assert trainer.core.get_version(DENSE, 0) == trainer.core.get_version(TABLE, 0) == self.applied

    def apply(self, steps: int) -> None:
        """Let the model do steps: gradients in the order of trainers, without those that ended the pass."""
        while self.applied < steps:
            number = self.applied - self.before
            parts = [trainer.pushes[number] for trainer in self.trainers if len(trainer.pushes) > number]
            total = parts[0].grad.copy()
            for part in parts[1:]:
                total += part.grad
            for part in parts:
                self.table.add(part.keys, part.rows)
            self.applied += 1
            first = np.float32(parts[0].factor)
            own = self.table.rule = replace(RULE, lr=float(np.float32(RULE.lr) * first))
            reference.apply_optim(own, self.applied, self.values, self.slots, total)
            self.table.commit()
            rows = self.table.read(np.arange(KEYS, dtype=np.uint64))
            self.models.append((self.values.copy(), rows))

    def check(self, trainer: Trainer) -> None:
        """Compare the answers of a complete push with the model after its step."""
        trainer.call = 0
        step = self.before + len(trainer.pushes)
        number = len(trainer.pushes) - 1
        assert all(other.ending or len(other.pushes) > number for other in self.trainers), "too early"
        self.apply(step)
        values, rows = self.models[step - 1]
        made = trainer.pushes[-1]
        assert made.out.tobytes() == values.tobytes()
        assert made.read.tobytes() == rows[made.wanted.astype(np.intp)].tobytes()

    def complete(self, t: int) -> None:
        """Wait for the trainer's push, if any."""
        if self.trainers[t].call:
            self.finish(t, self.trainers[t].call)
            self.check(self.trainers[t])

    def teardown(self) -> None:
        if self.shard is None:
            return
        while any(trainer.call for trainer in self.trainers):  # the others join in until all calls are done
            most = max(len(trainer.pushes) for trainer in self.trainers)
            for t, trainer in enumerate(self.trainers):
                if len(trainer.pushes) < most:
                    self.complete(t)  # its own step is over
                    self.push(t, 5, 1.0)
            for t in range(len(self.trainers)):
                self.complete(t)
        for trainer in self.trainers:
            trainer.core.close()
        self.shard.stop()


TurnsMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTurns = TurnsMachine.TestCase
