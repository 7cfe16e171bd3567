"""The word2vec cluster program as the v2 pages have it: import line changed, Python 3, nothing else."""

from __future__ import annotations

import hashlib
import pickle
import random
from pathlib import Path

import pytest

from support.jobs import LocalPlace, Place, succeeded

MY_LIB = """
import os

def my_files(folder, trainers, trainer_id):
    names = sorted(name for name in os.listdir(folder) if "-" in name)
    return [os.path.join(folder, name) for i, name in enumerate(names) if i % trainers == trainer_id]
"""

PROGRAM = """
import math
import os
import pickle

import pslaunch.runtime as paddle
from my_lib import my_files

embsize = 32
hiddensize = 256
N = 5
node_id = os.getenv("OMPI_COMM_WORLD_RANK")
if not node_id:
    raise EnvironmentError("must provide OMPI_COMM_WORLD_RANK")
trainers = int(os.getenv("OMPI_COMM_WORLD_SIZE"))


def wordemb(inlayer):
    return paddle.layer.embedding(
        input=inlayer,
        size=embsize,
        param_attr=paddle.attr.Param(
            name="_proj", initial_std=0.001, learning_rate=1, l2_rate=0, sparse_update=True))


def cluster_reader(folder):
    def reader():
        for name in my_files(folder, trainers, int(node_id)):
            with open(name) as f:
                for line in f:
                    yield tuple(int(cell) for cell in line.split(","))
    return reader


def main():
    cluster_train = os.getenv("PADDLE_CLUSTER_TRAIN", "False") in ["true", "True", "1", "yes"]
    use_gpu = os.getenv("PADDLE_INIT_USE_GPU", "False")
    if not cluster_train:
        paddle.init(use_gpu=use_gpu, trainer_count=int(os.getenv("PADDLE_INIT_TRAINER_COUNT", "1")))
    else:
        paddle.init(
            use_gpu=use_gpu,
            trainer_count=int(os.getenv("PADDLE_INIT_TRAINER_COUNT", "1")),
            port=int(os.getenv("PADDLE_INIT_PORT", "7164")),
            ports_num=int(os.getenv("PADDLE_INIT_PORTS_NUM", "1")),
            ports_num_for_sparse=int(os.getenv("PADDLE_INIT_PORTS_NUM_FOR_SPARSE", "1")),
            num_gradient_servers=int(os.getenv("PADDLE_INIT_NUM_GRADIENT_SERVERS", "1")),
            trainer_id=int(os.getenv("PADDLE_INIT_TRAINER_ID", "0")),
            pservers=os.getenv("PADDLE_INIT_PSERVERS", "127.0.0.1"))
    with open("word_dict.pickle", "rb") as fn:
        word_dict = pickle.load(fn)
    dict_size = len(word_dict)
    words = [
        paddle.layer.data(name=name, type=paddle.data_type.integer_value(dict_size))
        for name in ("firstw", "secondw", "thirdw", "fourthw")]
    nextword = paddle.layer.data(name="fifthw", type=paddle.data_type.integer_value(dict_size))

    contextemb = paddle.layer.concat(input=[wordemb(word) for word in words])
    hidden1 = paddle.layer.fc(
        input=contextemb,
        size=hiddensize,
        act=paddle.activation.Sigmoid(),
        layer_attr=paddle.attr.Extra(drop_rate=0.5),
        bias_attr=paddle.attr.Param(learning_rate=2),
        param_attr=paddle.attr.Param(initial_std=1. / math.sqrt(embsize * 8), learning_rate=1))
    predictword = paddle.layer.fc(
        input=hidden1,
        size=dict_size,
        bias_attr=paddle.attr.Param(learning_rate=2),
        act=paddle.activation.Softmax())

    def event_handler(event):
        if isinstance(event, paddle.event.EndIteration):
            if event.batch_id % 100 == 0:
                result = trainer.test(paddle.batch(cluster_reader("test_data_dir/test"), 32))
                print("Pass %d, Batch %d, Cost %f, %s, Testing metrics %s" % (
                    event.pass_id, event.batch_id, event.cost, event.metrics, result.metrics))
        if isinstance(event, paddle.event.EndPass):
            with open("params_pass_%d_%s.tar" % (event.pass_id, node_id), "wb") as f:
                parameters.to_tar(f)

    cost = paddle.layer.classification_cost(input=predictword, label=nextword)
    parameters = paddle.parameters.create(cost)
    adagrad = paddle.optimizer.AdaGrad(
        learning_rate=3e-3, regularization=paddle.optimizer.L2Regularization(8e-4))
    trainer = paddle.trainer.SGD(cost, parameters, adagrad, is_local=not cluster_train)
    trainer.train(
        paddle.batch(cluster_reader("train_data_dir/train"), 32),
        num_passes=2,
        event_handler=event_handler)


if __name__ == "__main__":
    main()
"""


def write_workspace(folder: Path, *, words: int) -> Path:
    """The pages' tree, with a text in which each word follows from the one before it."""
    random.seed(1)
    (folder / "my_lib.py").write_text(MY_LIB)
    (folder / "word_dict.pickle").write_bytes(pickle.dumps({f"w{i}": i for i in range(words)}))
    for kind, files in (("train", 3), ("test", 2)):
        data = folder / f"{kind}_data_dir" / kind
        data.mkdir(parents=True)
        (data / f"{kind}.txt").write_text("not a shard\n")
        for number in range(files):
            starts = [random.randrange(words) for _ in range(200)]
            lines = [",".join(str((start + i) % words) for i in range(5)) for start in starts]
            (data / f"{kind}.txt-{number:05d}").write_text("\n".join(lines) + "\n")
    program = folder / "train.py"
    program.write_text(PROGRAM)
    return program


@pytest.mark.parametrize("place", ["fabric_furnished"], indirect=True)
def test_it_runs_on_hosts_to_the_same_bits_as_here(place: Place, workspace: Path) -> None:
    here = workspace.parent / "here"
    here.mkdir()
    for folder in (workspace, here):
        write_workspace(folder, words=60)
    package = {path.relative_to(workspace): path.read_bytes() for path in workspace.rglob("*.*")}
    assert trained(place, workspace) == trained(LocalPlace(1), here)
    on_hosts = place.workspaces(workspace)[0]
    assert all((on_hosts / name).read_bytes() == data for name, data in package.items())


def trained(place: Place, workspace: Path) -> set[str]:
    """sha256 of the parameters: the launcher's, and what the program wrote itself on each node."""
    job = succeeded(place, workspace, "--server_num=3", "--worker_num=3", timeout_s=100)
    text = "\n".join(job.lines("trainer/0"))
    assert "Pass 0, Batch 0, Cost 4." in text
    assert "Testing metrics {'classification_error_evaluator': " in text
    nodes = place.workspaces(workspace)
    files = [path for node in nodes for path in node.glob("params_pass_1_*.tar")]
    assert len(files) == 3
    return {
        hashlib.sha256(path.read_bytes()).hexdigest() for path in (nodes[0] / "output/parameters.tar", *files)
    }
