"""Steps of static programs with fixed initial values; prints what each run fetched, as JSON."""

import json

import numpy as np
import paddle
import paddle.nn.functional as F

paddle.enable_static()
RANDOM = np.random.RandomState(0)
TABLE = RANDOM.rand(50, 4).astype("float32")
WEIGHTS = [RANDOM.normal(size=size).astype("float32") / 3 for size in [(19, 8), (8, 3), (3, 1)]]
assign = paddle.nn.initializer.Assign


def make_program(optimizer):
    word = paddle.static.data("word", [None, 4], "int64")
    dense = paddle.static.data("dense", [None, 3], "float32")
    label = paddle.static.data("label", [None, 1], "int64")
    row = paddle.static.nn.embedding(
        word,
        [50, 4],
        is_sparse=True,
        padding_idx=3,
        param_attr=paddle.ParamAttr(initializer=assign(TABLE)),
    )
    x = paddle.concat([paddle.reshape(row, [-1, 16]), dense], axis=1)
    x = paddle.static.nn.fc(x, 8, weight_attr=assign(WEIGHTS[0]), activation="relu")
    decay = paddle.regularizer.L2Decay(0.1)
    attr = paddle.ParamAttr(initializer=assign(WEIGHTS[1]), learning_rate=0.5, regularizer=decay)
    linear = paddle.nn.Linear(8, 3, weight_attr=attr)
    x = paddle.scale(F.softmax(linear(x)), 2.0, bias=-0.5)
    rest = paddle.mean(paddle.square(paddle.subtract(dense, x)), axis=1, keepdim=True)
    score = paddle.static.nn.fc(x, 1, weight_attr=assign(WEIGHTS[2]), bias_attr=assign(np.ones(1, "float32")))
    guess = F.sigmoid(paddle.add(score, 0.1 * rest))
    both = paddle.concat([1 - guess, guess], axis=1)
    auc, batch_auc, _ = paddle.static.auc(both, label)
    accuracy = paddle.static.accuracy(both, label)
    loss = paddle.mean(F.log_loss(guess, paddle.cast(label, "float32")))
    total = loss + 0.01 * paddle.mean(F.softmax_with_cross_entropy(x, label)) / 2.0
    optimizer.minimize(total)
    return [total, loss, auc, batch_auc, accuracy, paddle.sum(guess)]


found = {}
for name, optimizer in [
    ("SGD", paddle.optimizer.SGD(learning_rate=0.5)),
    ("Momentum", paddle.optimizer.Momentum(0.05, 0.9)),
    ("Adagrad", paddle.optimizer.Adagrad(0.1)),
    ("Adam", paddle.optimizer.Adam(0.02, lazy_mode=True)),
]:
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        fetches = make_program(optimizer)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup)
    random = np.random.RandomState(1)
    found[name] = []
    for _ in range(30):
        word = random.randint(0, 50, (32, 4))
        feed = {
            "word": word.astype("int64"),
            "dense": random.rand(32, 3).astype("float32"),
            "label": (word[:, :1] % 2).astype("int64"),
        }
        values = executor.run(main, feed=feed, fetch_list=fetches)
        found[name].append([float(np.asarray(value).reshape(-1)[0]) for value in values])
print(json.dumps(found))
