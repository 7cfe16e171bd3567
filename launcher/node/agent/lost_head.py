"""What an agent knows of its job in case the head is lost with its node, and its way to the next head."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable

from ..beginning import find_cut
from ..ending import NEVER
from ..head.restarts import Restarts

if TYPE_CHECKING:
    from ..line.gate import Seals
    from ..messages import BeginMsg, Memory

    Dial = Callable[[Mapping[str, Any]], tuple[int, Seals]]  # with what is told; raises OSError, ProofError


class LostHead:
    """Memory of the epoch whose programs were started last; `dial` is None where no other head comes."""

    def __init__(self, dial: Dial | None) -> None:
        self._dial = dial
        self._known: Restarts | None = None
        self._snapshots = "", ""  # their folder, and the job
        self.why = ""  # the reason of a head that has said that it leaves
        self.reason = ""  # of the loss of its line, until the next one is looked for

    @property
    def may_return(self) -> bool:
        """True if another head may come; where no program was started, nobody restarts the job."""
        return self._dial is not None and self._known is not None

    def note_begin(self, m: BeginMsg, now_s: float) -> None:
        self._known, self.why = Restarts(0, NEVER), ""
        self._known.recall(m["memory"], now_s)
        self._known.begin(now_s)

    def note_contract(self, contract: Mapping[str, str]) -> None:
        """Note the variables of a program."""
        self._snapshots = contract["PSLAUNCH_SNAPSHOT_DIR"], contract["PSLAUNCH_JOB_ID"]

    def note_clear(self, epoch: int) -> None:
        """Note that an epoch follows, whose programs are not started yet."""
        if self._known:
            self._known.used = epoch

    def note_progress(self, key: str, report: Mapping[str, Any]) -> None:
        if self._known:
            self._known.note_progress(key, report)

    def describe(self, now_s: float) -> Memory:
        """Return what to tell the next head, which is looked for now."""
        assert self._known is not None
        reason, self.reason = self.why or f"its agent: {self.reason}", ""
        return self._known.describe(now_s, reason)

    def seek(self, known: Memory) -> tuple[int, Seals]:
        """Wait for the next head; return a line to it, and its seals. Slow. Raises OSError, ProofError."""
        assert self._dial is not None
        left, (epoch, step) = time.time(), find_cut(*self._snapshots)
        if epoch >= 0:
            known = {**known, "step": step, "sealed": step if epoch == known["epoch"] else known["sealed"]}
        return self._dial({"memory": known, "left": left})
