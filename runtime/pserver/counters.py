"""What a pserver counts, for whoever asks at any time: its shards write words, which are read here."""

from __future__ import annotations

import mmap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import _core
from .pserver_options import Options
from .roster import Roster

Tables = dict[str, list[dict[str, Any]]]  # rows of the job, of long waits, shards, trainers, objects
# Words of a shard, a trainer, an object (csrc/shard/ps_mail.h); `_at` is a moment, 0: never.
WORDS = (
    ("objects", "passes", "held_bytes", "cuts", "lost_cuts", "cut_at"),
    ("in_bytes", "out_bytes", "waits_for_turn", "waited_ms", "wait_at", "dropped"),
    ("updates", "update_at", "rows", "keys", "bytes", "dropped", "pushes", "ages"),
)
_WORDS, _OBJECTS = (_core.get_protocol()[name] for name in ("PS_COUNTERS", "PS_MAX_OBJECTS"))


class Counters:
    """The words of one shard, in `memory`."""

    def __init__(self, trainers: int) -> None:
        size = 8 * _WORDS * (1 + trainers + _OBJECTS)  # only what is written takes memory
        self.memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._words, self._places = memoryview(self.memory).cast("Q"), (0, 1, 1 + trainers)
        self.objects: list[str] = []  # names; the last may not be there yet

    def note_object(self, name: str) -> None:
        """Note the object that the shard is making, in its thread; the one before may have failed."""
        self.objects[self._words[0] :] = [name]

    def read(self, kind: int, number: int = 0) -> dict[str, float | None]:
        """Return the words of one of WORDS, times in seconds."""
        now_ms, at = time.monotonic_ns() // 10**6, _WORDS * (self._places[kind] + number)
        found: dict[str, float | None] = {}
        for name, word in zip(WORDS[kind], self._words[at : at + _WORDS], strict=False):
            if name.endswith("_at"):
                found[name[:-3] + "_age_s"] = max(0, now_ms - word) / 1000 if word else None
            else:
                found[name.replace("_ms", "_s")] = word / 1000 if name.endswith("_ms") else word
        return found


def collect_stats(
    options: Options,
    roster: Roster,
    shards: Sequence[Counters],
    stalls: Mapping[int, tuple[float, int, str]],  # by shard: since when, trainer, text
) -> Tables:
    """Return all that a pserver counts; any thread may ask."""
    trainers = sorted(dict(roster.trainers).items())  # copies: others change them meanwhile
    job = {"id": options.job.job_id, "epoch": options.job.epoch, "expected": options.num_gradient_servers}
    job["connected"] = sum(len(one.connected) == options.ports for _, one in trainers)
    job["memory_bytes"] = int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    found: Tables = {"job": [job], "stall": [], "shard": [], "trainer": [], "object": []}
    for i, (since_s, _, text) in dict(stalls).items():
        found["stall"].append({"shard": i, "age_s": round(time.monotonic() - since_s), "text": text})
    for i, shard in enumerate(shards):
        found["shard"].append({"shard": i, **shard.read(0)})
        for t, one in trainers:
            row = {"shard": i, "trainer": t, "connected": int(i in one.connected), **shard.read(1, t)}
            found["trainer"].append(row)
        for n, name in enumerate(shard.objects[: found["shard"][i]["objects"]]):
            found["object"].append({"shard": i, "object": name, **shard.read(2, n)})
    return found
