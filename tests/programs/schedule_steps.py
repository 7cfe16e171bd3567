"""Rates of each scheduler, and steps of each optimizer with one; prints them as JSON."""

import json

import numpy as np
import paddle

lr = paddle.optimizer.lr
paddle.enable_static()
RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(40, 8, 4)).astype("float32")
START = RANDOM.normal(size=(4, 1)).astype("float32")

SCHEDULERS = {
    "noam": lambda: lr.NoamDecay(64, 7, learning_rate=0.5),
    "piecewise": lambda: lr.PiecewiseDecay([3, 6, 9], [0.1, 0.2, 0.4, 0.8]),
    "natural": lambda: lr.NaturalExpDecay(0.5, gamma=0.1),
    "inverse": lambda: lr.InverseTimeDecay(0.5, gamma=0.1),
    "polynomial": lambda: lr.PolynomialDecay(0.5, decay_steps=7, power=2.0),
    "cycle": lambda: lr.PolynomialDecay(0.5, 7, end_lr=0.01, cycle=True),
    "warmup": lambda: lr.LinearWarmup(0.5, 5, 0.0, 0.5),
    "warmup_then": lambda: lr.LinearWarmup(lr.ExponentialDecay(0.5, 0.9), 5, 0.1, 0.5),
    "exponential": lambda: lr.ExponentialDecay(0.5, gamma=0.9),
    "milestones": lambda: lr.MultiStepDecay(0.5, milestones=[2, 5, 6], gamma=0.8),
    "steps": lambda: lr.StepDecay(0.5, step_size=3, gamma=0.8),
    "lambda": lambda: lr.LambdaDecay(0.5, lambda n: 0.95**n),
    "products": lambda: lr.MultiplicativeDecay(0.5, lambda n: 1.0 - 0.01 * n),
    "cosine": lambda: lr.CosineAnnealingDecay(0.5, T_max=7, eta_min=0.01),
    "one cycle": lambda: lr.OneCycleLR(0.5, 20, divide_factor=10.0),
    "three phases": lambda: lr.OneCycleLR(
        0.5, 20, end_learning_rate=0.01, anneal_strategy="linear", three_phase=True
    ),
    "triangular": lambda: lr.CyclicLR(0.1, 0.5, 3, 4),
    "triangular2": lambda: lr.CyclicLR(0.1, 0.5, 3, mode="triangular2"),
    "exp_range": lambda: lr.CyclicLR(0.1, 0.5, 3, mode="exp_range", exp_gamma=0.9),
    "scaled": lambda: lr.CyclicLR(0.1, 0.5, 3, scale_fn=lambda n: 0.9**n, scale_mode="iterations"),
    "later": lambda: lr.StepDecay(0.5, 3, 0.8, last_epoch=4),
}
METRICS = [5.0, 4.0, 4.0, 4.0, 4.0, 3.9999, 3.9, 3.9, 3.9, 3.9, 3.9, 3.9, 2.0, 2.0, 2.0]
STEPWISE = {  # PaddlePaddle's can't go on from a state, or from a given step
    "linear": lambda: lr.LinearLR(0.5, 7, start_factor=0.25, end_factor=0.75),
    "restarts": lambda: lr.CosineAnnealingWarmRestarts(0.5, 3, eta_min=0.01),
    "longer": lambda: lr.CosineAnnealingWarmRestarts(0.5, 2, 2),
}
PLATEAUS = {
    "relative": lambda: lr.ReduceOnPlateau(0.5, factor=0.5, patience=1, cooldown=1),
    "absolute": lambda: lr.ReduceOnPlateau(
        0.5, mode="max", factor=0.5, patience=2, threshold=0.05, threshold_mode="abs", min_lr=0.1
    ),
}
OPTIMIZERS = {
    "SGD": paddle.optimizer.SGD,
    "Momentum": lambda rate: paddle.optimizer.Momentum(rate, 0.9, weight_decay=0.01),
    "Adagrad": paddle.optimizer.Adagrad,
    "Adam": paddle.optimizer.Adam,
}


def list_rates(scheduler, *metrics):
    rates = [scheduler()]
    for i in range(15):
        scheduler.step(*[one[i] for one in metrics])
        rates.append(scheduler())
    return rates


def train(make_optimizer, scheduler):
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [None, 4], "float32")
        weight = paddle.ParamAttr(initializer=paddle.nn.initializer.Assign(START), learning_rate=0.5)
        guess = paddle.static.nn.fc(x, 1, weight_attr=weight)
        loss = paddle.mean(paddle.square(guess - paddle.sum(x, axis=1, keepdim=True)))
        optimizer = make_optimizer(scheduler)
        optimizer.minimize(loss)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup)
    losses = []
    for i in range(40):
        (value,) = executor.run(main, feed={"x": X[i]}, fetch_list=[loss])
        losses.append(float(value))
        if i % 3 == 2:
            scheduler.step()
    assert optimizer.get_lr() == scheduler()
    return losses


def resume(make):
    """Return the rates of a scheduler that goes on from the state of another, and that after 11 steps."""
    first, second, third = make(), make(), make()
    for _ in range(4):
        first.step()
    second.set_state_dict(first.state_dict())
    third.step(11)
    return [*list_rates(second), third()]


found = {
    "rates": {name: list_rates(make()) for name, make in {**SCHEDULERS, **STEPWISE}.items()},
    "resumed": {name: resume(make) for name, make in SCHEDULERS.items()},
    "plateaus": {name: list_rates(make(), METRICS) for name, make in PLATEAUS.items()},
    "losses": {
        name: train(make, lr.LinearWarmup(lr.ExponentialDecay(0.2, 0.8), 4, 0.0, 0.2))
        for name, make in OPTIMIZERS.items()
    },
}
print(json.dumps(found))
