"""A sum learned by PyTorch, gradients averaged over gloo: written for torchrun."""

import torch
import torch.distributed as dist

STEPS, BATCH = 50, 16

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
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
