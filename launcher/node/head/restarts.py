"""Restarts of a job: whether the failure of an epoch leads to the next one. Pure.

Fed with events and a clock value in seconds. A restart needs progress since the last start: a program that
never begins would be started again and again, and one that fails at the same step each time would too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..ending import NEVER
from ..link import JobFailure

if TYPE_CHECKING:
    from ..messages import Restarted

SAME_MOST = 3  # equal failures at one step


class _At(NamedTuple):
    """Place of a trainer in its training, by its last report; the step of its end is as far behind it."""

    pass_id: int
    batch: int
    behind: int


class Restarts:
    """Counter and judge of a job's restarts."""

    def __init__(self, most: int, after_s: float) -> None:
        """after_s: of running, which is progress where no program reports its steps."""
        self.most, self._after_s = most, after_s
        self.told: list[Restarted] = []
        self._failed_s = NEVER  # of the failure that leads to the last one
        self._cut: int | None = None  # step of the newest snapshot
        self._began_s = NEVER
        self._at: dict[str, _At] = {}  # by trainer, in this epoch
        self.sealed: int | None = None  # step of this epoch's newest snapshot, 0 before; None: it takes none
        self._same: list[tuple[str, int, _At]] = []  # the last failures, if they are equal

    @property
    def is_due(self) -> bool:
        """True from a failure that leads to a restart until that begins."""
        return bool(self.told) and self.told[-1]["lost_s"] is None

    def has_told(self, epoch: int) -> bool:
        """Return True if the restart that begins this epoch is noted."""
        return bool(self.told) and self.told[-1]["epoch"] == epoch

    def prepare(self, epoch: int, failure: JobFailure, failed_s: float) -> Restarted:
        """Note and return the restart that begins this epoch."""
        self._failed_s = failed_s
        self.told.append({
            "epoch": epoch, "restart": len(self.told) + 1, "of": self.most, "why": failure.why,
            "step": None, "lost_s": None,
        })  # fmt: skip
        return self.told[-1]

    def begin(self, now_s: float) -> Restarted | None:
        """Note that the programs of an epoch are started; return the restart if it begins by one."""
        self._began_s, self._at, self.sealed = now_s, {}, None
        if not self.is_due:
            return None
        self.told[-1].update({"step": self._cut, "lost_s": round(now_s - self._failed_s, 3)})
        return self.told[-1]

    def note_progress(self, key: str, report: Mapping[str, Any]) -> None:
        if "cut" in report:
            self.sealed = report["cut"]
            self._cut = self.sealed or self._cut
        if "batch" in report:
            pass_id, batch, before = report.get("pass", 0), report["batch"], self._at.get(key)
            since = before.batch if before and before.pass_id == pass_id else 0 if before else batch
            self._at[key] = _At(pass_id, batch, abs(batch - since))

    def refuse(self, failure: JobFailure, now_s: float) -> str:
        """Return why this failure ends the job, "" if a restart follows."""
        if len(self.told) >= self.most:
            return f"--max_restarts={self.most} {'is' if self.most == 1 else 'are'} used up"
        if not (self._at or self.sealed) and now_s - self._began_s < self._after_s:
            return f"no step was made, and it ran less than --restart_after={self._after_s:g} s"
        at = self._at.get(failure.what) or max(self._at.values(), default=None)
        now = [] if at is None else [(failure.what, failure.code, at)]
        self._same = [*filter(lambda one: now and _is_same(one, now[0]), self._same), *now]
        if len(self._same) >= SAME_MOST:
            return f"it is the same failure at the same step for the {SAME_MOST}rd time"
        return ""


def _is_same(one: tuple[str, int, _At], other: tuple[str, int, _At]) -> bool:
    a, b = one[2], other[2]
    near = a.pass_id == b.pass_id and abs(a.batch - b.batch) <= max(a.behind, b.behind)
    return one[:2] == other[:2] and near
