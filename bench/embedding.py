"""Tables of a PyTorch model on a pserver, next to other ways: `python bench/embedding.py [PART ...]`.

26 slots of 1 id or 10 by Zipf's law (1.2), whose rows are added up by slot, 13 numbers, a hidden layer of 64;
one trainer. PART is the length of a row x the ids of a slot; AdaGrad, or "adam" for rows by SparseAdam, for
ours and PyTorch alone. All contenders get the same samples and have the same first costs, or the program
ends. Rows are zeros at first, and there before the clock runs.

In process: `nn.EmbeddingBag(sparse=True)`, no network. Dense part: the step without a table, which all have;
by Debian's libblas3 it takes 10 times as long as by libopenblas0. Torch RPC: RemoteModule and
DistributedOptimizer, as tutorials have it; rows are added up at the server. Pyzmq: unique keys, numpy arrays
for all keys; a push is not waited for. Redis: MGET and MSET of rows with AdaGrad's state, hiredis. Up to 16
GB of memory.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import turns
from exchange import F32, HOST, Address, start_pserver
from exchange import Case as Exchange
from pslaunch import runtime

with suppress(ImportError):  # main() runs this again by a Python that has it
    import torch
    from torch.distributed import autograd, nn, optim, rpc

    from pslaunch.torch import EmbeddingBag, prefetch_each

SLOTS, NUMBERS, HIDDEN, RATE, EPSILON = 26, 13, 64, 0.01, 1e-10
STEPS = 5  # of a turn, each with a batch of its own
PARTS = {f"{dim}x{ids}": (dim, ids, "adagrad") for dim in (16, 64) for ids in (1, 10)}
PARTS |= {f"{part}adam": (*PARTS[part][:2], "sparse_adam") for part in ("16x1", "16x10")}
Ids = npt.NDArray[np.int64]
Batch = tuple[Any, Any, Any]  # tensors: numbers, ids of all samples and slots in a row, labels
Step = Callable[[Batch], float]
Loader = Callable[[list[Batch]], Iterable[Batch]]


class Case(NamedTuple):
    """Length of a row, ids of a slot, optimizer of rows, samples of a batch, keys of the table."""

    dim: int
    ids: int
    rule: str
    batch: int
    keys: int

    def __str__(self) -> str:
        rows = f"rows of {self.dim}, {self.rule}, {SLOTS} x {self.ids} ids"
        return f"{rows}, batch {self.batch:,}, {self.keys:,} keys"

    def make_batch(self, rng: np.random.Generator) -> Batch:
        """Made up samples; frequent ids are frequent, and each slot has its own."""
        own = self.keys // SLOTS
        ids = rng.zipf(1.2, (self.batch, SLOTS, self.ids)) % own + np.arange(SLOTS)[:, None] * own
        numbers = rng.standard_normal((self.batch, NUMBERS), np.float32)
        labels = rng.integers(0, 2, (self.batch, 1)).astype(np.float32)
        return torch.from_numpy(numbers), torch.from_numpy(ids.reshape(-1)), torch.from_numpy(labels)

    def make_model(self) -> tuple[Any, Any]:
        """Return what is above the rows, and where the ids of each slot begin."""
        torch.manual_seed(1)
        first, last = torch.nn.Linear(SLOTS * self.dim + NUMBERS, HIDDEN), torch.nn.Linear(HIDDEN, 1)
        tower = torch.nn.Sequential(first, torch.nn.ReLU(), last)
        return tower, torch.arange(0, self.batch * SLOTS * self.ids, self.ids)


def compute_cost(tower: Any, sums: Any, batch: Batch) -> Any:
    """`sums`: a row for each slot of each sample."""
    guess = tower(torch.cat([sums.view(len(batch[0]), -1), batch[0]], 1))
    return torch.nn.functional.binary_cross_entropy_with_logits(guess, batch[2])


def make_step(tower: Any, lookup: Callable[[Any], Any], *below: Any) -> Step:
    """`below`: optimizers of what is below `tower`."""
    optimizers = [torch.optim.Adagrad(tower.parameters(), lr=RATE), *below]

    def step(batch: Batch) -> float:
        for one in optimizers:
            one.zero_grad()
        cost = compute_cost(tower, lookup(batch[1]), batch)
        cost.backward()
        for one in optimizers:
            one.step()
        return float(cost)

    return step


# --- PyTorch alone, with ours, with its RPC ---


@contextmanager
def train_dense_part(case: Case, _: str) -> Iterator[tuple[Step, Loader]]:
    tower, offsets = case.make_model()
    yield make_step(tower, lambda _: torch.zeros(len(offsets), case.dim, requires_grad=True)), iter


@contextmanager
def train_in_process(case: Case, _: str) -> Iterator[tuple[Step, Loader]]:
    tower, offsets = case.make_model()
    weight = torch.zeros(case.keys, case.dim)
    bag = torch.nn.EmbeddingBag(case.keys, case.dim, mode="sum", sparse=True, _weight=weight)
    kind = {"adagrad": torch.optim.Adagrad, "sparse_adam": torch.optim.SparseAdam}[case.rule]
    yield make_step(tower, lambda ids: bag(ids, offsets), kind(bag.parameters(), lr=RATE)), iter


@contextmanager
def train_by_ours(case: Case, address: Address) -> Iterator[tuple[Step, Loader]]:
    runtime.init(pservers=f"{address[0]}:{address[1]}", num_gradient_servers=1, trainer_id=0)
    tower, offsets = case.make_model()
    bag = EmbeddingBag("rows", case.dim, case.rule, lr=RATE, mode="sum", init=0.0)
    load = partial(prefetch_each, choose=lambda batch: {bag: batch[1]})
    yield make_step(tower, lambda ids: bag(ids, offsets)), load


def join_rpc(name: str, rank: int, place: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=place)
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


def serve_rpc(_: Case, folder: Path, answer: Connection) -> None:
    place = f"file://{folder}/rpc"
    answer.send(place)
    join_rpc("ps", 0, place)
    rpc.shutdown()  # returns when the trainer has ended


@contextmanager
def train_by_rpc(case: Case, place: str) -> Iterator[tuple[Step, Loader]]:
    join_rpc("trainer", 1, place)
    tower, offsets = case.make_model()
    settings = {"mode": "sum", "sparse": True}
    bag = nn.RemoteModule("ps", torch.nn.EmbeddingBag, (case.keys, case.dim), settings)
    parameters = bag.remote_parameters()
    parameters[0].remote().detach().remote().zero_().rpc_sync().size()
    parameters += map(rpc.RRef, tower.parameters())
    optimizer = optim.DistributedOptimizer(torch.optim.Adagrad, parameters, lr=RATE)

    def step(batch: Batch) -> float:
        with autograd.context() as context:
            cost = compute_cost(tower, bag.forward(batch[1], offsets), batch)
            autograd.backward(context, [cost])
            optimizer.step(context)
        return float(cost)

    yield step, iter
    rpc.shutdown()


# --- by hand: unique keys, their rows, and their summed gradients ---


def make_step_by_hand(case: Case, pull: Callable[[Ids], F32], push: Callable[[Ids, F32], None]) -> Step:
    tower, offsets = case.make_model()

    def lookup(ids: Any) -> Any:
        keys, places = np.unique(ids.numpy(), return_inverse=True)
        rows = torch.from_numpy(pull(keys)).requires_grad_()
        rows.register_hook(lambda grads: push(keys, grads.numpy()))  # in the middle of backward
        return torch.nn.functional.embedding_bag(torch.from_numpy(places), rows, offsets, mode="sum")

    return make_step(tower, lookup)


def serve_zmq(case: Case, _: Path, answer: Connection) -> None:
    import zmq

    values, state = (np.zeros((case.keys, case.dim), np.float32) for _ in range(2))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        answer.send(router.bind_to_random_port(f"tcp://{HOST}"))
        while True:
            who, *parts = router.recv_multipart(copy=False)
            keys = np.frombuffer(parts[0].buffer, np.int64)
            if len(parts) == 1:
                router.send_multipart([who.bytes, values[keys]], copy=False)
                continue
            grads = np.frombuffer(parts[1].buffer, np.float32).reshape(-1, case.dim)
            own = state[keys] + grads * grads
            state[keys] = own
            values[keys] -= RATE * grads / (np.sqrt(own) + EPSILON)


@contextmanager
def train_by_zmq(case: Case, port: int) -> Iterator[tuple[Step, Loader]]:
    import zmq

    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(f"tcp://{HOST}:{port}")

        def pull(keys: Ids) -> F32:
            dealer.send(keys, copy=False)
            rows = np.frombuffer(dealer.recv(copy=False).buffer, np.float32)
            return rows.reshape(-1, case.dim).copy()  # PyTorch wants what it may write to

        yield make_step_by_hand(case, pull, lambda *pushed: dealer.send_multipart(pushed, copy=False)), iter


def serve_redis(_: Case, folder: Path, answer: Connection) -> None:
    with socket.create_server((HOST, 0)) as found:
        answer.send(port := found.getsockname()[1])
    options = {"bind": HOST, "port": str(port), "save": "", "dir": str(folder), "logfile": "redis"}
    os.execvp("redis-server", ["redis-server", *(w for k, v in options.items() for w in (f"--{k}", v))])


@contextmanager
def train_by_redis(case: Case, port: int) -> Iterator[tuple[Step, Loader]]:
    import redis

    retry = redis.retry.Retry(redis.backoff.ConstantBackoff(0.1), 100)  # until the server has begun
    client = redis.Redis(HOST, port, retry=retry, retry_on_error=[redis.ConnectionError])
    new, found = bytes(8 * case.dim), np.empty((0, 2, case.dim), np.float32)  # rows, each before its state

    def pull(keys: Ids) -> F32:
        nonlocal found
        answers = b"".join(one or new for one in client.mget(keys.tolist()))
        found = np.frombuffer(bytearray(answers), np.float32).reshape(-1, 2, case.dim)
        return found[:, 0].copy()

    def push(keys: Ids, grads: F32) -> None:
        found[:, 1] += grads * grads
        found[:, 0] -= RATE * grads / (np.sqrt(found[:, 1]) + EPSILON)
        client.mset({key: row.tobytes() for key, row in zip(keys.tolist(), found, strict=True)})

    yield make_step_by_hand(case, pull, push), iter


# --- contenders: trainer, server, and the speed of ours to reach ---

OURS, ALONE, DENSE = "ours", "in process", "dense part"
KINDS: dict[str, tuple[Any, Any, str]] = {
    OURS: (train_by_ours, lambda *_: start_pserver(Exchange(what="step", size=0)), ""),
    ALONE: (train_in_process, lambda *_: ExitStack(), ">= 0.67"),  # a step <= 1.5 times as long
    DENSE: (train_dense_part, lambda *_: ExitStack(), ""),
    "torch RPC": (train_by_rpc, partial(turns.start_server, serve_rpc), ">= 5"),
    "pyzmq": (train_by_zmq, partial(turns.start_server, serve_zmq), ">= 3"),
    "Redis": (train_by_redis, partial(turns.start_server, serve_redis), ">= 10"),
}


@contextmanager
def work(kind: str, case: Case, place: Any) -> Iterator[Callable[[], None]]:
    """Train with all batches in a turn; after the first leave its costs and the memory then, as `kind`."""
    rng, said = np.random.default_rng(1), Path(kind)
    batches = [case.make_batch(rng) for _ in range(STEPS)]
    with KINDS[kind][0](case, place) as (step, load):

        def take_turn() -> None:
            costs = [step(batch) for batch in load(batches)]
            if not said.exists():
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                said.write_text(json.dumps([costs, pages * os.sysconf("SC_PAGE_SIZE")]))

        yield take_turn


def measure(case: Case, kinds: Sequence[str], count: int) -> tuple[turns.Times, dict[str, float]]:
    """Return the seconds of a sample by turn, and the bytes of each trainer."""
    with ExitStack() as stack:
        folder = stack.enter_context(turns.make_fresh_folder())
        contenders = {}
        for kind in kinds:
            place = stack.enter_context(KINDS[kind][1](case, folder))
            trainer = turns.start_workers([partial(work, kind, case, place)], folder)
            contenders[kind] = stack.enter_context(trainer)
        said = {kind: json.loads((folder / kind).read_text()) for kind in kinds}
        for kind, (costs, _) in said.items():
            if kind != DENSE and not np.allclose(costs, said[ALONE][0], rtol=1e-3):
                raise SystemExit(f"{kind}, {case}: costs {costs}, {ALONE} {said[ALONE][0]}")
        times = turns.take_turns(contenders, count)
    by_sample = {kind: [s / (STEPS * case.batch) for s in own] for kind, own in times.items()}
    return by_sample, {kind: own for kind, (_, own) in said.items()}


def main() -> None:
    """Print the tables."""
    options = turns.parse_parts(__doc__, [*PARTS], 5)
    os.environ.update(GLOG_minloglevel="2")  # torch RPC logs its ends
    turns.run_by_python("/usr/bin/python3", "torch")
    find = importlib.util.find_spec
    here = {"pyzmq": find("zmq"), "Redis": find("redis") and find("hiredis") and shutil.which("redis-server")}
    if not all(here.values()):
        print("not here: python3-zmq; or python3-redis, python3-hiredis, redis-server")
    kinds = [kind for kind in KINDS if here.get(kind, True)]
    sizes = [(64, 100_000)] if options.quick else [(b, k) for b in (512, 4096) for k in (10**6, 10**7)]
    cases = [Case(*PARTS[part], *size) for part in options.parts for size in sizes]
    memory = {}
    table = turns.Table(f"Tables of PyTorch {torch.__version__}, samples a second", beside="the same model")
    for case in cases:
        own = kinds if case.rule == "adagrad" else kinds[:3]
        times, memory[case] = measure(case, own, options.turns)
        for kind in own[1:]:
            target = "" if kind == ALONE and case.batch < 4096 else KINDS[kind][2]
            table.add_speeds(f"{case}: {kind}", times[OURS], times[kind], target)
    table = turns.Table("Memory of a trainer (RSS)", beside=ALONE)
    for case, used in memory.items():
        first = memory[case._replace(keys=sizes[0][1])][OURS]
        ours, alone = (f"{used[kind] / 1e6:.0f} MB" for kind in (OURS, ALONE))
        table.add_row(f"{case}; to {sizes[0][1]:,} keys", ours, alone, used[OURS] / first, "<= 1.1")


if __name__ == "__main__":
    main()
