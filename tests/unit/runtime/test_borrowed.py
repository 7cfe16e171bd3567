"""Arrays that a client has borrowed: a call begins exactly if they share no memory that they must not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest

from pslaunch.runtime import _core
from pslaunch.runtime.engine.arrays import F32
from pslaunch.runtime.engine.entry import ANY
from pslaunch.runtime.engine.kernel_numbers import MODES, Optim

pytestmark = pytest.mark.asan

RULE = Optim(method="sgd", learning_rate=1.0)
SIZES = [1, 3, 9, 28]  # so that one may lie inside another
SHARES = re.compile(r"(\w+): (grad|out|keys|rows) shares memory with another array of (this call|a call on)")


@dataclass(frozen=True)
class Array:
    object: str
    begin: int
    end: int
    call: int
    written: bool = False
    is_keys: bool = False

    def is_refused_with(self, other: Array) -> bool:
        if max(self.begin, other.begin) >= min(self.end, other.end) or 0 in (len(self), len(other)):
            return False
        if self.call == other.call:
            return self.written or other.written
        return not (self.is_keys and other.is_keys)

    def __len__(self) -> int:
        return self.end - self.begin


class Calls:
    """Builds calls of a client that is connected to nothing, so that none is ever complete."""

    def __init__(self, random: Random) -> None:
        self.core, self.random = _core.Client(1, 0, 0), random
        self.memory = np.zeros(random.choice([100, 400, 4000]), np.float32)
        self.built: list[Array] = []
        mode, rule = (MODES["async"], 0), (RULE.pack(), RULE.schedule.pack())
        for n in SIZES:
            self.core.add(f"w{n}", n, *rule, *mode, np.array([0, 0, n], np.uint64))
        table = (1, ANY.pack(), 0, 1, 0.0, 0.0)
        self.table = self.core.add("t", 99, *rule, *mode, np.zeros(3, np.uint64), table)
        self.core.begin()

    def borrow(self, call: int, name: str, n: int, *, written: bool = False, is_keys: bool = False) -> F32:
        room = (len(self.memory) - SIZES[-1]) // 2
        begin = 2 * self.random.randrange(room) + self.random.randint(0, not is_keys)
        self.built.append(Array(name, begin, begin + n, call, written, is_keys))
        return self.memory[begin : begin + n]

    def add(self, call: int) -> None:
        i, rows = self.random.randrange(len(SIZES)), self.random.randint(0, 3)
        n = SIZES[i]
        match self.random.randrange(4):
            case 0:
                self.core.push(i, self.borrow(call, f"w{n}", n), None)
            case 1:
                grad = self.borrow(call, f"w{n}", n)
                self.core.push(i, grad, self.borrow(call, f"w{n}", n, written=True))
            case 2:
                self.core.pull(i, self.borrow(call, f"w{n}", n, written=True))
            case _:
                keys = self.borrow(call, "t", 2 * rows, is_keys=True).view(np.uint64)
                self.core.pull_rows(self.table, keys, self.borrow(call, "t", rows, written=True))


@pytest.mark.parametrize("seed", range(20))
def test_a_call_begins_exactly_if_its_arrays_share_no_memory_that_they_must_not(seed: int) -> None:
    random, begun = Random(seed), {True: 0, False: 0}
    for _ in range(25):
        calls, kept = Calls(random), list[Array]()
        for call in range(5):
            calls.built = []
            for _ in range(random.randint(1, 6)):
                calls.add(call)
            every = kept + calls.built
            refused = {
                one.object
                for one in calls.built
                if any(one.is_refused_with(other) for other in every if other is not one)
            }
            begun[not refused] += 1
            if refused:
                with pytest.raises(ValueError, match=SHARES) as raised:
                    calls.core.begin()
                assert str(raised.value).partition(":")[0] in refused
                calls.core.cancel()
            else:
                calls.core.begin()
                kept = every
    assert min(begun.values()) > 10
