"""A DistributedOptimizer beside torch's in the process, with a table; it may begin with a checkpoint."""

import json
import os
import sys

import torch

import pslaunch.torch as ps

rank, trainers = (int(os.environ[f"PADDLE_INIT_{x}"]) for x in ("TRAINER_ID", "NUM_GRADIENT_SERVERS"))
method, begin, end = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
KINDS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
}
kind, numbers = KINDS[method]
torch.manual_seed(0)
rows, top = torch.nn.EmbeddingBag(50, 8, sparse=True), torch.nn.Linear(8, 1)
torch.nn.init.constant_(rows.weight, 0.5)
table, ours = ps.EmbeddingBag("table", 8, init=0.5, lr=0.1), torch.nn.Linear(8, 1)
if rank == 0:  # the others begin with the values of trainer 0
    ours.load_state_dict(top.state_dict())
if begin:
    ps.load("saved", torch.nn.ModuleList([table, ours]))
optimizer = ps.DistributedOptimizer(ours.parameters(), method, **numbers)
others = [kind(top.parameters(), **numbers), torch.optim.Adagrad(rows.parameters(), lr=0.1)]
schedules = [torch.optim.lr_scheduler.StepLR(one, 5, gamma=0.5) for one in (optimizer, *others)]
losses = []
for step in range(20):
    torch.manual_seed(step)
    ids, labels = torch.randint(50, (32, 4)), torch.randn(32, 1)
    own = slice(rank * 32 // trainers, (rank + 1) * 32 // trainers)
    if begin <= step < end:
        table(ids[own]).sum().backward()  # of a batch that is left out
        optimizer.zero_grad()
        loss = ((ours(table(ids[own])) - labels[own]) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    for one in others:
        one.zero_grad()
    ((top(rows(ids)) - labels) ** 2).mean().backward()
    for one in others:
        one.step()
    for one in schedules:
        one.step()
    if step + 1 == end and end < 20:
        ps.save("saved", torch.nn.ModuleList([table, ours]))
values = [table.to_dense(50), *ours.parameters()]
pairs = zip(values, [rows.weight, *top.parameters()], strict=True)
gap = max(float((one - other).detach().abs().max()) for one, other in pairs)
bits = [one.detach().numpy().tobytes().hex() for one in values]
print(json.dumps({"losses": losses, "gap": gap, "bits": bits}))
