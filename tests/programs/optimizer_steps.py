"""Steps of each optimizer, with and without regularizers; prints the losses as JSON."""

import json

import numpy as np
import paddle

paddle.enable_static()
RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(20, 8, 4)).astype("float32")
START = RANDOM.normal(size=(4, 3)).astype("float32")
LAST = RANDOM.normal(size=(3, 1)).astype("float32")
make = paddle.optimizer
L1, L2 = paddle.regularizer.L1Decay, paddle.regularizer.L2Decay

OPTIMIZERS = {
    "SGD": lambda: make.SGD(0.05),
    "SGD L1": lambda: make.SGD(0.05, weight_decay=L1(0.2)),
    "Momentum": lambda: make.Momentum(learning_rate=0.02),
    "Nesterov": lambda: make.Momentum(0.02, 0.8, use_nesterov=True, weight_decay=0.1),
    "Adagrad": lambda: make.Adagrad(0.2, weight_decay=L2(0.1)),
    "Adagrad begins": lambda: make.Adagrad(0.2, 1e-5, initial_accumulator_value=0.5),
    "Adadelta": lambda: make.Adadelta(1.0, 1e-3, 0.9),
    "Adadelta L1": lambda: make.Adadelta(1.0, 1e-3, weight_decay=L1(0.1)),
    "RMSProp": lambda: make.RMSProp(0.05),
    "RMSProp momentum": lambda: make.RMSProp(0.02, 0.9, 1e-4, 0.7, weight_decay=L1(0.1)),
    "RMSProp centered": lambda: make.RMSProp(0.02, 0.9, 1e-4, 0.7, centered=True),
    "Adam": lambda: make.Adam(0.1, 0.8, 0.9, 1e-2),
    "Adam L1": lambda: make.Adam(0.1, weight_decay=L1(0.1)),
    "AdamW": lambda: make.AdamW(0.1, weight_decay=0.3),
    "AdamW some": lambda: make.AdamW(
        0.1, epsilon=1e-2, weight_decay=0.3, apply_decay_param_fun=lambda name: name == "first"
    ),
    "Adamax": lambda: make.Adamax(0.1, 0.8, 0.9, 1e-2),
    "Lamb": lambda: make.Lamb(0.1, 0.1),
    "Lamb some": lambda: make.Lamb(
        0.1, 0.1, 0.8, 0.9, 1e-3, exclude_from_weight_decay_fn=lambda param: param.name == "first"
    ),
    "Lamb plain": lambda: make.Lamb(0.1, 0.0),
}


def train(optimizer):
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [None, 4], "float32")
        first, last = (
            paddle.ParamAttr(name=name, initializer=paddle.nn.initializer.Assign(values), learning_rate=rate)
            for name, values, rate in (("first", START, 1.0), ("last", LAST, 0.5))
        )
        hidden = paddle.static.nn.fc(x, 3, weight_attr=first, activation="tanh")
        guess = paddle.static.nn.fc(hidden, 1, weight_attr=last, bias_attr=False)
        loss = paddle.mean(paddle.square(guess - paddle.sum(x, axis=1, keepdim=True)))
        optimizer.minimize(loss)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup)
    losses = []
    for batch in X:
        (value,) = executor.run(main, feed={"x": batch}, fetch_list=[loss])
        losses.append(float(value))
    return losses


print(json.dumps({name: train(build()) for name, build in OPTIMIZERS.items()}))
