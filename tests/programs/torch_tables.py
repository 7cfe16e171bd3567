"""Tables of pslaunch.torch beside torch.nn's in the process: losses and rows of the same 20 steps."""

import json
import os
import sys

import torch

import pslaunch.torch as ps

BATCH, STEPS, DIM, ROWS = 24, 20, 8, 40
rank, trainers = (
    int(os.environ["PADDLE_INIT_TRAINER_ID"]),
    int(os.environ["PADDLE_INIT_NUM_GRADIENT_SERVERS"]),
)
method, how = sys.argv[1:3]
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "sparse_adam": lambda p: torch.optim.SparseAdam(p, lr=0.1),
}


class Model(torch.nn.Module):
    """Two tables in every form of lookup, and a dense layer."""

    def __init__(self, users, items):
        super().__init__()
        self.users, self.items, self.top = users, items, torch.nn.Linear(4 * DIM, 1)

    def forward(self, batch):
        user, flat, offsets, weights, pairs = batch
        forms = [self.users(user), self.items(flat, offsets), self.items(pairs)]
        mixed = self.items.sums(flat, offsets, weights)
        return self.top(torch.cat([*forms, mixed], dim=1))


def make_batch(step):
    """Return the ids of a step and their labels, the same in every trainer."""
    torch.manual_seed(step)
    user = torch.randint(ROWS, (BATCH,))
    lengths = torch.randint(0, 5, (BATCH,))
    ends = lengths.cumsum(0)
    flat = torch.randint(ROWS, (int(ends[-1]),))
    return (
        user,
        flat,
        ends - lengths,
        torch.rand(len(flat)),
        torch.randint(ROWS, (BATCH, 3)),
        torch.randn(BATCH, 1),
    )


def take_share(batch):
    """Return this trainer's samples."""
    user, flat, begins, weights, pairs, labels = batch
    if trainers == 1:
        return batch[:5], labels
    n = BATCH // trainers
    own = slice(rank * n, (rank + 1) * n)
    end = int(begins[own.stop]) if own.stop < BATCH else len(flat)
    ids = slice(int(begins[own.start]), end)
    return (user[own], flat[ids], begins[own] - begins[own.start], weights[ids], pairs[own]), labels[own]


def make_ours():
    """Return the model with tables on pservers."""
    options = {"optimizer": method, "lr": 0.1, "init": 0.5}
    users = ps.Embedding("users", DIM, padding_idx=3, **options)
    items = ps.EmbeddingBag("items", DIM, mode="mean", padding_idx=5, **options)
    model = Model(users, items)
    items.sums = ps.EmbeddingBag("items", DIM, mode="sum", **options)
    return model


def make_torchs():
    """Return the model with torch's tables."""
    users = torch.nn.Embedding(ROWS, DIM, padding_idx=3, sparse=True)
    items = torch.nn.EmbeddingBag(ROWS, DIM, mode="mean", padding_idx=5, sparse=True)
    for table in (users, items):
        torch.nn.init.constant_(table.weight, 0.5)
    with torch.no_grad():
        users.weight[3] = 0
    sums = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)
    sums.weight = items.weight
    model = Model(users, items)
    model.items.sums = sums
    return model


torch.manual_seed(0)
ours = make_ours()
torch.manual_seed(0)
theirs = make_torchs()
ours.top.load_state_dict(theirs.top.state_dict())
tables = [theirs.users.weight, theirs.items.weight]
rows = OPTIMIZERS[method](tables)
dense = [torch.optim.SGD(model.top.parameters(), lr=0.1) for model in (ours, theirs)]
assert [name for name, _ in ours.named_parameters()] == ["top.weight", "top.bias"]
shared = [*zip(ours.top.parameters(), theirs.top.parameters(), strict=True)]
losses = []
for step in range(STEPS):
    whole = make_batch(step)
    batch, labels = take_share(whole)
    own = ((ours(batch) - labels) ** 2).mean()
    if how == "prefetch":
        after, _ = take_share(make_batch(step + 1))
        ps.prefetch({ours.users: after[0], ours.items: after[1]})
    for one in (*dense, rows):
        one.zero_grad()
    own.backward()
    full = ((theirs(whole[:5]) - whole[5]) ** 2).mean()
    full.backward()
    if trainers > 1:  # as all-reduce would do it
        for parameter, other in shared:
            parameter.grad = other.grad.clone()
    for one in (*dense, rows):
        one.step()
    losses.append((float(own), float(full)))
kept = torch.arange(ROWS) != 3  # users' padding, which torch has as zeros
found = [ours.users.to_dense(ROWS)[kept], ours.items.to_dense(ROWS)]
pairs = zip(found, [tables[0][kept], tables[1]], strict=True)
gap = max(float((one - table).detach().abs().max()) for one, table in pairs)
bits = [one.numpy().tobytes().hex() for one in found]
print(json.dumps({"losses": losses, "gap": gap, "bits": bits}))
