"""Metrics of static mode next to plain numpy, and over all workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pslaunch.runtime as paddle
from pslaunch.runtime.client import messages
from pslaunch.runtime.client.job_metrics import JobMetrics, list_states
from pslaunch.runtime.engine.arrays import Ids
from pslaunch.runtime.engine.ops.metric import sum_user_auc
from pslaunch.runtime.paddle2 import static

RNG = np.random.default_rng(1)
RUNS = [
    {
        "x": RNG.integers(0, 129, (n, 1)).astype(np.float32) / 128,
        "label": RNG.integers(0, 2, (n, 1)),
        "user": RNG.integers(0, 9, (n, 1)),
    }
    for n in (40, 7, 30, 60, 25)
]
Feed = dict[str, npt.NDArray[Any]]


def join(name: str, runs: list[Feed]) -> npt.NDArray[Any]:
    return np.concatenate([run[name] for run in runs])[:, 0]


def find_auc(x: npt.NDArray[Any], label: npt.NDArray[Any]) -> float:
    """Return the share of pairs in the right order; equal ones count half."""
    pairs = x[label == 1][:, None] - x[label == 0]
    return float(((pairs > 0) + 0.5 * (pairs == 0)).mean()) if pairs.size else 0.0


def find_user_auc(runs: list[Feed]) -> tuple[float, float]:
    x, label, user = (join(name, runs) for name in ("x", "label", "user"))
    total = samples = 0.0
    for one in set(user.tolist()):
        own = user == one
        if len(set(label[own].tolist())) == 2:
            total, samples = total + find_auc(x[own], label[own]) * own.sum(), samples + own.sum()
    return total, samples


def make_data() -> tuple[static.Variable, ...]:
    x = static.data("x", [None, 1])
    return x, static.data("label", [None, 1], "int64"), static.data("user", [None, 1], "int64")


def run(feeds: list[Feed], *fetches: Any) -> list[npt.NDArray[Any]]:
    """Run them all, and return what the last run fetches."""
    executor = static.Executor()
    for feed in feeds[:-1]:
        executor.run(feed=feed)
    return executor.run(feed=feeds[-1], fetch_list=list(fetches))


@pytest.mark.parametrize(("steps", "last"), [(0, 5), (1, 1), (2, 2), (3, 3), (20, 5)])
def test_auc_of_the_last_runs(steps: int, last: int) -> None:
    x, label, _ = make_data()
    total, recent, counts = static.auc(
        paddle.concat([1 - x, x], axis=1), label, num_thresholds=128, slide_steps=steps
    )
    found = run(RUNS, total, recent, *counts)
    for value, both, runs in ((found[0], found[4:], RUNS), (found[1], found[2:4], RUNS[-last:])):
        shares, labels = join("x", runs), join("label", runs)
        np.testing.assert_allclose(value, find_auc(shares, labels), rtol=1e-6)
        places = [(shares[labels == one] * 128).astype(int) for one in (1, 0)]
        np.testing.assert_array_equal(both, [np.bincount(one, minlength=129) for one in places])


@pytest.mark.parametrize("most", [1000, 50])
def test_auc_of_each_user(most: int) -> None:
    x, label, user = make_data()
    last = {name: np.concatenate([run[name] for run in RUNS])[-most:] for name in RUNS[0]}
    total, samples = find_user_auc([last])
    np.testing.assert_allclose(
        run(RUNS, static.user_auc(x, label, user, most))[0], total / samples, rtol=1e-6
    )


@given(data=hnp.arrays(np.int64, st.tuples(st.integers(0, 30), st.just(3)), elements=st.integers(0, 3)))
def test_sum_of_users_is_that_of_loops(data: Ids) -> None:
    runs: list[Feed] = [{"x": data[:, :1] / 4, "label": data[:, 1:2] % 2, "user": data[:, 2:]}]
    bits = (data[:, 0] / 4).astype(np.float32).view(np.int32)
    state = np.stack([data[:, 2], data[:, 1] % 2, bits], axis=1)
    state = np.concatenate([state, [[len(data), 0, 0]]]).astype(np.int64)
    np.testing.assert_allclose(sum_user_auc(state), find_user_auc(runs), rtol=1e-12)


def test_sums_of_clicks() -> None:
    x, label, _ = make_data()
    found = [float(one[0]) for one in run(RUNS, *static.ctr_metric_bundle(x, label))]
    p, y = join("x", RUNS).astype(np.float64), join("label", RUNS)
    wrong = p - y
    expected = [wrong @ wrong, np.abs(wrong).sum(), p.sum(), (1 / (1 + np.exp(-p))).sum(), y.sum(), len(y)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


class Servers:
    """Sums as Messages.add_up() gives them."""

    def __init__(self, others: dict[str, Ids]) -> None:
        self.others, self.said = others, list[dict[str, Ids]]()
        self.messages = self

    def add_up(self, own: dict[str, Ids]) -> dict[str, Ids]:
        self.said.append(own)
        return {name: one + self.others.get(name, 0) for name, one in own.items()}


def measure_run(runs: list[Feed]) -> tuple[static.Program, dict[str, Ids]]:
    """Return a program of its own with all metrics, and their states after these runs."""
    main = static.Program()
    with static.program_guard(main, static.Program()):
        x, label, user = make_data()
        for steps in (20, 0):
            static.auc(paddle.concat([1 - x, x], axis=1), label, num_thresholds=128, slide_steps=steps)
        static.ctr_metric_bundle(x, label)
        static.user_auc(x, label, user)
        run(runs)
    assert main.session is not None
    return main, main.session._learner.counts


def test_metrics_of_the_job_are_those_of_all_samples() -> None:
    """Of two workers, anew only after a while."""
    now_s = [0.0]
    mine, other = JobMetrics(lambda: now_s[0]), JobMetrics(lambda: now_s[0])
    (program, states), (its, its_states) = measure_run(RUNS[:2]), measure_run(RUNS[2:])
    its_servers: Any = Servers({})
    other.measure(list_states(its.always, its_states), its_servers)
    servers: Any = Servers(its_servers.said[0])
    found = mine.measure(list_states(program.always, states), servers)
    auc = find_auc(join("x", RUNS), join("label", RUNS))
    both = np.add(find_user_auc(RUNS[:2]), find_user_auc(RUNS[2:]))
    expected = {
        "metric.auc": auc, "metric.auc_1": auc,
        "metric.calibration": join("x", RUNS).sum() / join("label", RUNS).sum(),
        "metric.user_auc": both[0] / both[1],
    }  # fmt: skip
    assert found == pytest.approx(expected, rel=1e-5)
    now_s[0] = 1.9
    assert mine.measure(list_states(program.always, states), servers) is found and len(servers.said) == 1
    mine.measure(list_states(program.always, states), servers, last=True)
    now_s[0] = 3.9
    mine.measure(list_states(program.always, states), servers)
    assert len(servers.said) == 3
    alone = mine.measure(list_states(program.always, states), None, last=True)
    assert alone["metric.auc"] == pytest.approx(find_auc(join("x", RUNS[:2]), join("label", RUNS[:2])))


@given(
    numbers=hnp.arrays(
        np.int64, st.tuples(st.integers(0, 40), st.integers(1, 3)), elements=st.integers(0, 2**60 - 1)
    ),
    trainers=st.integers(1, 4096),
)
def test_sums_of_trainers_are_exact(numbers: Ids, trainers: int) -> None:
    rows = messages.split_numbers(numbers)
    total = sum([rows] * (trainers % 50), rows * np.float32(trainers - trainers % 50))
    np.testing.assert_array_equal(messages.join_numbers(total, numbers), numbers * trainers)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x, y: static.user_auc(x, y, y, 0), "num_samples=0, expected 1 or more"),
        (lambda x, y: static.ctr_metric_bundle(x, y, y), "ins_tag_weight is not in this runtime"),
        (lambda x, y: static.accuracy(x, y, k=2), "k=2, expected 1 to 1"),
        (lambda x, y: static.accuracy(x, y, correct=1), "correct and total are not in"),
        (lambda x, y: static.auc(x, y, num_thresholds=0), r"static\.auc: num_thresholds=0, expected 1 or"),
        (lambda x, y: static.auc(x, y, slide_steps=-1), r"static\.auc: slide_steps=-1, expected 0 or more"),
        (lambda x, y: static.auc(x, y, "PR"), r"static\.auc: curve='PR', expected ROC"),
    ],
)
def test_arguments_that_do_not_fit_are_named(call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call(*make_data()[:2])
