"""The program of PaddlePaddle's quick start of parameter servers, with the lines that its page leaves out.

`train.py MODE [DIR]`: sync, async or geo; the first worker saves in DIR.
"""

import sys

import numpy as np
import paddle
import paddle.distributed.fleet as fleet
import paddle.distributed.fleet.base.role_maker as role_maker
from model import WideDeepModel
from reader import make_reader

paddle.enable_static()
fleet.init(role_maker.PaddleCloudRoleMaker())
model = WideDeepModel()
model.net(is_train=True)

strategy = fleet.DistributedStrategy()
strategy.a_sync = sys.argv[1] != "sync"
if sys.argv[1] == "geo":
    strategy.a_sync_configs = {"k_steps": 5}
optimizer = paddle.optimizer.SGD(learning_rate=0.2)
optimizer = fleet.distributed_optimizer(optimizer, strategy)
optimizer.minimize(model.cost)

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()

if fleet.is_worker():
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    reader = make_reader(seed=fleet.worker_index(), samples=3000 + 100 * fleet.worker_index())
    model.loader.set_sample_list_generator(paddle.batch(reader, batch_size=64), places=paddle.CPUPlace())
    losses = []
    for _epoch_id in range(2):
        model.loader.start()
        try:
            while True:
                loss_val = exe.run(
                    program=paddle.static.default_main_program(), fetch_list=[model.cost.name, *model.states]
                )
                losses.append(np.mean(loss_val[0]))
        except paddle.core.EOFException:
            model.loader.reset()
    fleet.barrier_worker()
    if fleet.is_first_worker() and len(sys.argv) > 2:
        fleet.save_persistables(exe, sys.argv[2])
    tenth = len(losses) // 10
    first, last = np.mean(losses[:tenth]), np.mean(losses[-tenth:])
    steps = fleet.util.all_reduce(len(losses))
    auc = fleet.metrics.auc(loss_val[3], loss_val[4])
    print(
        f"worker {fleet.worker_index()}: loss {first:.4f} -> {last:.4f} after {steps} steps of all, "
        f"AUC {auc:.4f}",
        flush=True,
    )
    fleet.stop_worker()
