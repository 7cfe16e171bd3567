"""Snapshots of a training as its trainers see them: when one is due, and what the training begins with.

Trainer 0 decides; the others learn of a cut with the answer to their push. docs/restarts.md has the whole.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

from .. import _core
from ..files.exports import name_export
from ..files.objects import SetError
from ..files.saving import SaveError
from ..process.settings import Settings
from ..shared.env import RESUME_OF
from ..shared.reports import WANTED_CUT
from .caller import Caller
from .control import Control, Message
from .dialer import ClientError

EXPORT, ALL = (_core.get_protocol()[f"PS_{flag}"] for flag in ("EXPORT", "ALL"))
STATES_BYTES = 48 << 20  # of all trainers, in messages and a manifest
MOST_DELTAS = 10  # of a base: each costs a reader's lookup a look


class _Exports:
    """The exports of a training, as trainer 0 asks for them: each is a base, or a delta of the one before."""

    def __init__(self, steps: int, run: int) -> None:
        self.steps, self._run, self.since = steps, run, 0  # since: steps since the last one
        self.due = False  # the next cut is one
        self._before, self._chain = list[str](), list[str]()  # of the base before, and of the last one
        self.bytes: list[int] = []  # of each of the chain; none: the next one must be a base

    @property
    def flags(self) -> int:
        """Those of CUT."""
        deltas = self.bytes[1:]
        is_base = not self.bytes or len(deltas) >= MOST_DELTAS or sum(deltas) > self.bytes[0]
        return EXPORT | (ALL if is_base else 0)

    def add(self, step: int, size: int) -> Message:
        """Note that the parts are on the disk; return what the manifest says of the chain."""
        if self.flags & ALL:
            self._before, self._chain, self.bytes = self._chain, [], []
        self._chain.append(name_export(self._run, step))
        self.bytes.append(size)
        return {"chain": self._chain, "before": self._before}


class Snapshots:
    """Snapshots and exports of one trainer. `log` gets lines for the user.

    begin() before the first step; note_step() before each, after_step() after it, end_pass() before the end
    of a pass, finish() at last.
    """

    def __init__(
        self,
        settings: Settings,
        client: Caller,
        *,
        sync: bool,
        log: Callable[[str], None],
        on_sealed: Callable[[], None],
    ) -> None:
        self._settings, self._client, self._sync, self._log = settings, client, sync, log
        self._on_sealed = on_sealed  # called when a snapshot is whole
        self._controls: list[Control] = []  # to pserver 0; in trainer 0 to all
        self._since = 0  # steps since the last cut
        self._last_s = time.monotonic()
        self._noted, self._run, self._written = 0, client.incarnation, 0.0
        self._note_due = False
        progress = settings.job.progress
        self._wanted = Path(progress + WANTED_CUT) if progress else None  # a file if an agent wants a cut
        self._exports = _Exports(settings.snapshots.export_steps, client.incarnation)
        self._making: Iterator[None] | None = None  # in trainer 0: the set that is not whole yet
        self._patience_s: float | None = 0.0  # for an answer; None: until it is there
        self.state: Message | None = None  # of this trainer, in the cut with which it has begun
        self.step = 0  # of that cut
        self.sealed = 0  # step of the newest snapshot that is whole

    # -- begin

    def begin(self, objects: Sequence[Message]) -> None:
        """Find out with what the training begins, and let pservers do so. `objects` describe its own.

        Raises ClientError, PeerVanished.
        """
        try:
            if self._settings.trainer_id == 0:
                self._choose(objects)
        except SetError as e:
            raise ClientError(
                f"{e}; without that snapshot the training goes on from the one before"
            ) from None
        (found,) = self._client.ask_pservers([0], {"ask": "state"})
        self.state, self.step = found["state"], found["step"]
        self._noted = self.step

    def _open(self) -> None:
        n = len(self._settings.endpoints) if self._settings.trainer_id == 0 else 1
        while len(self._controls) < n:
            self._controls.append(self._client.dialer.open_control(len(self._controls)))

    def _choose(self, objects: Sequence[Message]) -> None:
        """Let all pservers begin with the newest set of which they have all parts, if it is wanted."""
        settings, job = self._settings, self._settings.job
        resume, of = settings.snapshots.resume, ""
        if resume.startswith(RESUME_OF):
            resume, of = "", f"-{resume.removeprefix(RESUME_OF)}-"
        copies = settings.snapshots.copies
        if copies > (nodes := len({host for host, _ in settings.endpoints})):
            self._log(f"snapshot_copies={copies} has no effect beyond {nodes}: so many nodes have pservers")
        folder = str(Path(resume).absolute()) if resume not in ("", "1") else ""
        every = range(len(settings.endpoints))
        found = self._client.ask_pservers(every, {"ask": "sets", "folder": folder})
        sets: dict[tuple[str, int], Message] = {}
        for one in (one for answer in found for one in answer["sets"]):
            sets.setdefault((one["name"], one["run"]), {**one, "here": []})["here"] += one["here"]
        common = [one for one in sets.values() if len({*one["here"]}) == one["files"]]
        common.sort(key=lambda one: float(one["written"]), reverse=True)
        ours = [one for one in common if one["job_id"] == job.job_id and job.epoch > 0]
        own = [one for one in common if one in ours or (of and of in one["job_id"])]
        chosen = (own or (common if resume else []))[:1]
        if resume and not chosen:
            raise ClientError(
                f"resume: {found[0]['root']} has no snapshot of which pservers have all parts: start without "
                "resume; a snapshot_dir that all nodes share, or snapshot_copies=2, keeps them"
            )
        folder = ""
        for one in chosen:
            self._check(one, objects)
            folder = one["folder"] if resume not in ("", "1") else one["name"]  # each pserver has its own
            self._run, self._written = one["run"], one["written"]
            self._client.load(Path(folder))
            self._log(f"the training goes on from step {one['step']}: {one['folder']}")
        self._client.ask_pservers([0], {"ask": "go", "folder": folder})

    def _check(self, chosen: Message, objects: Sequence[Message]) -> None:
        known = {one["name"]: one for one in chosen["objects"]}
        for one in objects:
            for what in sorted(one.keys() - {"shape"}):  # of a matrix, which pservers do not know
                value = one[what]
                if (there := known.get(one["name"], {}).get(what)) != value:
                    raise ClientError(
                        f"{chosen['folder']} is of another training: {what} of {one['name']} is {there} "
                        f"there, {value} here"
                    )
        trainers = self._settings.num_gradient_servers
        if self._sync and chosen["trainers"] != trainers:
            raise ClientError(
                f"{chosen['folder']} is of {chosen['trainers']} trainers, this job has {trainers}: "
                "synchronous, that is another training; start as many, or without resume"
            )

    # -- cuts

    def note_step(self) -> None:
        """Count a step, and let trainer 0's next push ask for a cut if one is due."""
        self._since += 1
        self._exports.since += 1
        settings, now_s = self._settings, time.monotonic()
        steps, minutes = settings.snapshots.steps, settings.snapshots.minutes
        due = 0 < steps <= self._since or (minutes > 0 and now_s - self._last_s >= 60 * minutes)
        due = due or (self._wanted is not None and self._wanted.exists())
        exports = 0 < self._exports.steps <= self._exports.since and settings.trainer_id == 0
        if self._making or self._client.cuts_next is not None or not (due or exports):
            return
        self._exports.due = not due
        if not due:
            self._exports.since, self._client.cuts_next = 0, self._exports.flags
            return
        if self._wanted:
            self._wanted.unlink(missing_ok=True)
        self._since, self._last_s = 0, now_s
        self._client.cuts_next = 0 if settings.trainer_id == 0 else None
        self._note_due = not self._sync and settings.trainer_id != 0  # no answer tells it of cuts

    def after_step(self, describe: Callable[[], Message]) -> None:
        """Note what `describe` says of this trainer if the step was cut; in trainer 0 go on with the set."""
        step = self._client.cut_step
        with self._giving_up():
            if self._note_due:
                self._note_due = False
                self._note(describe(), 0, ended=True)
            if step > self._noted:
                self._noted = step
                asked = {"ask": "export", "step": step}
                if not self._exports.due:
                    self._note(describe(), step, ended=False)
                    asked = {"ask": "parts", "step": step, "pass": self._client.passes, "all": self._sync}
                if self._settings.trainer_id == 0:
                    self._making = self._make_set(asked)
            self._go_on()

    def end_pass(self, describe: Callable[[], Message]) -> None:
        """Note what `describe` says of this trainer for cuts in the rest of the pass, which it has ended."""
        if self._settings.snapshots.steps or self._settings.snapshots.minutes:
            with self._giving_up():
                self._note(describe(), 0, ended=True)

    def finish(self) -> None:
        """Complete the export on its way, and make one of the steps since; after the last step."""
        if self._settings.trainer_id != 0 or not self._exports.steps:
            return
        self._patience_s = None
        with self._giving_up():
            self._go_on()
        with self._giving_up():
            if self._exports.since or self._client.steps > self._noted:  # of others, if not synchronous
                self._exports.since, self._exports.due = 0, True
                self._client.cut(self._exports.flags)
                self._noted = self._client.cut_step
                self._making = self._make_set({"ask": "export", "step": self._noted})
                self._go_on()

    def _note(self, state: Message, step: int, *, ended: bool) -> None:
        self._open()
        limit, size = STATES_BYTES // self._settings.num_gradient_servers, len(json.dumps(state))
        if size > limit:
            state = {"error": f"the state of this trainer has {size} bytes as JSON, limit {limit} for each"}
        note = {"ask": "note", "step": step, "ended": ended, "pass": self._client.passes, "state": state}
        self._controls[0].send(note)

    def _go_on(self) -> None:
        """Take answers that are there, and ask what follows them."""
        if self._making and next(self._making, True):
            self._making = None

    def _make_set(self, question: Message) -> Iterator[None]:
        """Let all pservers make their parts of a set, and seal it; yield while answers are missing."""
        copies, step = self._settings.snapshots.copies, question["step"]
        parts = yield from self._ask_all(question)
        if question["ask"] == "parts" and copies > 1:
            known = {"copies": copies, "pservers": self._settings.endpoints}
            files = [answer["files"] for answer in parts]
            yield from self._ask_all({"ask": "copy", "step": step, "files": files, **known})
        yield from self._ask_all({"ask": "seal", "manifest": self._make_manifest(step, parts)})
        if not self._exports.due:
            self.sealed = step
            self._on_sealed()

    def _ask_all(self, question: Message) -> Generator[None, None, list[Message]]:
        """Return the answers of all pservers. Raises SaveError if one refuses."""
        self._open()
        for control in self._controls:
            control.send(question)
        answers: list[Message] = []
        for control in self._controls:
            while (answer := control.receive(self._patience_s)) is None:
                yield
            if "error" in answer:
                raise SaveError(answer["error"])
            answers.append(answer)
        return answers

    @contextlib.contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Give the set up that a pserver can't make, or for which there is no connection."""
        try:
            yield
        except OSError as e:
            why = str(e) if isinstance(e, SaveError) else f"connection to a pserver: {e}"
            what = "export" if self._exports.due else "snapshot"
            self._log(f"WARNING: the {what} of step {self._noted} has failed: {why}; the one before stays")
            self._exports.bytes, self._making = [], None
            for control in self._controls:
                control.close()
            self._controls = []

    def _make_manifest(self, step: int, answers: list[Message]) -> Message:
        settings = self._settings
        self._written = max(time.time(), self._written + 0.001)  # the newest has most, whatever clocks say
        files = [entry for answer in answers for entry in answer["files"]]
        if self._exports.due:
            extra = self._exports.add(step, sum(entry["bytes"] for entry in files))
        else:
            extra = {"trainers": {t: one for answer in answers for t, one in answer["trainers"].items()}}
        return {
            "job_id": settings.job.job_id,
            "epoch": settings.job.epoch,
            "run": self._run,
            "step": step,
            "files": files,
            "extra": {"written": self._written, **extra},
        }
