"""Tables of a process that trains alone: their steps, sets, and the programs that share them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pslaunch.runtime import _core
from pslaunch.runtime.engine import optimizer
from pslaunch.runtime.engine.entry import CountFilterEntry, ProbabilityEntry, ShowClickEntry
from pslaunch.runtime.engine.keeping import LocalTable, make_first_rows
from pslaunch.runtime.engine.kernel_numbers import Optim
from pslaunch.runtime.engine.param_config import ParamConfig
from pslaunch.runtime.engine.parameters import Parameters
from pslaunch.runtime.engine.updater import LocalUpdater, ParamRules
from support import reference
from support.models import hash_set

pytestmark = [pytest.mark.asan, pytest.mark.usefixtures("fresh")]

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]
TABLE = _core.list_methods()
DIM = 3
KEYS = np.arange(4, dtype=np.uint64)
ADAGRAD = Optim(method="adagrad", learning_rate=0.1)
PLAIN = Optim(method="sgd", learning_rate=0.5)


def make_config(**options: Any) -> ParamConfig:
    return ParamConfig(name="e", rows=50, cols=DIM, std=1.0, sparse=True, **options)


def make_table(rule: Optim = PLAIN, **options: Any) -> tuple[Parameters, LocalTable]:
    parameters = Parameters({"e": make_config(**options)})
    return parameters, parameters.take_table("e", rule)


def ones(keys: U64 = KEYS, dim: int = DIM) -> F32:
    return np.ones((len(keys), dim), np.float32)


@pytest.mark.parametrize("method", [i for i, (*_, whole, _) in enumerate(TABLE) if not whole])
def test_steps_of_rows_are_their_oracle(method: int) -> None:
    rng = np.random.default_rng(method)
    numbers = tuple(usual for name, usual in TABLE[method][4] if name is not None)
    rule = reference.Rule(method=method, lr=0.1, l1=0.02, l2=1e-3, clip=0.5, numbers=numbers)
    model = reference.SparseTable(dim=DIM, rule=rule, seed=2, table=5, std=1.0)
    table = _core.Table(DIM, rule.pack(), (2, 5, 0, 0.0, 1.0), (0, 0.0, 0.0), False)
    for step in range(4):
        keys = rng.permutation(40)[: rng.integers(0, 30)].astype(np.uint64)
        grads = rng.standard_normal((len(keys), DIM)).astype(np.float32)
        table.learn(rule.lr, step + 1, keys, grads)
        with np.errstate(invalid="ignore"):
            model.add(keys, grads)
            model.commit()
    every, rows = np.arange(40, dtype=np.uint64), np.empty((40, DIM), np.float32)
    table.read(every, rows)
    np.testing.assert_array_equal(rows, model.read(every))


def test_counts_of_a_table_without_an_entry_rule_are_refused() -> None:
    _, table = make_table()
    table.learn(1, 1.0, KEYS, ones())
    keys, rows = np.empty(4, np.uint64), np.empty((4, DIM), np.float32)
    with pytest.raises(ValueError, match="counts has 12 items, but the table needs 0"):
        table.core.copy(0, keys, rows, np.empty((4, 3), np.float32))
    assert table.core.copy(0, keys, rows, np.empty((0, 3), np.float32)) == 4
    assert keys.tolist() == KEYS.tolist()


def test_late_rows_begin_with_their_initial_values_where_no_rule_is(tmp_path: Path) -> None:
    rule = ShowClickEntry("show", "click", threshold=1.0, zeros=True)
    saved, table = make_table(entry=rule)
    table.learn(1, 1.0, KEYS, ones(dim=2 + DIM))  # a click each
    saved.save(tmp_path)
    other, unseen = Parameters({"e": make_config()}), np.array([9], np.uint64)
    other.load(tmp_path)
    table = other.take_table("e", PLAIN)
    first = make_first_rows(make_config(), np.array([*KEYS, 9], np.uint64), 1)
    np.testing.assert_array_equal(table.read(KEYS), first[:4] - np.float32(0.5))
    assert not table.read(unseen).any()  # as it was where the set is from
    table.learn(1, 1.0, unseen, np.zeros((1, DIM), np.float32))
    np.testing.assert_array_equal(table.read(unseen), first[4:])


def test_keys_that_waited_are_left_out_where_none_waits(tmp_path: Path) -> None:
    saved, table = make_table(entry=CountFilterEntry(2))
    for keys in (KEYS, KEYS[:1]):
        table.learn(1, 1.0, keys, ones(keys))
    assert table.core.count() == (1, 3)
    saved.save(tmp_path)
    for entry, found in ((CountFilterEntry(2), (1, 3)), (ProbabilityEntry(0.5), (1, 0))):
        other = Parameters({"e": make_config(entry=entry)})
        other.load(tmp_path)
        read = other.take_table("e", PLAIN)
        assert read.core.count() == found
        np.testing.assert_array_equal(read.read(KEYS), table.read(KEYS))


def test_a_rule_of_its_own_has_its_own_state_and_the_common_values() -> None:
    parameters, first = make_table(ADAGRAD)
    rule = reference.Rule(method=reference.ADAGRAD, lr=0.1, numbers=(1e-6,))
    model = reference.SparseTable(dim=DIM, rule=rule, table=_core.hash_name("e"), std=1.0)
    assert parameters.take_table("e", ADAGRAD) is first

    def learn(table: LocalTable) -> None:
        table.learn(1, 1.0, KEYS, ones())

    learn(first)
    second = parameters.take_table("e", PLAIN)
    learn(second)
    assert parameters.take_table("e", ADAGRAD, first) is first
    learn(first)
    for _ in range(2):
        model.add(KEYS, ones())
        model.commit()
        if model.steps == 1:
            model.set(KEYS, model.read(KEYS) - np.float32(0.5))
    np.testing.assert_array_equal(parameters["e"][:4], model.read(KEYS))
    assert first.state.steps == 2


CONFIGS = {"w": ParamConfig(name="w", rows=2, cols=3, std=1.0), "e": make_config()}


def make_updater(parameters: Parameters) -> LocalUpdater:
    params = ParamRules(CONFIGS, frozenset({"e"}), optimizer.Adam(learning_rate=0.1))
    updater = LocalUpdater(params, parameters)
    updater.start()
    return updater


def take_step(updater: LocalUpdater) -> None:
    rows = updater.fetch({"e": KEYS}, {})["e"]
    updater.update({"w": np.ones((2, 3), np.float32)}, {"e": (KEYS, rows)}, 1)


def test_programs_that_take_turns_share_a_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(LocalTable, "take")  # nothing is copied
    alone, shared = Parameters(CONFIGS), Parameters(CONFIGS)
    one, pair = make_updater(alone), [make_updater(shared) for _ in range(2)]
    for turn in range(6):
        take_step(one)
        take_step(pair[turn % 2])
    one.end_pass()
    pair[0].end_pass()
    for parameters in (alone, shared):
        parameters["w"] = np.zeros((2, 3))  # each program has its own state of it
    folders = [tmp_path / name for name in ("alone", "shared")]
    tables = []
    for parameters, folder in zip((alone, shared), folders, strict=True):
        only = Parameters({"e": CONFIGS["e"]})
        parameters.save(folder)
        only.load(folder)
        tables.append(only.take_table("e", one._params.rules["e"]))
    assert tables[0].state == tables[1].state
    assert tables[0].state.steps == 6
    for (_, rows, _), (_, others, _) in zip(tables[0].split(), tables[1].split(), strict=True):
        np.testing.assert_array_equal(rows, others)


def test_a_load_counts_for_the_program_that_had_not_its_turn(tmp_path: Path) -> None:
    saved = Parameters(CONFIGS)
    before = make_updater(saved)
    for _ in range(2):
        take_step(before)
    saved.save(tmp_path / "set")
    once, twice = Parameters(CONFIGS), Parameters(CONFIGS)
    first = make_updater(twice)
    take_step(first)
    make_updater(twice)
    for parameters in (once, twice):
        parameters.load(tmp_path / "set")
    take_step(make_updater(once))
    take_step(first)
    for parameters, name in ((once, "once"), (twice, "twice")):
        parameters.save(tmp_path / name)
    assert hash_set(tmp_path / "once") == hash_set(tmp_path / "twice")
