"""A number for each word, learned by PaddlePaddle Fleet with an asynchronous parameter server.

A program that knows no pslaunch: `python -m paddle.distributed.launch --server_num=1
--worker_num=2 fleet_train.py` runs it as well. Options say what a worker does wrong.

What learns is the sparse table: `Executor.run` of PaddlePaddle 2.6.2 pulls dense parameters only once.
"""

import argparse
import os

import numpy as np
import paddle
from paddle.distributed import fleet

STEPS, BATCH, WORDS = 300, 32, 50

parser = argparse.ArgumentParser()
parser.add_argument("--endless", action="store_true", help="train until somebody ends it")
parser.add_argument("--crash", type=int, nargs="*", default=[], help="workers that abort while training")
parser.add_argument("--fail", type=int, nargs="*", default=[], help="workers that raise before the barrier")
args = parser.parse_args()

paddle.enable_static()
fleet.init(is_collective=False)
strategy = fleet.DistributedStrategy()
strategy.a_sync = True

word = paddle.static.data("word", [None, 1], "int64")
wanted = paddle.static.data("wanted", [None, 1], "float32")
embedding = paddle.static.nn.embedding(word, size=[WORDS, 8], is_sparse=True)
equal = paddle.nn.initializer.Constant(0.5)
guess = paddle.static.nn.fc(paddle.reshape(embedding, [-1, 8]), 1, weight_attr=equal, bias_attr=False)
loss = paddle.mean(paddle.nn.functional.square_error_cost(guess, wanted))
fleet.distributed_optimizer(paddle.optimizer.Adam(0.05), strategy).minimize(loss)

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    rank = fleet.worker_index()
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    fleet.init_worker()
    random = np.random.RandomState(rank)
    losses: list[float] = []
    while args.endless or len(losses) < STEPS:
        words = random.randint(0, WORDS, (BATCH, 1))
        feed = {"word": words.astype("int64"), "wanted": np.sin(words).astype("float32")}
        (value,) = executor.run(paddle.static.default_main_program(), feed=feed, fetch_list=[loss])
        losses.append(float(value))
        if len(losses) == 10:
            print("training", flush=True)
            if rank in args.crash:
                os.abort()
    if rank in args.fail:
        raise RuntimeError(f"worker {rank} has lost its data")
    fleet.barrier_worker()
    fleet.stop_worker()
    tenth = STEPS // 10
    print(f"worker {rank}: loss {np.mean(losses[:tenth]):.4f} -> {np.mean(losses[-tenth:]):.4f}", flush=True)
