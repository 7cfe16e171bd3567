"""A training that the tests of faults hit: it says where it is, and is as stubborn as it is told to be."""

# It stops at the moments `begin` and `batch0`, `batch1`, ... of faults/hooks, and prints "training" at the
# third batch. `--stubborn` ignores TERM.
TRAIN = """
import os, signal, sys
import numpy as np
import pslaunch.runtime as paddle
import sitecustomize

if "--stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

def reader():
    rng = np.random.default_rng(int(os.environ["PADDLE_INIT_TRAINER_ID"]))
    for x in rng.random((160, 4)).tolist():
        yield x, [sum(x)]

def on_event(event):
    if isinstance(event, paddle.event.EndIteration):
        if event.batch_id == 2:
            print("training", flush=True)
        sitecustomize.moment(f"batch{event.batch_id}")

sitecustomize.moment("begin")
paddle.init()
x = paddle.layer.data(name="x", type=paddle.data_type.dense_vector(4))
y = paddle.layer.data(name="y", type=paddle.data_type.dense_vector(1))
guess = paddle.layer.fc(input=x, size=1, act=paddle.activation.Linear())
cost = paddle.layer.square_error_cost(input=guess, label=y)
momentum = paddle.optimizer.Momentum(learning_rate=1e-3)
trainer = paddle.trainer.SGD(cost, paddle.parameters.create(cost), momentum, is_local=False)
trainer.train(paddle.batch(reader, 16), num_passes=1, event_handler=on_event)
"""
