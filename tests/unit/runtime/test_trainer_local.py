"""Training in one process: it learns, it repeats bit for bit, and it tells what it does."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime import _core
from pslaunch.runtime.engine.arrays import Ids
from pslaunch.runtime.engine.learner import look_ahead
from pslaunch.runtime.engine.parameters import Parameters
from pslaunch.runtime.process import progress
from pslaunch.runtime.shared.env import EnvError
from support.models import digest, make_vector, ngram_cost, ngrams
from support.progress import heard

pytestmark = [pytest.mark.asan, pytest.mark.usefixtures("fresh")]


def train(
    *,
    passes: int = 1,
    batch: int = 16,
    threads: int = 1,
    sparse: bool = False,
    drop_rate: float = 0.0,
    read: Callable[[], Iterator[Any]] | None = None,
) -> tuple[Parameters, list[object]]:
    paddle.init(use_gpu="False", trainer_count=threads, log_period=2)
    cost = ngram_cost(sparse=sparse, drop_rate=drop_rate)
    parameters = paddle.parameters.create(cost)
    adagrad = paddle.optimizer.AdaGrad(
        learning_rate=1e-1, regularization=paddle.optimizer.L2Regularization(8e-4)
    )
    trainer = paddle.trainer.SGD(cost, parameters, adagrad, is_local=True)
    events: list[object] = []
    trainer.train(read or paddle.batch(ngrams(400), batch), passes, events.append)
    return parameters, events


def make_trainer(*, drop_rate: float = 0.0, **options: Any) -> tuple[paddle.trainer.SGD, Parameters]:
    cost = ngram_cost(drop_rate=drop_rate)
    parameters = paddle.parameters.create(cost)
    return paddle.trainer.SGD(cost, parameters, paddle.optimizer.SGD(), **options), parameters


def test_tests_and_files_have_the_mean_of_the_last_windows() -> None:
    def learn(
        average: paddle.optimizer.ModelAverage | None,
    ) -> tuple[list[npt.NDArray[Any]], Parameters, float]:
        cost = ngram_cost()
        parameters = paddle.parameters.create(cost)
        update = paddle.optimizer.SGD(learning_rate=0.1, model_average=average)
        trainer, seen = paddle.trainer.SGD(cost, parameters, update), []

        def handle(said: object) -> None:
            if isinstance(said, paddle.event.EndIteration):
                seen.append(parameters["_proj"])

        trainer.train(paddle.batch(ngrams(8 * 16), 16), 1, handle)
        file = io.BytesIO()
        trainer.save_parameter_to_tar(file)
        file.seek(0)
        tested = trainer.test(paddle.batch(ngrams(64), 16)).cost
        np.testing.assert_array_equal(parameters["_proj"], seen[-1])
        return seen, Parameters.from_tar(file), tested

    plain, last, cost = learn(None)
    seen, saved, mean_cost = learn(paddle.optimizer.ModelAverage(1.0, max_average_window=3))
    np.testing.assert_array_equal(seen, plain)
    np.testing.assert_array_equal(last["_proj"], plain[-1])
    # Windows end after 3 and 6 updates: the mean is of the second and what follows.
    np.testing.assert_allclose(saved["_proj"], np.mean(seen[3:], axis=0, dtype=np.float64), rtol=1e-6)
    assert mean_cost != cost


def test_sparse_update_gives_the_bits_of_a_dense_one() -> None:
    dense, sparse = train()[0], train(sparse=True)[0]
    for name in dense.names():
        np.testing.assert_array_equal(dense[name], sparse[name])


def test_batches_of_arrays_give_the_bits_of_tuples() -> None:
    def read_arrays() -> Iterator[dict[str, npt.NDArray[np.int64]]]:
        for batch in paddle.batch(ngrams(400), 16)():
            yield {f"w{i}": column for i, column in enumerate(np.array(batch).T)}

    assert digest(train(read=read_arrays)[0]) == digest(train()[0])


def test_a_slow_build_is_noted(builds: range, capfd: pytest.CaptureFixture[str]) -> None:
    _core.choose_build(1)
    train()
    assert capfd.readouterr().err.count("layers are computed by plain C") == 1
    _core.choose_build(0)
    train()
    assert ("plain C" in capfd.readouterr().err) == (_core.get_build() == "plain C")


def test_a_batch_is_read_ahead_and_its_error_raised_in_its_turn() -> None:
    def read(*items: int) -> Iterator[int]:
        for item in items:
            if item < 0:
                raise ValueError("the reader fails")
            yield item

    assert list(look_ahead(read())) == []
    assert list(look_ahead(read(1, 2, 3))) == [(1, 2), (2, 3), (3, None)]
    pairs = look_ahead(read(1, 2, -1))
    assert [next(pairs), next(pairs)] == [(1, 2), (2, None)]
    with pytest.raises(ValueError, match="the reader fails"):
        next(pairs)


def test_events_come_in_order() -> None:
    _, events = train(batch=150)
    iterations = [
        type(one).__name__ + str(one.batch_id)
        for one in events
        if isinstance(one, paddle.event.BeginIteration | paddle.event.EndIteration)
    ]
    assert isinstance(events[0], paddle.event.BeginPass)
    assert isinstance(events[-1], paddle.event.EndPass)
    expected = [f"{kind}Iteration{i}" for i in range(3) for kind in ("Begin", "End")]
    assert iterations == expected
    last = events[-2]
    assert isinstance(last, paddle.event.EndIteration)
    assert 0.0 <= last.metrics["classification_error_evaluator"] <= 1.0


def test_test_measures_without_learning() -> None:
    trainer, parameters = make_trainer(drop_rate=0.5)
    before = digest(parameters)
    result = trainer.test(paddle.batch(ngrams(100), 32))
    assert result.cost == pytest.approx(np.log(50), rel=0.1)
    assert digest(parameters) == before


@pytest.mark.parametrize(("period", "batches"), [(1, [1, 2, 3, 4]), (3, [3]), (100, [])])
def test_log_period_sets_the_lines_of_the_log_alone(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    period: int,
    batches: list[int],
) -> None:
    monkeypatch.setenv("PADDLE_INIT_LOG_PERIOD", str(period))
    monkeypatch.setattr(progress, "PERIOD_S", 1000.0)
    with heard(tmp_path) as reports:
        _, events = train(batch=100)  # four batches
        assert [one["batch"] for one in reports()] == [0, 3]
    lines = (tmp_path / "log" / "paddle_trainer.INFO").read_text()
    assert [int(n) for n in re.findall(r"Pass=0 Batch=(\d+) ", lines)] == batches
    assert lines.count("Pass=0 end:") == 1
    if period == 3:
        assert re.search(r"Batch=3 samples=300 AvgCost=.*classification_error_evaluator=.*samples/s=", lines)
    assert "Batch=" not in capsys.readouterr().err
    assert sum(isinstance(e, paddle.event.EndIteration) for e in events) == 4


def test_each_pass_ends_with_a_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(progress, "PERIOD_S", 1000.0)
    with heard(tmp_path) as reports:
        _, events = train(passes=2, batch=100)  # four batches a pass
        found = reports()
    costs = [e.cost for e in events if isinstance(e, paddle.event.EndIteration) and e.batch_id == 3]
    ends = [(one["pass"], one["cost"]) for one in found if one["batch"] == 3]
    assert ends == [(i, float(f"{cost:.7g}")) for i, cost in enumerate(costs)]
    assert [(one["passes"], one.get("batches")) for one in found] == [(2, None), (2, 4), (2, 4)]
    assert all("metric.classification_error_evaluator" in one for one in found)


class OtherTrainer:
    """Sums of two trainers as messages give them: the other one was wrong in each of 300 samples."""

    def add_up(self, own: dict[str, Ids]) -> dict[str, Ids]:
        return {name: sums + (np.array([300, 300]) << 20) for name, sums in own.items()}


def test_reports_have_metrics_over_all_trainers(tmp_path: Path) -> None:
    with heard(tmp_path) as reports:
        paddle.init()
        trainer, _ = make_trainer()
        trainer._run.client = SimpleNamespace(messages=OtherTrainer())
        events: list[Any] = []
        trainer.train(paddle.batch(ngrams(400), 100), event_handler=events.append)
        found = reports()[-1]["metric.classification_error_evaluator"]
    own = events[-1].metrics["classification_error_evaluator"]
    assert 0 < own < 1 and found == pytest.approx((own * 400 + 300) / 700)


def test_a_pass_without_samples_is_said_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trainer, _ = make_trainer()
    batches = iter([[(0, 0, 0, 0, 0)]])
    trainer.train(lambda: batches, 3)
    said = capsys.readouterr().err
    assert (
        said.count("trainer 0 has no samples in pass 1: its reader gave no batch; each call of reader() must")
        == 1
    )
    assert said.count("no samples") == 1
    assert (tmp_path / "log" / "paddle_trainer.INFO").read_text().count("has no samples in pass 1") == 1


def test_zero_passes_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="num_passes=-1 is negative"):
        train(passes=-1)
    assert train(passes=0)[1] == []
    assert "num_passes=0: nothing is trained" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's own
def test_a_cost_that_is_not_finite_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    x = make_vector("x", 1)
    y = make_vector("y", 1)
    cost = paddle.layer.square_error_cost(input=paddle.layer.fc(input=x, size=1), label=y)
    trainer = paddle.trainer.SGD(cost, paddle.parameters.create(cost), paddle.optimizer.SGD())
    trainer.train(lambda: iter([[([1.0], [0.0])], [([1.0], [1e30])], [([1.0], [1e30])]]))
    assert capsys.readouterr().err.count("the cost is inf from pass 0, batch 1 on") == 1


def train_with_nan(steps: int = 1) -> tuple[Parameters, list[paddle.event.EndIteration]]:
    """Train on a good batch, so many with a NaN, and a good one."""
    cost = paddle.layer.square_error_cost(
        input=paddle.layer.fc(input=make_vector("x", 2), size=1, name="out"), label=make_vector("y", 1)
    )
    parameters = paddle.parameters.create(cost)
    events: list[Any] = []
    good, bad = ([0.5, 1.0], [1.0]), ([np.nan, 1.0], [1.0])
    batches = [[good], *[[bad, good]] * steps, [good]]
    trainer = paddle.trainer.SGD(cost, parameters, paddle.optimizer.SGD(learning_rate=0.1))
    trainer.train(lambda: iter(batches), 1, events.append)
    return parameters, [one for one in events if isinstance(one, paddle.event.EndIteration)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("rule", ["warn", "skip"])
def test_gradients_that_are_not_finite_are_warned_of_or_left_out(
    rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paddle.init(nan=rule)
    parameters, events = train_with_nan(steps=101)
    said = [line for line in capsys.readouterr().err.splitlines() if "NaN" in line]
    assert re.search(
        "trainer 0, step 2, pass 0, batch 1: .* of _out.*, from that in the data of x; ", said[0]
    )
    assert ("the step is left out" if rule == "skip" else "--nan=skip leaves such steps out") in said[0]
    assert [line.rpartition("; ")[2] for line in said[1:]] == [f"{n} such steps so far" for n in (10, 100)]
    finite = [bool(np.isfinite(parameters[name]).all()) for name in parameters.names()]
    assert finite == [rule == "skip"] * 2
    assert np.isfinite([events[0].cost, events[-1].cost]).tolist() == [True, rule == "skip"]
    if rule == "skip":
        paddle.init(nan="warn")
        assert digest(train_with_nan(steps=0)[0]) == digest(parameters)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_gradients_that_are_not_finite_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PADDLE_INIT_NAN", "refuse")
    paddle.init()
    with pytest.raises(SystemExit) as refused:
        train_with_nan()
    assert refused.value.code == 65
    assert "trainer 0, step 2, pass 0, batch 1: NaN or" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_step_is_left_out_once_values_are_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    """Each further step would be."""
    paddle.init(nan="skip")
    trainer, parameters = make_trainer()
    for name in parameters.names():
        parameters[name] = parameters[name] * np.float32(np.inf)
    with pytest.raises(SystemExit) as refused:
        trainer.train(paddle.batch(ngrams(20), 10))
    assert refused.value.code == 65
    assert " before this step (--nan=skip)" in capsys.readouterr().err


def test_feeding_names_the_places_of_inputs() -> None:
    trainer, _ = make_trainer()
    samples = [(4, 3, 2, 1, 0)]
    straight = trainer.test(lambda: iter([samples])).cost
    feeding = {f"w{i}": 4 - i for i in range(5)}
    assert trainer.test(lambda: iter([[(0, 1, 2, 3, 4)]]), feeding).cost == straight
    with pytest.raises(ValueError, match="feeding lacks the data layers w4"):
        trainer.test(lambda: iter([samples]), ["w0", "w1", "w2", "w3"])


def test_flags_of_the_environment_win(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PADDLE_INIT_NUM_PASSES", "2")
    monkeypatch.setenv("PADDLE_INIT_SAVE_DIR", str(tmp_path / "model"))
    _, events = train(passes=5)
    assert sum(isinstance(one, paddle.event.EndPass) for one in events) == 2
    assert "num_passes=2 replaces the program's 5" in capsys.readouterr().err
    assert (tmp_path / "model" / "pass-00001" / "parameters.tar").is_file()


def test_training_without_pservers_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    paddle.init(pservers="127.0.0.1")
    trainer, _ = make_trainer()
    trainer.train(paddle.batch(ngrams(20), 10))
    assert "THIS TRAINER TRAINS ALONE" in capsys.readouterr().err
    paddle.init(pservers="")
    with pytest.raises(EnvError, match="no pservers are given"):
        make_trainer(is_local=False)


def test_training_by_hand_reports_the_fate_of_its_parameters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    train(passes=2)
    assert (
        capsys.readouterr().err.count("finished without saving the parameters: set PADDLE_INIT_SAVE_DIR=DIR")
        == 1
    )
    monkeypatch.setenv("PADDLE_INIT_SAVE_DIR", str(tmp_path / "model"))
    train()
    said = capsys.readouterr().err
    assert "nothing has saved" not in said
    assert f"parameters of pass 0 are in {tmp_path}/model/pass-00000/parameters.tar" in said


def test_program_that_saves_by_itself_gets_no_advice(capsys: pytest.CaptureFixture[str]) -> None:
    trainer, _ = make_trainer()

    def save(e: object) -> None:
        if isinstance(e, paddle.event.EndPass):
            trainer.save_parameter_to_tar(io.BytesIO())

    trainer.train(paddle.batch(ngrams(20), 10), 1, save)
    assert "saved" not in capsys.readouterr().err


def test_the_model_goes_to_the_jobs_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PSLAUNCH_JOB_ID", "j")
    monkeypatch.setenv("PSLAUNCH_OUTPUT_DIR", str(tmp_path / "output"))
    parameters, _ = train()
    with (tmp_path / "output" / "parameters.tar").open("rb") as f:
        assert digest(Parameters.from_tar(f)) == digest(parameters)
    assert [path.name for path in (tmp_path / "output").iterdir()] == ["parameters.tar"]


def test_not_a_number_is_no_right_answer() -> None:
    trainer, parameters = make_trainer()
    for name in parameters.names():
        parameters[name] = parameters[name] * np.nan
    result = trainer.test(paddle.batch(ngrams(40), 20))
    assert result.metrics["classification_error_evaluator"] == 1.0


def test_extra_layers_are_data() -> None:
    with pytest.raises(ValueError, match=r"extra_layers=.*, expected data layers"):
        make_trainer(extra_layers=ngram_cost())
