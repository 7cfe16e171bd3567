"""Restarts of a job: whether the failure of an epoch leads to the next one. Pure.

Fed with events and a clock value in seconds. A restart needs progress since the last start: a program that
never begins would be started again and again, and one that fails at the same step each time would too.
What a head on a node knows is known to other nodes too, so that another head counts on once that is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..ending import NEVER
from ..link import JobFailure

if TYPE_CHECKING:
    from ..messages import Memory, Restarted

SAME_MOST = 3  # equal failures at one step


class _At(NamedTuple):
    """Place of a trainer in its training, by its last report; the step of its end is as far behind it."""

    pass_id: int
    batch: int
    behind: int


class Restarts:
    """Counter and judge of a job's restarts."""

    def __init__(self, most: int, after_s: float, started_s: float = 0.0) -> None:
        """after_s: of running, which is progress where no program reports steps; started_s: of the job."""
        self.most, self._after_s, self.started_s = most, after_s, started_s
        self.asked_s = -NEVER  # when a node was asked to end last, where the cluster may end all
        self.told: list[Restarted] = []
        self.used = 0  # of restarts: the number of the epoch
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

    def prepare(self, epoch: int, failure: JobFailure, failed_s: float) -> Restarted:
        """Note and return the restart that begins this epoch."""
        self._failed_s, self.used = failed_s, self.used + 1
        self.told.append({
            "epoch": epoch, "restart": self.used, "of": self.most, "why": failure.why,
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

    def note_progress(self, key: str, report: Mapping[str, Any]) -> bool:
        """Note a program's report; return True for a snapshot or the first step of an epoch."""
        is_news = "cut" in report or ("batch" in report and not self._at)
        if "cut" in report:
            self.sealed = report["cut"]
            self._cut = self.sealed or self._cut
        if "batch" in report:
            pass_id, batch, before = report.get("pass", 0), report["batch"], self._at.get(key)
            since = before.batch if before and before.pass_id == pass_id else 0 if before else batch
            self._at[key] = _At(pass_id, batch, abs(batch - since))
        return is_news

    def refuse(self, failure: JobFailure, now_s: float) -> str:
        """Return why this failure ends the job, "" if a restart follows."""
        if self.used >= self.most:
            return f"--max_restarts={self.most} {'is' if self.most == 1 else 'are'} used up"
        if not (self._at or self.sealed) and now_s - self._began_s < self._after_s:
            return f"no step was made, and it ran less than --restart_after={self._after_s:g} s"
        at = self._at.get(failure.what) or max(self._at.values(), default=None)
        now = [] if at is None else [(failure.what, failure.code, at)]
        self._same = [*filter(lambda one: now and _is_same(one, now[0]), self._same), *now]
        if len(self._same) >= SAME_MOST:
            return f"it is the same failure at the same step for the {SAME_MOST}rd time"
        return ""

    # --- from one head to the next ---

    def describe(self, now_s: float) -> Memory:
        """Return what another head needs to count on."""
        at = max(self._at.items(), key=lambda of: of[1], default=None)
        return {
            "epoch": self.used, "told": self.told, "same": [(*one[:2], [*one[2]]) for one in self._same],
            "at": {at[0]: [*at[1]]} if at else {}, "cut": self._cut, "sealed": self.sealed, "why": "",
            "job_s": now_s - self.started_s,
            "ran_s": now_s - (self._failed_s if self.is_due else self._began_s),
        }  # fmt: skip

    def recall(self, known: Memory, left_s: float) -> None:
        """Count on from the epoch that another head has left at this time."""
        self.used, self.told, self.started_s = known["epoch"], known["told"], left_s - known["job_s"]
        self._began_s = self._failed_s = left_s - known["ran_s"]
        self._cut, self.sealed = known["cut"], known["sealed"]
        self._same = [(what, code, _At(*map(int, at))) for what, code, at in known["same"]]
        self._at = {key: _At(*map(int, at)) for key, at in known["at"].items()}


def _is_same(one: tuple[str, int, _At], other: tuple[str, int, _At]) -> bool:
    a, b = one[2], other[2]
    near = a.pass_id == b.pass_id and abs(a.batch - b.batch) <= max(a.behind, b.behind)
    return one[:2] == other[:2] and near
