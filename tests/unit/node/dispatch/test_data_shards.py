"""Files with a number go to the node of their trainer, all others to every node."""

from __future__ import annotations

import pytest

from pslaunch.node.dispatch.data_shards import DataShards


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
