"""What a look at a cluster says about a job."""

from __future__ import annotations

import pytest

from pslaunch.backends.slurm.check import judge_partition, parse_partitions
from pslaunch.node import codes

SINFO = """\
all|all*|up|infinite|2|idle
all|all*|up|infinite|1|down*
gpu|gpu|up|1:00:00|1|mixed
old|old|down|1|1|idle
"""


@pytest.mark.parametrize(
    ("name", "wanted", "code", "text"),
    [
        ("", 2, 0, ""),
        ("", 3, codes.SERVICE, "2 nodes that are up"),
        ("", 4, codes.USAGE, "has 3 nodes, and the job wants 4"),
        ("gpu", 1, 0, "0 idle nodes: the job would wait"),
        ("old", 1, codes.SERVICE, "partition old is not up"),
        ("no", 1, codes.USAGE, "no partition 'no'; there are: all, gpu, old"),
    ],
)
def test_partition_is_judged_for_the_job(name: str, wanted: int, code: int, text: str) -> None:
    found = judge_partition(parse_partitions(SINFO), name, wanted)[1]
    assert (found.code, text in found.text) == (code, True) if found else not text
