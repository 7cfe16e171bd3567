"""Trains from files with text of slots. Prints guesses after that for each kind of dataset, as JSON."""

import json
import random
import sys
from pathlib import Path

import numpy as np
import paddle

paddle.enable_static()
paddle.seed(1)
order = random.Random(1)
for name, samples in {"first.txt": 7, "second.txt": 4}.items():
    lines = []
    for _ in range(samples):
        numbers = [order.random() for _ in range(3)]
        lines.append(f"3 {' '.join(map(str, numbers))} 1 {order.randrange(10)} 1 {order.randrange(2)}\n")
    Path(name).write_text("".join(lines))
Path("copy.py").write_text("import sys\nfor line in sys.stdin:\n    sys.stdout.write(line)\n")


def train(dataset):
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        dense = paddle.static.data("dense", [None, 3])
        word = paddle.static.data("word", [None, 1], "int64")
        label = paddle.static.data("label", [None, 1], "int64")
        half = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(0.5))
        row = paddle.reshape(paddle.static.nn.embedding(word, [10, 2], param_attr=half), [-1, 2])
        guess = paddle.static.nn.fc(paddle.concat([dense, row], axis=1), 1, weight_attr=half)
        loss = paddle.mean(paddle.square(guess - paddle.cast(label, "float32")))
        paddle.optimizer.SGD(0.1).minimize(loss)
        dataset.init(
            batch_size=4, thread_num=1, use_var=[dense, word, label], pipe_command=f"{sys.executable} copy.py"
        )
        dataset.set_filelist(["first.txt", "second.txt"])
        if isinstance(dataset, paddle.distributed.InMemoryDataset):
            dataset.load_into_memory()
        main = paddle.static.default_main_program()
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(paddle.static.default_startup_program())
        exe.train_from_dataset(main, dataset, fetch_list=[loss], fetch_info=["loss"], print_period=1)
        feed = {
            "dense": np.full((10, 3), 0.1, "float32"),
            "word": np.arange(10).reshape(10, 1),
            "label": np.zeros((10, 1), "int64"),
        }
        (values,) = exe.run(main.clone(for_test=True), feed=feed, fetch_list=[guess])
        return values[:, 0].tolist()


kinds = paddle.distributed.QueueDataset, paddle.distributed.InMemoryDataset
print(json.dumps({one.__name__: train(one()) for one in kinds}), flush=True)
