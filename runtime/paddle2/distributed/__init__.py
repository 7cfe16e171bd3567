"""Names of PaddlePaddle's `distributed` that static mode with servers has."""

from __future__ import annotations

from ...engine.entry import CountFilterEntry, ProbabilityEntry, ShowClickEntry
from .. import fleet
from ..static.slot_datasets import InMemoryDataset, QueueDataset

__all__ = [
    "CountFilterEntry", "InMemoryDataset", "ProbabilityEntry", "QueueDataset", "ShowClickEntry", "fleet",
    "get_rank", "get_world_size",
]  # fmt: skip

get_rank, get_world_size = fleet.worker_index, fleet.worker_num
