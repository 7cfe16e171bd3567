"""Names of PaddlePaddle's `distributed` that static mode with servers has."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from .. import fleet, publish
from ..entry import CountFilterEntry, ProbabilityEntry, ShowClickEntry
from ..static.dataset import InMemoryDataset, QueueDataset

__all__ = [
    "CountFilterEntry",
    "InMemoryDataset",
    "ProbabilityEntry",
    "QueueDataset",
    "ShowClickEntry",
    "fleet",
    "get_rank",
    "get_world_size",
]
publish(__name__, __all__)
# Imports by PaddlePaddle's names find the same modules.
sys.modules[f"{__name__}.fleet"] = fleet
for _one in pkgutil.walk_packages(fleet.__path__, f"{fleet.__name__}."):
    _name = f"{__name__}.fleet{_one.name.removeprefix(fleet.__name__)}"
    sys.modules[_name] = importlib.import_module(_one.name)


def get_rank() -> int:
    """Return the index of this process among those of its role."""
    return fleet.worker_index()


def get_world_size() -> int:
    """Return the number of workers."""
    return fleet.worker_num()
