"""PyTorch's embeddings with rows on the pservers: `import pslaunch.torch` (docs/pytorch.md)."""

from __future__ import annotations

if __name__ != "pslaunch.torch":  # in the folder of the runtime it would be a second copy
    raise ImportError("this package is imported as 'pslaunch.torch'")

from pslaunch.runtime.client.caller import Init
from pslaunch.runtime.engine.entry import CountFilterEntry, ProbabilityEntry

from .optimizers import DistributedOptimizer
from .session import connect, end_pass, load, resume, save
from .tables import Embedding, EmbeddingBag, prefetch, prefetch_each

__all__ = [
    "CountFilterEntry", "DistributedOptimizer", "Embedding", "EmbeddingBag", "Init", "ProbabilityEntry",
    "connect", "end_pass", "load", "prefetch", "prefetch_each", "resume", "save",
]  # fmt: skip
