"""Three steps with each function of tensors; prints the values of each step, as JSON.

The loss depends on a parameter by this function alone, so that the values of later steps show its gradient.
"""

import json

import numpy as np
import paddle
import paddle.nn.functional as F

paddle.enable_static()
RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(8, 4, 3)).astype("float32")
Y = RANDOM.rand(8, 4, 3).astype("float32")
W = RANDOM.normal(size=(1, 12)).astype("float32")
AXES = paddle.ParamAttr(initializer=paddle.nn.initializer.Assign(W.reshape(2, 2, 3)))

FUNCTIONS = {
    "item": lambda x, y: x[:, 2],
    "slices": lambda x, y: x[:, 1:-1, ::2],
    "last": lambda x, y: x[..., -1],
    "backward": lambda x, y: x[:, ::-1],
    "beyond": lambda x, y: x[:, 2:9, 0],
    "split": lambda x, y: paddle.multiply(*paddle.split(x, 2, axis=1)),
    "sections": lambda x, y: paddle.split(x, [1, -1], axis=-1)[1],
    "number": lambda x, y: paddle.mean(x) * 2.0 - paddle.max(x) * paddle.mean(y, axis=[0, 1])[2],
    "vector": lambda x, y: paddle.reshape(F.sigmoid(paddle.sum(x)), [1]) / paddle.ones([3]),
    "kept": lambda x, y: paddle.sum(x, keepdim=True),
    "transpose": lambda x, y: paddle.transpose(x, [0, 2, 1]),
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(F.sigmoid(x), y),
    "with_logits": lambda x, y: F.binary_cross_entropy_with_logits(4.0 * x, y, reduction="none"),
    "sum_of_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="sum") / 50.0,
    "BCELoss": lambda x, y: paddle.nn.BCELoss()(F.sigmoid(x), y),
    "BCEWithLogitsLoss": lambda x, y: paddle.nn.BCEWithLogitsLoss()(x, y),
    "CrossEntropyLoss": lambda x, y: paddle.nn.CrossEntropyLoss()(x, paddle.cast(3.0 * y[..., :1], "int64")),
    "clip": lambda x, y: paddle.clip(x, -0.5, 1.0),
    "clip_below": lambda x, y: paddle.clip(x, max=0.5),
    "abs": lambda x, y: paddle.abs(x),
    "sqrt": lambda x, y: paddle.sqrt(paddle.square(x) + 0.5),
    "log": lambda x, y: paddle.log(paddle.abs(x) + 0.5),
    "certain": lambda x, y: F.binary_cross_entropy(paddle.clip(x, 0.0, 1.0), y, reduction="none"),
    "exp": lambda x, y: paddle.exp(0.5 * x),
    "rsqrt": lambda x, y: paddle.rsqrt(paddle.square(x) + 0.5),
    "pow": lambda x, y: paddle.pow(0.5 * x, 3) + paddle.pow(paddle.abs(x) + 1.0, 0.5) + paddle.pow(x, 2.0),
    "stack": lambda x, y: paddle.stack([x, 2.0 * y, x], axis=2),
    "sums": lambda x, y: paddle.sum(x, axis=[1, 2]) + paddle.mean(x, axis=-1, keepdim=True)[:, 0, 0],
    "matmul": lambda x, y: paddle.matmul(x, y, transpose_y=True),
    "axes": lambda x, y: x * paddle.create_parameter([2, 2, 3], "float32", attr=AXES)[:1, 1, :],
    "max": lambda x, y: paddle.max(x, axis=1),
    "min": lambda x, y: paddle.min(x, axis=[1, 2], keepdim=True),
    "equal": lambda x, y: paddle.max(paddle.concat([x, x], axis=-1), axis=-1),
    "maximum": lambda x, y: paddle.maximum(x, y),
    "minimum": lambda x, y: paddle.minimum(x, y[:, :1]),
    "full": lambda x, y: x * paddle.full([1, 4, 3], 0.25) + paddle.ones([4, 3]) - paddle.zeros([1]),
    "whole": lambda x, y: x + paddle.cast(paddle.full([4, 3], 2, "int64"), "float32"),
}

found = {}
for name, function in FUNCTIONS.items():
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [None, 4, 3], "float32")
        y = paddle.static.data("y", [None, 4, 3], "float32")
        attr = paddle.ParamAttr(initializer=paddle.nn.initializer.Assign(W))
        weight = paddle.create_parameter([1, 12], "float32", attr=attr)
        value = function(paddle.add(x, paddle.reshape(weight, [1, 4, 3])), y)
        loss = paddle.mean(paddle.square(value))
        paddle.optimizer.SGD(learning_rate=0.5).minimize(loss)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup)
    steps = [executor.run(main, feed={"x": X, "y": Y}, fetch_list=[value])[0] for _ in range(3)]
    found[name] = [np.asarray(one).tolist() for one in steps]
print(json.dumps(found))
