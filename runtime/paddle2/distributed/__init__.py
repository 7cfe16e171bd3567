"""Names of PaddlePaddle's `distributed` that static mode with servers has."""

from __future__ import annotations

from ...engine.entry import CountFilterEntry, ProbabilityEntry, ShowClickEntry
from .. import fleet
from ..static.slot_datasets import InMemoryDataset, QueueDataset

__all__ = [
    "CountFilterEntry", "InMemoryDataset", "ProbabilityEntry", "QueueDataset", "ShowClickEntry", "fleet",
    "get_rank", "get_world_size",
]  # fmt: skip


def get_rank() -> int:
    """Return the index of this process among those of its role."""
    return fleet.worker_index()


def get_world_size() -> int:
    """Return the number of workers."""
    return fleet.worker_num()
