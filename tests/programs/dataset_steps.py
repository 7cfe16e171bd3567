"""Trains from files with text of slots, some with several ids, and prints the loss of each batch."""

import random
import sys
from pathlib import Path

import numpy as np
import paddle

paddle.enable_static()
paddle.seed(1)
order = random.Random(1)
TABLE = np.linspace(-1, 1, 20, dtype="float32").reshape(10, 2)
POOLS = ("sum", "average", "sqrt", "max", "first", "last")
for name, samples in {"first.txt": 7, "second.txt": 4}.items():
    lines = []
    for _ in range(samples):
        numbers = [order.random() for _ in range(3)]
        # From 1: PaddlePaddle's InMemoryDataset leaves out zeros.
        words = [order.randrange(1, 10) for _ in range(order.randrange(1, 4))]
        slots = [numbers, [order.randrange(10)], words, [order.randrange(2)]]
        lines.append(" ".join(f"{len(slot)} {' '.join(map(str, slot))}" for slot in slots) + "\n")
    Path(name).write_text("".join(lines))
Path("copy.py").write_text("import sys\nfor line in sys.stdin:\n    sys.stdout.write(line)\n")


def train(dataset):
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        dense = paddle.static.data("dense", [None, 3])
        word = paddle.static.data("word", [None, 1], "int64")
        words = paddle.static.data("words", [None, 1], "int64", lod_level=1)
        label = paddle.static.data("label", [None, 1], "int64")
        half = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(0.5))
        rising = paddle.ParamAttr(initializer=paddle.nn.initializer.Assign(TABLE))
        row = paddle.reshape(paddle.static.nn.embedding(word, [10, 2], param_attr=rising), [-1, 2])
        rows = paddle.static.nn.embedding(words, [10, 2], param_attr=rising)
        pools = [paddle.static.nn.sequence_pool(paddle.reshape(rows, [-1, 2]), by) for by in POOLS]
        guess = paddle.static.nn.fc(paddle.concat([dense, row, *pools], axis=1), 1, weight_attr=half)
        loss = paddle.mean(paddle.square(guess - paddle.cast(label, "float32")))
        paddle.optimizer.SGD(0.02).minimize(loss)
        dataset.init(
            batch_size=4,
            thread_num=1,
            use_var=[dense, word, words, label],
            pipe_command=f"{sys.executable} copy.py",
        )
        dataset.set_filelist(["first.txt", "second.txt"])
        if isinstance(dataset, paddle.distributed.InMemoryDataset):
            dataset.load_into_memory()
        main = paddle.static.default_main_program()
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(paddle.static.default_startup_program())
        exe.train_from_dataset(main, dataset, fetch_list=[loss], fetch_info=["loss"], print_period=1)


for kind in (paddle.distributed.QueueDataset, paddle.distributed.InMemoryDataset):
    train(kind())
