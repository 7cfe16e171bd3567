"""Programs that the tests of faults hit: they say where they are, and are as stubborn as they can be."""

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

# The beginning of programs that are no trainings, and report their progress.
REPORTING = """
import json, os, signal, socket, sys, time
role, rank, epoch = (os.environ["PSLAUNCH_" + name] for name in ("ROLE", "RANK", "EPOCH"))
def report(text):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(text.encode(), os.environ["PSLAUNCH_PROGRESS"])
"""

# A program that is no training: ends at TERM, for which a pserver takes three seconds.
SAVING = """
import os, signal, sys, time
def save(*_):
    if os.environ["TRAINING_ROLE"] == "PSERVER":
        time.sleep(3)
        open(os.path.join(os.environ["PSLAUNCH_OUTPUT_DIR"], "saved"), "w").close()
    sys.exit(0)
here, there = os.pipe()
os.set_blocking(there, False)
signal.set_wakeup_fd(there)
signal.signal(signal.SIGTERM, save)
os.write(1, b"ready\\n")
while True:
    os.read(here, 1)
"""

# A program that is no training: does not end at TERM, and hides children from everyone.
STUBBORN = r"""
import os, signal
here, there = os.pipe()
os.set_blocking(there, False)
signal.set_wakeup_fd(there)  # pause() would miss what comes just before it
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"told\n"))
signal.signal(signal.SIGINT, signal.SIG_IGN)
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"hidden\n")
    while True:
        signal.pause()
os.write(1, b"ready\n")
while True:
    os.read(here, 1)
"""

# A program that is no training: has a result, and waits until it is ended.
WAITING = r"""
import os, signal, sys
folder = os.environ["PSLAUNCH_OUTPUT_DIR"]
os.makedirs(folder, exist_ok=True)
open(folder + "/model-" + os.environ["PADDLE_TRAINER_ID"], "w").write("w")
os.write(1, b"ready\n")
signal.pause()
"""
