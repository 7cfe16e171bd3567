"""A small DLRM in PyTorch, its table of 26 slots on the pservers: pslaunch local --server_num 2 train.py

Data of the form of Criteo's display ads, 13 numbers and 26 ids for each click or none, drawn from a seed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import pslaunch.torch as tables

NUMBERS, SLOTS, DIM = 13, 26, 16
RANK, TRAINERS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
Samples = tuple[Tensor, Tensor, Tensor]  # numbers [n, 13], ids [n, 26], clicks [n]


def draw_batch(number: int, size: int, ids: int) -> Samples:
    """Return a batch: few ids are common and most are rare; some of each slot's attract clicks."""
    seeded = torch.Generator().manual_seed(number)
    numbers = torch.rand(size, NUMBERS, generator=seeded)
    ranks = ids ** torch.rand(size, SLOTS, generator=seeded)  # Zipf's law
    keys = ranks.long() * SLOTS + torch.arange(SLOTS)  # one table: no two slots share a key
    taste = (keys * 2654435761 % 1000 / 500.0 - 1.0).sum(dim=1) / 2 + numbers.sum(dim=1) - NUMBERS / 2
    clicks = torch.rand(size, generator=seeded) < torch.sigmoid(taste - 1.0)
    return numbers, keys, clicks.float()


class Dlrm(nn.Module):
    """Naumov et al., 2019: numbers through layers, ids through a table, products of all pairs of both."""

    def __init__(self) -> None:
        super().__init__()
        start = tables.Init(kind="normal", mean=0.0, std=0.1)
        self.slots = tables.Embedding("slots", DIM, "adagrad", lr=0.05, init=start)
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, DIM), nn.ReLU())
        pairs = (SLOTS + 1) * SLOTS // 2
        self.top = nn.Sequential(nn.Linear(DIM + pairs, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("pairs", torch.tril_indices(SLOTS + 1, SLOTS + 1, -1), persistent=False)

    def forward(self, numbers: Tensor, keys: Tensor) -> Tensor:
        """Return the logit of a click for each sample."""
        dense = self.bottom(numbers)
        vectors = torch.cat([dense[:, None], self.slots(keys)], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        first, second = self.pairs
        logits: Tensor = self.top(torch.cat([dense, products[:, first, second]], dim=1))
        return logits[:, 0]


def find_auc(model: Dlrm, batches: Iterator[Samples]) -> float:
    """Return the share of pairs of a click and none that the model orders as they are."""
    guesses, clicks = [], []
    with torch.no_grad():
        for numbers, keys, own in batches:
            guesses.append(model(numbers, keys))
            clicks.append(own)
    order = torch.cat(clicks)[torch.cat(guesses).argsort()]
    places = torch.arange(1, len(order) + 1)[order > 0].double()
    hits = len(places)
    return float((places.sum() - hits * (hits + 1) / 2) / (hits * (len(order) - hits)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--ids", type=int, default=10_000, help="of a slot")
    given = parser.parse_args()
    torch.set_num_threads(1)  # trainers share this machine
    torch.manual_seed(1)
    model = Dlrm()
    optimizer = tables.DistributedOptimizer(model.parameters(), "adam", lr=2e-3)
    numbers = range(RANK, given.steps * TRAINERS, TRAINERS)
    mine = (draw_batch(number, given.batch, given.ids) for number in numbers)
    batches = tables.prefetch_each(mine, lambda batch: {model.slots: batch[1]})
    for step, (values, keys, clicks) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(values, keys), clicks)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    if RANK == 0:
        others = (draw_batch(-1 - number, given.batch, given.ids) for number in range(20))
        print(f"AUC {find_auc(model, others):.3f} of samples that it has not seen", flush=True)


if __name__ == "__main__":
    main()
