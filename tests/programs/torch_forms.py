"""Forms of lookups in pslaunch.torch, beside torch.nn's; what it refuses; what a module shows of itself."""

import copy
import pickle

import torch

import pslaunch.torch as ps
from pslaunch.torch.session import get_session

torch.manual_seed(0)
weight = torch.nn.init.constant_(torch.empty(20, 4), 0.25).requires_grad_()
sums = ps.EmbeddingBag("table", 4, "sgd", lr=1.0, init=0.25, mode="sum", include_last_offset=True)
single = ps.Embedding("table", 4, "sgd", lr=1.0, init=0.25)


def look_up(ids, ends, weights):
    """Return torch's sums of bags."""
    return torch.nn.functional.embedding_bag(
        ids, weight, ends, mode="sum", per_sample_weights=weights, include_last_offset=True
    )


def refuse(error, words, call, *arguments, **options):
    """Check that a call raises."""
    try:
        call(*arguments, **options)
    except error as e:
        assert words in str(e), e
    else:
        raise AssertionError(words)


# Weights with a gradient, empty bags, and two lookups in one step.
ids, ends = torch.tensor([3, 3, 7, 0, 19]), torch.tensor([0, 0, 3, 5, 5])
for step in range(3):
    given = [torch.rand(5, generator=torch.Generator().manual_seed(step)).requires_grad_() for _ in range(2)]
    out = [sums(ids, ends, given[0]), look_up(ids, ends, given[1])]
    assert torch.allclose(*out, atol=1e-6), out
    grad = torch.randn(4, 4)
    ((out[0] * grad).sum() + single(ids.reshape(5, 1).int()).square().sum()).backward()
    ((out[1] * grad).sum() + weight[ids].square().sum()).backward()
    assert torch.allclose(given[0].grad, given[1].grad, atol=1e-6)
    weight.data -= weight.grad
    weight.grad = None
    assert torch.allclose(sums.to_dense(20), weight, atol=1e-6)

# Ids of any 64 bits, none at all, and reads that are no steps.
far = torch.tensor([-1, 2**62])
with torch.no_grad():
    assert single(far).tolist() == [[0.25] * 4] * 2
single(far).sum().backward()
assert single(far).tolist() == [[-0.75] * 4] * 2
assert single(torch.empty(0, 3, dtype=torch.int64)).shape == (0, 3, 4)
assert sums(torch.empty(0, dtype=torch.int64), torch.tensor([0, 0])).tolist() == [[0.0] * 4]

# Batches that are prefetched one ahead, and a lookup of others between.
batches = [torch.tensor([n, n + 1]) for n in range(4)]
for ids in ps.prefetch_each(batches, lambda batch: {single: batch}):
    with torch.no_grad():
        assert torch.allclose(single(torch.tensor([5])), sums.to_dense(6)[5:])
    assert torch.allclose(single(ids), single.to_dense(20)[ids])
    single(ids).sum().backward()

# Only the first of them is a round trip of its own; the others come with a push.
client, pulls = get_session().client, []
pull = client.pull
client.pull = lambda *own, **more: pulls.append(more) or pull(*own, **more)
for ids in ps.prefetch_each(batches, lambda batch: {single: batch, sums: batch}):
    (single(ids).sum() + sums(ids, torch.tensor([0, 2])).sum()).backward()
assert len(pulls) == 1 and torch.allclose(single(batches[0]), single.to_dense(2))

with torch.no_grad():  # and rows of a pass without a push are not kept
    for ids in ps.prefetch_each(batches, lambda batch: {single: batch}):
        single(ids)
        assert len(get_session()._ready) == 1

# No Parameter, a handle in the state, and copies that share the rows.
assert not [*single.parameters()] and single.state_dict() == {"_extra_state": {"table": "table", "dim": 4}}
for other in (copy.deepcopy(single), pickle.loads(pickle.dumps(single))):
    other.load_state_dict(single.state_dict())
    assert torch.equal(other(far), single(far))
refuse(ValueError, "of the table", ps.Embedding("other", 4).load_state_dict, single.state_dict())

ones = ps.Embedding("unlike", 2)
assert not torch.equal(ones(torch.tensor([1])), ones(torch.tensor([2])))  # torch's normal distribution
refuse(ValueError, "'table' exists with dim=4, not 8", ps.Embedding, "table", 8, "sgd", lr=1.0, init=0.25)
refuse(ValueError, "learning_rate=1.0, not 0.5", ps.Embedding, "table", 4, "sgd", lr=0.5, init=0.25)
refuse(ValueError, "did you mean adagrad?", ps.Embedding, "a", 4, "adagrat")
refuse(TypeError, "unknown option betas: sgd has lr", ps.Embedding, "a", 4, "sgd", betas=(0, 1))
refuse(TypeError, "unknown option moed: ", ps.EmbeddingBag, "a", 4, "sparse_adam", moed="sum")
refuse(TypeError, "sparse_adam has lr, betas, eps", ps.EmbeddingBag, "a", 4, "sparse_adam", epsilon=1)
refuse(TypeError, "dim=0", ps.Embedding, "a", 0)
refuse(TypeError, "name=1000", ps.EmbeddingBag, 1000, 8)
refuse(TypeError, "padding_idx=1.5", ps.Embedding, "a", 4, padding_idx=1.5)
refuse(TypeError, "cannot unpack", ps.Embedding, "a", 4, "sparse_adam", betas=0.9)
refuse(ValueError, "the number -1.0", ps.Embedding, "a", 4, lr=-1)
refuse(TypeError, "whole numbers", sums, ids, torch.tensor([0.0, 1.7]))
refuse(ValueError, "to_dense(0)", single.to_dense, 0)
ps.EmbeddingBag("a", 4), refuse(ValueError, "exists", ps.EmbeddingBag, "a", 8)
assert str(single) == "Embedding('table', 4)"
refuse(ValueError, "reduction='max'", ps.Embedding, "a", 4, reduction="max")
refuse(ValueError, "mode='max'", ps.EmbeddingBag, "a", 4, mode="max")
refuse(TypeError, "expected torch.int64", single, torch.tensor([1.0]))
refuse(ValueError, "ascend from 0", sums, ids, torch.tensor([1, 2]))
refuse(ValueError, "ascend from 0", sums, ids)
refuse(ValueError, "one for each id", ps.EmbeddingBag("mean", 4), ids[None], None, torch.ones(1, 2))
refuse(RuntimeError, "before the first lookup", ps.load, "saved", single)
refuse(RuntimeError, "connected already", ps.connect, None)
print("{}")
