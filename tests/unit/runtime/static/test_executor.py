"""Runs of static programs: values, learning, and errors that name the variable."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime.engine.arrays import Sequences
from pslaunch.runtime.engine.ops import Draw
from pslaunch.runtime.engine.param_config import ANY_ID, ParamConfig
from pslaunch.runtime.engine.parameters import Parameters
from pslaunch.runtime.engine.plan import Plan
from pslaunch.runtime.engine.updater import LocalUpdater
from pslaunch.runtime.paddle2 import static
from pslaunch.runtime.paddle2.base.life import Fleet
from pslaunch.runtime.paddle2.distributed import CountFilterEntry
from pslaunch.runtime.paddle2.fleet import UserDefinedRoleMaker
from pslaunch.runtime.paddle2.nn import functional as F  # as in PaddlePaddle's pages
from pslaunch.runtime.paddle2.program.initializer import Assign, Constant, Initializer, TruncatedNormal
from support import reference
from support.static import get_parameters, run_startup

Programs = tuple[static.Program, static.Program]

IDS = np.array([[1], [4], [1]])
LABELS = np.array([[1], [0], [1]])
FEED = {"word": IDS, "label": LABELS}
START = np.linspace(-1.0, 1.0, 10, dtype=np.float32).reshape(5, 2)


def make_model() -> Any:
    """Return the mean log loss of a table, a layer and a sigmoid; with its probability."""
    word = static.data("word", [None, 1], "int64")
    label = static.data("label", [None, 1], "int64")
    table = paddle.ParamAttr(name="table", initializer=Assign(START))
    row = paddle.reshape(static.nn.embedding(word, [5, 2], is_sparse=True, param_attr=table), [-1, 2])
    guess = F.sigmoid(static.nn.fc(row, 1, weight_attr=Constant(0.5), name="out"))
    return paddle.mean(F.log_loss(guess, paddle.cast(label, "float32"))), guess


def fleet_with_servers() -> Fleet:
    fleet = Fleet()
    fleet.init(
        UserDefinedRoleMaker(current_id=0, worker_num=2, server_endpoints="127.0.0.1:6170,127.0.0.1:6171")
    )
    return fleet


def find_loss(table: Any) -> Any:
    p = 1 / (1 + np.exp(-table[IDS[:, 0]].sum(axis=1) / 2))
    y = LABELS[:, 0]
    return np.mean(-y * np.log(p + 1e-4) - (1 - y) * np.log(1 - p + 1e-4))


def test_run_returns_fetches_by_variable_and_by_name() -> None:
    loss, guess = make_model()
    executor = run_startup()
    values = executor.run(feed=FEED, fetch_list=[loss, guess.name, "word"])
    np.testing.assert_allclose(values[0], find_loss(START.astype(np.float64)), rtol=1e-5)
    assert [value.shape for value in values] == [(), (3, 1), (3, 1)]
    np.testing.assert_array_equal(values[2], IDS)
    assert executor.run(feed=FEED) == []


def test_fetched_number_serves_programs_of_all_versions() -> None:
    loss, _ = make_model()
    twice = loss + loss
    first = paddle.mean(static.data("x", [None, 2]), axis=0)[0]
    assert (loss.shape, twice.shape, first.shape) == ((), (), ())
    feed = {"word": IDS, "label": LABELS, "x": np.array([[1, 2], [2, 4], [1.5, 0]], np.float32)}
    values = run_startup().run(feed=feed, fetch_list=[loss, twice, first])
    expected = [find_loss(START.astype(np.float64)) * factor for factor in (1, 2)] + [1.5]
    for value, number in zip(values, expected, strict=True):
        assert {type(value[0]), type(value.copy()[-1])} == {np.float32}
        same = float(value), float(value[0]), float(f"{value:.9f}"), value.item()
        np.testing.assert_allclose(same, number, rtol=1e-5)
        assert value[None].shape == (1,)
        with pytest.raises(IndexError):
            value[1]
    assert str(values[2]) == "1.5"


def test_a_program_is_compiled_once_for_each_list_of_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Plan] = []
    make = Plan.__init__

    def count(plan: Plan, *args: Any, **named: Any) -> None:
        made.append(plan)
        make(plan, *args, **named)

    monkeypatch.setattr(Plan, "__init__", count)
    loss, guess = make_model()
    executor = run_startup()
    for fetches in ([loss], [loss, guess.name], [loss], [loss.name], [loss, guess]):
        executor.run(feed=FEED, fetch_list=fetches)
    assert len(made) == 2


def test_minimize_lets_each_run_learn(programs: Programs) -> None:
    loss, _ = make_model()
    test_program = programs[0].clone(for_test=True)
    assert paddle.optimizer.SGD(learning_rate=0.5).minimize(loss) == ([], [])
    executor = run_startup()
    table = START.astype(np.float64)
    losses = [executor.run(feed=FEED, fetch_list=[loss])[0] for _ in range(2)]
    np.testing.assert_allclose(losses[0], find_loss(table), rtol=1e-5)
    grad = np.zeros_like(table)
    for place in np.ndindex(*table.shape):
        kept, changed = table[place], table.copy()
        changed[place] = kept + 1e-6
        grad[place] = (find_loss(changed) - find_loss(table)) / 1e-6
    parameters = get_parameters()
    first = table - 0.5 * grad
    assert losses[1] < losses[0]
    before = parameters.get("table")
    for _ in range(2):  # it learns nothing
        executor.run(test_program, feed=FEED)
    (kept_loss,) = executor.run(test_program, feed=FEED, fetch_list=[loss])
    np.testing.assert_array_equal(parameters.get("table"), before)
    assert kept_loss < losses[1]
    unused = [0, 2, 3]
    np.testing.assert_array_equal(before[unused], START[unused])
    assert np.abs(first - START)[[1, 4]].min() > 0


def link_by_loader(feeds: list[Any]) -> Any:
    word, label = (static.default_main_program().graph.get(name) for name in FEED)
    loader = paddle.io.DataLoader.from_generator(feed_list=[word, label], iterable=True)
    return loader.set_batch_generator(lambda: iter(feeds))()


@pytest.mark.parametrize("link", [static.Executor.look_ahead, link_by_loader])
def test_a_linked_feed_gives_the_keys_of_the_next_step(
    link: Callable[[list[Any]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, _ = make_model()
    paddle.optimizer.SGD(learning_rate=0.1).minimize(loss)
    executor = run_startup()
    fetch = Mock(side_effect=lambda keys, ahead: get_parameters().get_rows(keys))
    monkeypatch.setattr(LocalUpdater, "fetch", fetch)
    monkeypatch.setattr(LocalUpdater, "reads_ahead", True)
    feeds = [{"word": (IDS + i) % 5 + 5 * (i == 3), "label": LABELS} for i in range(4)]
    with pytest.raises(ValueError, match="word has the id"):  # in its turn
        for feed in link(feeds):
            executor.run(feed=feed, fetch_list=[loss])
    (a, b), (c, d), (e, none) = [call.args for call in fetch.call_args_list]
    assert b["table"] is c["table"] and d["table"] is e["table"] and a["table"].tolist() == [1, 4]
    assert none == {}


@pytest.mark.usefixtures("fresh")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("rule", ["warn", "skip", "refuse"])
def test_gradients_that_are_not_finite(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They are not silent, and the counts of a metric are those of the other samples."""
    paddle.init(nan=rule)
    x, label = static.data("x", [None, 2]), static.data("label", [None, 1], "int64")
    guess = F.sigmoid(static.nn.fc(x, 1, name="out"))
    *_, counts = static.auc(paddle.concat([1 - guess, guess], axis=1), label)
    paddle.optimizer.SGD(0.1).minimize(paddle.mean(F.log_loss(guess, paddle.cast(label, "float32"))))
    executor = run_startup()
    good = {"x": np.ones((3, 2), np.float32), "label": LABELS}
    executor.run(feed=good)
    before = get_parameters()["out.w_0"]
    bad = good | {"x": np.array([[1, 2], [np.nan, 0], [3, 4]], np.float32)}
    if rule == "refuse":
        with pytest.raises(SystemExit) as refused:
            executor.run(feed=bad)
        assert refused.value.code == 65
    else:
        found = executor.run(feed=bad, fetch_list=counts[2:])
        assert sum(one.sum() for one in found) == 5
        after = get_parameters()["out.w_0"]
        assert (after == before).all() if rule == "skip" else np.isnan(after).all()
    said = capsys.readouterr().err
    assert (
        "0, step 2: NaN or infinity in the gradient of out.w_0, out.b_0, from that in the data of x" in said
    )
    with pytest.raises(ValueError, match="beyond 0 to 1"):  # where nothing is learned
        executor.run(static.default_main_program().clone(for_test=True), feed=bad, fetch_list=counts[2:])


def run_with(feed: object = None, fetch: object = None) -> None:
    loss, _ = make_model()
    given: Any = FEED if feed is None else feed
    run_startup().run(feed=given, fetch_list=[loss] if fetch is None else fetch)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("feed", "fetch", "text"),
    [
        ({"words": IDS, "label": LABELS}, None, "feed has 'words', no variable of static.data"),
        ({"word": IDS}, None, "label: expected an array of whole numbers, shape [-1, 1]"),
        (None, ["lossy"], "fetch_list: the program has no value 'lossy'"),
        (None, [5], "fetch_list has 5, expected a variable or its name"),
        ([{"word": IDS}] * 2, None, "feed is a list of 2, expected a dict"),
        (IDS, None, "feed is a ndarray, expected a dict of arrays by the names of variables"),
        ({"word": [[1], [1, 2]], "label": LABELS}, None, "data word: setting an array element"),
    ],
)  # fmt: skip
def test_feeds_and_fetches_that_do_not_fit_are_named(feed: object, fetch: object, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        run_with(feed, fetch)


SAMPLES = [[1, 4], [], [3]]
OFFSETS = np.array([0, 2, 2, 3])
FORMS: list[Any] = [
    SAMPLES,
    [np.array(one, np.int32) for one in SAMPLES],
    [[[i] for i in one] for one in SAMPLES],
    Sequences(np.array([[1], [4], [3]]), OFFSETS),
    Sequences(np.array([1, 4, 3], np.uint64), OFFSETS),
    paddle.base.create_lod_tensor(SAMPLES, [[2, 0, 1]], paddle.CPUPlace()),
    paddle.base.create_lod_tensor(np.array([[1], [4], [3]]), [[2, 0, 1]], paddle.CPUPlace()),
]


@pytest.mark.parametrize("form", FORMS)
def test_sequences_are_fed_in_any_form_to_a_program_and_to_its_model(tmp_path: Path, form: Any) -> None:
    words = static.data("words", [None, 1], "int64", lod_level=1)
    total = static.nn.sequence_pool(static.nn.embedding(words, [5, 2]), "sum")
    executor = run_startup()
    (table,) = executor.run(feed={"words": [[i] for i in range(5)]}, fetch_list=[total])
    (found,) = executor.run(feed={"words": form}, fetch_list=[total])
    np.testing.assert_array_equal(found, [table[1] + table[4], 0 * table[0], table[3]])
    static.save_inference_model(str(tmp_path / "model"), words, total)
    program, names, fetches = static.load_inference_model(str(tmp_path / "model"), executor)
    (again,) = executor.run(program, feed={names[0]: form}, fetch_list=fetches)
    np.testing.assert_array_equal(again, found)


def test_ids_of_any_value_are_keys_of_a_table_without_a_size() -> None:
    user, item = (static.data(name, [None, 1], "string") for name in ("user", "item"))
    words = static.data("words", [None, 1], "int64", lod_level=1)
    both = static.nn.cross([user, item], salt="user x item")
    table = paddle.ParamAttr("table", initializer=Constant(0.5))
    rows = [
        static.nn.sparse_embedding(one, [None, 2], param_attr=table)
        for one in (user, item, both, static.nn.cross(words, "w"), words)
    ]
    plan = Plan(static.default_main_program().graph, rows)
    texts = [["a"], ["b"], ["a"]]
    found = plan.prepare({"user": texts, "item": texts, "words": [[-1], [2**64 - 1, 2**63], []]})
    expected = [reference.hash_name(f"{slot}\0{text}") for slot in ("user", "item") for text in "ab"]
    keys = found.keys["table"].tolist()
    assert keys[:4] == expected
    assert keys[-2:] == [2**64 - 1, 2**63]
    assert len(keys) == len(set(keys)) == 2 + 2 + 2 + 2 + 2


def test_wrong_uses_of_ids_and_rules_are_refused() -> None:
    user = static.data("user", [None, 1], "string")
    words = static.data("words", [None, 1], "int64", lod_level=1)
    for act, text in (
        (lambda: static.nn.embedding(user, [None, 2]), "has a row for any id; set is_sparse=True"),
        (lambda: static.nn.cross([words, words]), "only slots of one shape, no sequences"),
        (
            lambda: static.nn.sparse_embedding(user, [None, 2], param_attr=Assign(np.ones((2**20, 2)))),
            "an initializer can't have a value for any id",
        ),
        (lambda: static.data("x", [None, 1], "int64", salt="s"), "salt='s' is for dtype='string'"),
        (lambda: Parameters({"t": ParamConfig(name="t", rows=ANY_ID, cols=2)})["t"], "use save(DIR)"),
        (
            lambda: static.nn.sparse_embedding(words, [5, 2], entry=5),
            "entry=5, expected an entry rule, as CountFilterEntry(10)",
        ),
        (
            lambda: static.nn.sparse_embedding(
                words, [5, 2], entry=CountFilterEntry(2), param_attr=TruncatedNormal()
            ),
            "an initializer of all values gives every id a row",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=re.escape(text)):
            act()


def test_batches_of_iterable_loaders_are_feeds() -> None:
    words = static.data("words", [None, 1], "int64", lod_level=1)
    loader = paddle.io.DataLoader.from_generator([words], return_list=True)
    loader.set_batch_generator(lambda: [(SAMPLES,)])
    (one,) = static.Executor().run(feed={"words": next(iter(loader))[0][0]}, fetch_list=[words])
    assert one.tolist() == [[1], [4], [3]]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (np.array([[1], [2]]), "data words: expected Sequences, or a list with the items of each sample, of"),
        ([[1], 2], "data words: sample 1 of the batch has the item 2, expected a list or an array of items"),
        ([[1], [0.5]], "data words: sample 1 of the batch has the item 0.5, expected a whole number of 64"),
    ],
)
def test_sequences_that_do_not_fit_are_named(form: object, text: str) -> None:
    words = static.data("words", [None, 1], "int64", lod_level=1)
    with pytest.raises(ValueError, match=re.escape(text)):
        static.Executor().run(feed={"words": form}, fetch_list=[words])  # type: ignore[dict-item]  # refused


@pytest.mark.parametrize(
    ("data", "lengths", "text"),
    [
        ([[1], [2]], [[1], [1, 1]], "recursive_seq_lens=[[1], [1, 1]], expected one list of lengths"),
        ([[1], [2, 3]], [[2, 1]], "the lengths [2, 1], the data has [1, 2]"),
        (np.zeros((3, 1)), [[2, 2]], "offsets of sequences: array([0, 2, 4]), expected numbers that ascend"),
    ],
)
def test_lengths_that_do_not_fit_are_named(data: Any, lengths: list[list[int]], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        paddle.base.create_lod_tensor(data, lengths)


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_show_and_click_of_an_entry_rule_are_data_of_the_program(dtype: str) -> None:
    entry = paddle.distributed.ShowClickEntry("show", "click")
    row = static.nn.sparse_embedding(static.data("word", [None, 1], "int64"), [5, 2], entry=entry)
    loss = paddle.mean(row)
    paddle.optimizer.SGD(0.1).minimize(loss)
    executor = run_startup()
    with pytest.raises(ValueError, match="needs the data 'show': the program has no value 'show'"):
        executor.run(feed={"word": IDS}, fetch_list=[loss])
    for name in ("show", "click"):
        static.data(name, [None, 1], dtype)
    with pytest.raises(ValueError, match=r"click: expected an array .* the feed has nothing"):
        executor.run(feed={"word": IDS, "show": np.ones((3, 1), dtype)}, fetch_list=[loss])
    counts = {name: np.ones((3, 1), dtype) for name in ("show", "click")}
    executor.run(feed={"word": IDS, **counts}, fetch_list=[loss])


def test_a_table_alone_takes_the_memory_of_its_rows(tmp_path: Path) -> None:
    """Of any number of ids, with the state of Adam, which goes on from a file."""
    row = static.nn.sparse_embedding(static.data("word", [None, 1], "int64"), [2**32, 3])
    loss = paddle.mean(paddle.square(row - 1.0))
    paddle.optimizer.Adam(0.1, lazy_mode=True).minimize(loss)
    executor = run_startup()
    feed = {"word": IDS * 1_000_000_007 % 2**32}

    def run(steps: int) -> list[float]:
        return [float(executor.run(feed=feed, fetch_list=[loss])[0]) for _ in range(steps)]

    run(3)
    static.save(static.default_main_program(), str(tmp_path / "model"))
    losses = run(3)
    static.load(static.default_main_program(), str(tmp_path / "model"))
    assert run(3) == losses
    assert losses == sorted(losses, reverse=True)
    assert sum(path.stat().st_size for path in (tmp_path / "model.set").iterdir()) < 4096


def test_padding_counts_neither_shows_nor_clicks(programs: Programs) -> None:
    entry = paddle.distributed.ShowClickEntry("show", "click")
    row = static.nn.sparse_embedding(static.data("word", [None, 3], "int64"), [5, 2], 0, entry=entry)
    for name in ("show", "click"):
        static.data(name, [None, 1])
    loss = paddle.mean(row)
    plan = Plan(programs[0].graph, [loss], loss)
    columns = {"show": np.array([[3], [5]], np.float32), "click": np.array([[1], [0]], np.float32)}
    batch = plan.prepare({"word": np.array([[1, 0, 0], [2, 1, 0]]), **columns})
    (table,) = batch.keys
    draw = Draw(seed=1, trainer=0, step=1)
    keys, rows = plan.compute(batch, {}, {table: np.ones((3, 2), np.float32)}, draw, {}).sparse[table]
    found = dict(zip(keys.tolist(), rows.tolist(), strict=True))
    assert found[0] == [0] * 4
    assert {key: own[:2] for key, own in found.items()} == {0: [0, 0], 1: [8, 1], 2: [5, 0]}


def test_run_before_the_startup_program_is_refused() -> None:
    loss, _ = make_model()
    with pytest.raises(RuntimeError, match="the startup program has not been run"):
        static.Executor().run(feed=FEED, fetch_list=[loss])


def test_imperative_use_is_refused_in_words() -> None:
    loss, _ = make_model()
    for use in (loss.numpy, loss.backward, lambda: float(loss), lambda: bool(loss), lambda: np.asarray(loss)):
        with pytest.raises(TypeError, match="no numbers yet: fetch them by"):
            use()
    with pytest.raises(TypeError, match="is not a variable of a static program"):
        paddle.mean(np.ones(3))
    with pytest.raises(RuntimeError, match="no imperative mode"):
        paddle.disable_static()
    with pytest.raises(TypeError, match=r"find_var\('auc'\) is not .*Executor.run\(fetch_list=\['auc'\]\)"):
        static.global_scope().find_var("auc")


def test_saved_parameters_come_back(tmp_path: Any, programs: Programs) -> None:
    loss, _ = make_model()
    executor = run_startup()
    (before,) = executor.run(feed=FEED, fetch_list=[loss])
    static.save(programs[0], str(tmp_path / "model"))
    parameters = get_parameters()
    parameters.set("table", START * 3)
    assert executor.run(feed=FEED, fetch_list=[loss])[0] != before
    static.load(programs[0], str(tmp_path / "model"), executor)
    assert executor.run(feed=FEED, fetch_list=[loss])[0] == before


@pytest.mark.parametrize("use_softmax", [True, False])
@pytest.mark.parametrize("label", [-1, 3])
def test_label_out_of_range_is_named(use_softmax: bool, label: int) -> None:
    scores, labels = static.data("x", [None, 3]), static.data("l", [None, 1], "int64")
    cost = F.cross_entropy(scores, labels, use_softmax=use_softmax)
    feed = {"x": np.full((2, 3), 0.3, np.float32), "l": np.array([[0], [label]])}
    with pytest.raises(ValueError, match=f"l has the label {label}, expected 0 to 2"):
        static.Executor().run(feed=feed, fetch_list=[cost])


def test_loss_of_a_batch_is_refused() -> None:
    _, guess = make_model()
    minimize = paddle.optimizer.SGD(learning_rate=0.1).minimize
    with pytest.raises(ValueError, match=rf"{guess.name} has the shape \[-1, 1\], .* paddle.mean"):
        minimize(guess)
    minimize(paddle.mean(guess))


def test_program_may_change_after_a_run() -> None:
    loss, guess = make_model()
    executor = run_startup()
    (before,) = executor.run(feed=FEED, fetch_list=[loss])
    paddle.optimizer.SGD(learning_rate=0.5).minimize(loss)
    label: Any = static.default_main_program().var("label")
    *_, states = static.auc(paddle.concat([1 - guess, guess], axis=1), label)
    executor.run(feed=FEED)
    (after,) = executor.run(feed=FEED, fetch_list=[loss])
    assert after < before
    (counts,) = executor.run(feed=FEED, fetch_list=[states[2]])
    assert counts.sum() == 6  # of three runs
    out = static.nn.fc(guess, 2, name="late")
    with pytest.raises(RuntimeError, match=r"late\.w_0 is newer than the last run of the startup program"):
        executor.run(feed=FEED, fetch_list=[loss])
    executor.run(static.default_startup_program())
    (late,) = executor.run(feed=FEED, fetch_list=[out])
    assert late.shape == (3, 2)


def test_program_may_get_its_first_parameters_after_a_run() -> None:
    x = static.data("x", [None, 2])
    feed = {"x": np.ones((3, 2), np.float32)}
    static.Executor().run(feed=feed, fetch_list=[x])
    out = static.nn.fc(x, 1)
    (found,) = run_startup().run(feed=feed, fetch_list=[out])
    assert found.shape == (3, 1)


def test_fetches_may_be_one_or_in_lists() -> None:
    loss, guess = make_model()
    executor = run_startup()
    assert [v.shape for v in executor.run(feed=FEED, fetch_list=guess.name)] == [(3, 1)]
    assert [v.shape for v in executor.run(feed=FEED, fetch_list=guess)] == [(3, 1)]
    assert [v.shape for v in executor.run(feed=FEED, fetch_list=[[loss], guess])] == [(), (3, 1)]


def test_local_training_in_a_job_with_servers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pslaunch.runtime.paddle2.static.executor.FLEET", fleet_with_servers())
    loss, _ = make_model()
    paddle.optimizer.SGD(learning_rate=0.5).minimize(loss)
    with pytest.raises(RuntimeError, match=r"has servers, but .* fleet.distributed_optimizer\(optimizer\)"):
        run_startup().run(feed=FEED)


@pytest.mark.parametrize("initializer", [TruncatedNormal, lambda: Assign(START)])
def test_tables_with_equal_attributes_are_one(initializer: Callable[[], Initializer]) -> None:
    word = static.data("word", [None, 1], "int64")
    rows = [
        static.nn.embedding(word, [5, 2], param_attr=paddle.ParamAttr(name="t", initializer=initializer()))
        for _ in range(2)
    ]
    first, second = run_startup().run(feed={"word": IDS}, fetch_list=rows)
    np.testing.assert_array_equal(first, second)
    assert first.any()
    other = paddle.ParamAttr(name="t", initializer=TruncatedNormal(std=2.0))
    with pytest.raises(ValueError, match=r"parameter t: .* gives it other attributes"):
        static.nn.embedding(word, [5, 2], param_attr=other)


def test_accuracy_finds_labels_among_the_likeliest_and_the_first_of_equal_ones_wins() -> None:
    x, label = static.data("x", [None, 3]), static.data("label", [None, 1], "int64")
    first, two = (static.accuracy(x, label, k=k) for k in (1, 2))
    rows = np.array([[0.1, 0.5, 0.5], [0.5, 0.5, 0.1], [0.2, 0.2, 0.2], [np.nan, 2, 3]], np.float32)
    executor = run_startup()
    for labels, expected in (([2, 1, 2, 0], [0.0, 0.5]), ([1, 0, 0, 2], [0.75, 1.0])):
        feed = {"x": rows, "label": np.array(labels).reshape(-1, 1)}
        assert [float(v) for v in executor.run(feed=feed, fetch_list=[first, two])] == expected
    with pytest.raises(ValueError, match="labels beyond 0 to 2"):
        executor.run(feed={"x": rows, "label": np.full((4, 1), 3)}, fetch_list=[first])


def test_second_run_of_the_startup_program_keeps_values(
    programs: Programs,
) -> None:
    make_model()
    run_startup()
    parameters = get_parameters()
    parameters.set("table", START * 3)
    run_startup()
    np.testing.assert_array_equal(parameters.get("table"), START * 3)


def test_wrong_pools_of_sequences_are_named() -> None:
    words = static.data("words", [None, 2], lod_level=1)
    with pytest.raises(ValueError, match=r"by='median', expected one of average, sqrt, sum"):
        static.nn.sequence_pool(words, "median")
    with pytest.raises(ValueError, match=r"pad_value=1.0 is not in this runtime"):
        static.nn.sequence_pool(words, "sum", pad_value=1.0)
    with pytest.raises(ValueError, match=r"input x .* is not a sequence"):
        static.nn.sequence_first_step(static.data("x", [None, 2]))
