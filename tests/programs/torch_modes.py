"""A table and a dense layer in an asynchronous mode; prints the loss of each step."""

import json
import os
import sys

import torch

import pslaunch.torch as ps
from pslaunch.runtime import Client

ps.connect(Client.from_env(mode=sys.argv[1]))
torch.manual_seed(0)
items = ps.EmbeddingBag("items", 8, "adagrad", lr=0.1, init=0.0, mode="sum")
top = torch.nn.Linear(8, 1)
optimizer = ps.DistributedOptimizer(top.parameters(), "sgd", lr=0.1)
torch.manual_seed(int(os.environ["PADDLE_INIT_TRAINER_ID"]))  # a trainer's own data
losses = []
for ids in ps.prefetch_each(torch.randint(1000, (150, 64, 3)), lambda batch: {items: batch}):
    optimizer.zero_grad()
    likes = ((ids % 2).sum(dim=1) > 1).float()  # half of them
    loss = torch.nn.functional.binary_cross_entropy_with_logits(top(items(ids))[:, 0], likes)
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
print(json.dumps({"losses": losses}))
