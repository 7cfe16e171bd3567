"""Files with a number go to the node of their trainer, all others to every node."""

from __future__ import annotations

import pytest

from pslaunch.node.dispatch.data_shards import DataShards
from pslaunch.node.dispatch.manifest import Entry


@pytest.mark.parametrize(
    ("pattern", "path", "number"),
    [
        ("data/*-{:05d}", "data/train.txt-00003", 3),
        ("data/*-{:05d}", "data/a-b-00012", 12),
        ("data/*-{:05d}", "data/x-123456", 123456),
        ("data/*-{:05d}", "data/x-0000003", None),  # not as the pattern writes 3
        ("data/*-{:05d}", "data/x-3", None),
        ("data/*-{:05d}", "data/deep/x-00003", None),
        ("data/*-{:05d}", "other/x-00003", None),
        ("d?ta/{}.rec", "data/7.rec", 7),
        ("d?ta/{}.rec", "data/7xrec", None),
        ("{}", "7", 7),
        ("[a]{}", "[a]7", 7),
    ],
)
def test_numbers_are_found_in_paths(pattern: str, path: str, number: int | None) -> None:
    assert DataShards([pattern]).find_number(path) == number


def test_split_looks_at_each_file_once_for_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = DataShards(["data/x-{:03d}"])
    names = ["data", *(f"data/x-{i:03d}" for i in range(50)), "train.py"]
    entries = [Entry(name, "f" if "/" in name else "d", 0o644, 0, 0, "") for name in names]
    looked: list[str] = []
    number = shards.find_number

    def record_number(path: str) -> int | None:
        looked.append(path)
        return number(path)

    monkeypatch.setattr(shards, "find_number", record_number)
    part = shards.split(entries, 7)
    got = [part({rank, 6}) for rank in range(7)]
    assert len(looked) == len([e for e in entries if e.kind != "d"])
    all_ = [["data"] + [f"data/x-{i:03d}" for i in range(50) if i % 7 in (rank, 6)] for rank in range(7)]
    assert [[e.path for e in each] for each in got] == [[*each, "train.py"] for each in all_]
