"""Lookups with ids, weights and gradients on a GPU, beside the same ones on the processor."""

import torch

import pslaunch.torch as ps

torch.manual_seed(0)
near, far = (ps.EmbeddingBag(name, 8, "sgd", lr=1.0, init=0.5, mode="sum") for name in ("near", "far"))
places = ((near, "cpu"), (far, "cuda"))
for _ in range(5):
    ids, given, top = torch.randint(50, (32, 4)), torch.rand(32, 4), torch.randn(8, 1)
    ps.prefetch({table: ids.to(device) for table, device in places})
    outs, grads = [], []
    for table, device in places:
        weights = given.to(device).requires_grad_()
        outs.append(table(ids.to(device), None, weights))
        assert outs[-1].device.type == device
        (outs[-1] @ top.to(device)).square().mean().backward()
        grads.append(weights.grad.cpu())
    assert torch.allclose(*(out.detach().cpu() for out in outs), atol=1e-5)
    assert torch.allclose(*grads, atol=1e-5)
    assert torch.allclose(near.to_dense(50), far.to_dense(50), atol=1e-5)
print("{}")
