"""A sum learned by PyTorch, gradients averaged over gloo: a program that knows its launcher in one place."""

import os

import torch
import torch.distributed as dist

STEPS, BATCH = 50, 16

# The line of its own: the ranks meet on node 0, at the first trainer's port.
first = os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")[0]
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = first.rsplit(":", 1)
rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
dist.init_process_group("gloo", rank=rank, world_size=size)
torch.manual_seed(rank)
model = torch.nn.Linear(4, 1)
for parameter in model.parameters():
    dist.broadcast(parameter.data, src=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(STEPS):
    x = torch.randn(BATCH, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= size
    optimizer.step()
    losses.append(float(loss))
weights = [round(float(w), 6) for w in torch.nn.utils.parameters_to_vector(model.parameters())]
print(f"rank {rank} of {size}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, weights {weights}", flush=True)
dist.destroy_process_group()
