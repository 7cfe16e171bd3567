"""Words of a shard as numbers of its trainers and objects, by names that the core has in the same order."""

from __future__ import annotations

import re
import struct
import time
from pathlib import Path

from pslaunch.runtime import _core
from pslaunch.runtime.pserver import counters
from pslaunch.runtime.pserver.counters import WORDS, Counters, collect_stats
from pslaunch.runtime.pserver.pserver_options import parse_options
from pslaunch.runtime.pserver.roster import Roster

HEADER = Path(counters.__file__).parents[1] / "csrc/shard/ps_mail.h"


def write(shard: Counters, place: int, *words: int) -> None:
    """Write the first words of the shard (0), of a trainer (from 1), of an object (behind them)."""
    struct.pack_into(f"={len(words)}Q", shard.memory, 64 * place, *words)


def test_names_are_those_of_the_core() -> None:
    found = re.findall(r"^enum \{(.*)\};$", HEADER.read_text(), re.MULTILINE)
    names = [tuple(word.strip()[5:].lower() for word in line.split(",")) for line in found]
    assert names == [*WORDS]
    assert max(map(len, WORDS)) <= _core.get_protocol()["PS_COUNTERS"]


def test_an_object_that_the_shard_could_not_make_is_forgotten() -> None:
    shard = Counters(1)
    shard.note_object("a")
    write(shard, 0, 1)
    shard.note_object("refused")
    shard.note_object("b")
    write(shard, 0, 2)
    assert shard.objects == ["a", "b"]


def test_times_are_ages_in_seconds() -> None:
    shard, now_ms = Counters(2), time.monotonic_ns() // 10**6
    write(shard, 2, 10, 20, 0, 1500, now_ms - 3000, 4)
    found = shard.read(1, 1)
    assert 3 <= (found.pop("wait_age_s") or 0) < 60
    assert found == {"in_bytes": 10, "out_bytes": 20, "waits_for_turn": 0, "waited_s": 1.5, "dropped": 4}
    assert shard.read(1, 0)["wait_age_s"] is None
    write(shard, 1, 0, 0, 0, 0, now_ms + 10**6)  # read before it was written
    assert shard.read(1, 0)["wait_age_s"] == 0


def test_a_table_has_a_row_for_each_trainer_and_object_at_each_port() -> None:
    options = parse_options(["--ports_num=2", "--num_gradient_servers=3"], {"PSLAUNCH_JOB_ID": "j"})
    roster, shards = Roster(3, 2, 60.0), [Counters(3), Counters(3)]
    assert collect_stats(options, roster, shards, {})["trainer"] == []
    roster.admit(1, 7, "h:1")
    roster.note_connected(1, 0)
    shards[1].note_object("w")
    write(shards[1], 0, 1)
    write(shards[1], 4, 5)
    found = collect_stats(options, roster, shards, {1: (time.monotonic() - 90, 2, "step 1 waits")})
    job = found["job"][0]
    assert job.pop("memory_bytes") > 1 << 20
    assert job == {"id": "j", "epoch": 0, "expected": 3, "connected": 0}
    assert [(row["shard"], row["trainer"], row["connected"]) for row in found["trainer"]] == [
        (0, 1, 1),
        (1, 1, 0),
    ]
    assert [(row["shard"], row["object"], row["updates"]) for row in found["object"]] == [(1, "w", 5)]
    assert found["stall"] == [{"shard": 1, "age_s": 90, "text": "step 1 waits"}]
    roster.note_connected(1, 1)
    assert collect_stats(options, roster, shards, {})["job"][0]["connected"] == 1
