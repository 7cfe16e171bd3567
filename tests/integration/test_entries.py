"""Entry rules of tables on pservers, against the model, for any number of shards and with cut connections."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pslaunch.runtime.client.caller import Caller
from pslaunch.runtime.client.dialer import ClientError
from pslaunch.runtime.client.remote import RemoteUpdater
from pslaunch.runtime.engine.entry import ANY, CountFilterEntry, EntryAttr, ProbabilityEntry, ShowClickEntry
from pslaunch.runtime.engine.kernel_numbers import Mode, Optim
from pslaunch.runtime.engine.optimizer import AdaGrad
from pslaunch.runtime.engine.param_config import ParamConfig
from pslaunch.runtime.engine.parameters import Parameters
from pslaunch.runtime.engine.updater import LocalUpdater, ParamRules, Updater
from pslaunch.runtime.files.joined import read_rows
from pslaunch.runtime.files.sets import Set
from support import reference
from support.proxy import cutting
from support.pservers import NORMAL, PLAIN, ZERO, cluster, run_trainers

pytestmark = pytest.mark.asan

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]

OPTIM = Optim(method="adagrad", learning_rate=0.1)
KEYS, DIM, TRAINERS, STEPS, PASSES = 300, 4, 3, 4, 3
ALL = np.arange(KEYS, dtype=np.uint64)
ENTRIES = [CountFilterEntry(3), ProbabilityEntry(0.25), ShowClickEntry("show", "click", 2.0, 0.5)]


def make_push(entry: EntryAttr, trainer: int, step: int) -> tuple[U64, F32]:
    """Return keys, some much more often than others, and their rows."""
    rng = np.random.default_rng([5, trainer, step])
    keys = np.unique((KEYS * rng.random(60) ** 3).astype(np.uint64))
    rows = rng.standard_normal((len(keys), DIM), dtype=np.float32)
    if isinstance(entry, ShowClickEntry):
        said = rng.integers(0, 3, (len(keys), 2)).astype(np.float32)
        rows = np.concatenate([said, rows], axis=1)
    return rng.permutation(keys), rows


@dataclass
class Result:
    """Rows given back and rows read, as a trainer has seen them."""

    gone: list[int] = field(default_factory=list)
    rows: list[F32] = field(default_factory=list)


def train(c: Caller, trainer: int, entry: EntryAttr) -> Result:
    result = Result()
    with c:
        c.create_sparse("e", KEYS, DIM, OPTIM, NORMAL, entry)
        c.barrier()
        for own in range(PASSES):
            for step in range(STEPS):
                keys, rows = make_push(entry, trainer, own * STEPS + step)
                c.push_pull({}, {}, {"e": (keys, rows)})
            c.end_pass()
            result.gone.append(c.shrink("e", score=1.5, unseen=1, decay=0.75))
            result.rows.append(c.pull_tables({"e": ALL})["e"])
            c.barrier()  # others go on
        c.finish()
    return result


def expect(entry: EntryAttr) -> Result:
    """Compute the same with the model."""
    method, lr, _, _, _, *numbers = OPTIM.pack()
    rule = reference.Rule(method=method, lr=lr, numbers=tuple(numbers))
    table = reference.SparseTable(
        dim=DIM, rule=rule, table=reference.hash_name("e"), kind=0, std=0.1, entry=entry.pack()
    )
    result = Result()
    for own in range(PASSES):
        for step in range(STEPS):
            for trainer in range(TRAINERS):
                table.add(*make_push(entry, trainer, own * STEPS + step))
            table.commit()
        result.gone.append(table.shrink(0.75, 1.5, 1))
        result.rows.append(table.read(ALL))
    return result


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
@pytest.mark.parametrize(("pservers", "cuts"), [(3, 24)])
def test_rows_are_those_of_the_model(entry: EntryAttr, pservers: int, cuts: int) -> None:
    """Deterministic: the same bits for any number of shards, however often connections break."""
    at = [600 + 170 * i for i in range(cuts)]
    with cluster(pservers, trainers=TRAINERS) as found, cutting(found.endpoints, at) as proxies:
        endpoints = [proxy.endpoint for proxy in proxies]
        results = run_trainers(TRAINERS, lambda t: train(found.client(t, endpoints=endpoints), t, entry))
        assert found.codes() == [0] * pservers
        assert cuts == 0 or sum(proxy.cut for proxy in proxies) > cuts / 2
    want = expect(entry)
    assert sum(want.gone) > 0
    for t, result in enumerate(results):
        assert result.gone == (want.gone if t == 0 else [0] * PASSES)
        for got, rows in zip(result.rows, want.rows, strict=True):
            np.testing.assert_array_equal(got, rows)


def read_table(folder: Path) -> dict[int, tuple[list[float], list[float]]]:
    """Return rows with their state, and counts, of all keys of a set."""
    found = Set(folder)
    table: dict[int, tuple[list[float], list[float]]] = {}
    for waiting in (False, True):
        for keys, rows, counts in read_rows(found, "e", waiting=waiting):
            own = counts.tolist() or [[]] * len(keys)
            table |= dict(zip(keys.tolist(), zip(rows.tolist(), own, strict=True), strict=True))
    found.close()
    return table


@pytest.mark.parametrize("entry", [ANY, *ENTRIES], ids=lambda entry: type(entry).__name__)
def test_a_trainer_alone_has_the_rows_of_a_pserver(entry: EntryAttr, tmp_path: Path) -> None:
    """With their state and counts, also when it goes on from the pserver's set."""
    configs = {"e": ParamConfig(name="e", rows=KEYS, cols=DIM, std=0.1, sparse=True, entry=entry)}
    params = ParamRules(configs, frozenset(configs), AdaGrad(learning_rate=0.1))

    def learn(updater: Updater, own: int, parameters: Parameters, name: str) -> None:
        for step in range(STEPS * own, STEPS * (own + 1)):
            keys, rows = make_push(entry, 0, step)
            updater.fetch({"e": keys}, {})
            updater.update({}, {"e": (keys, rows)}, 1)
        parameters.save(tmp_path / name)
        updater.end_pass()

    with_pserver, alone, loaded = (Parameters(configs) for _ in range(3))
    with cluster() as found, found.client(0) as c:
        remote = RemoteUpdater(params, with_pserver, c, on_connected=lambda: None, guard=nullcontext)
        remote.start()
        for own in range(2):
            learn(remote, own, with_pserver, f"pserver{own}")
        rows = with_pserver.get("e")
        remote.finish()
    local = LocalUpdater(params, alone)
    local.start()
    for own in range(2):
        learn(local, own, alone, f"alone{own}")
        assert read_table(tmp_path / f"alone{own}") == read_table(tmp_path / f"pserver{own}")
    np.testing.assert_array_equal(alone.get("e"), rows)
    loaded.load(tmp_path / "pserver0")
    local = LocalUpdater(params, loaded)
    local.start()
    learn(local, 1, loaded, "loaded")
    assert read_table(tmp_path / "loaded") == read_table(tmp_path / "pserver1")


def test_asynchronous_pushes_are_counted_once_each() -> None:
    """Each key needs two pushes; with an SGD of rate 1 all further ones are in its row."""
    keys, ones = np.arange(50, dtype=np.uint64), np.ones((50, DIM), np.float32)

    def push(t: int) -> F32:
        with found.client(t, mode="async", endpoints=[proxy.endpoint for proxy in proxies]) as c:
            c.create_sparse("e", 50, DIM, PLAIN, ZERO, CountFilterEntry(2))
            c.barrier()
            for _ in range(20):
                c.push_pull({}, {}, {"e": (keys, ones)})
            c.end_pass()
            rows = c.pull_tables({"e": keys})["e"]
            c.barrier()
            c.finish()
        return rows

    with cluster(trainers=2) as found, cutting(found.endpoints, [3000 * i for i in range(1, 12)]) as proxies:
        for rows in run_trainers(2, push):
            assert (rows == -39).all()
        assert found.codes() == [0]


def refuse(entry: EntryAttr, mode: Mode, act: str) -> str:
    """Return the text of a pserver's refusal of one trainer of two."""
    with cluster(trainers=1) as found, found.client(0, mode=mode) as c:
        try:
            c.create_sparse("e", KEYS, DIM, OPTIM, NORMAL, entry)
            if act == "shrink":
                c.shrink("e", score=1.0)
            elif act == "push":
                rows = np.full((2, 2 + DIM), np.nan, np.float32)
                c.push_pull({}, {}, {"e": (np.array([7, 8], np.uint64), rows)})
        except ClientError as e:
            with pytest.raises(ClientError, match=re.escape(str(e))):
                c.barrier()
            return str(e)
        finally:
            for one in found.processes:
                one.proc.terminate()
    return ""


@pytest.mark.parametrize(
    ("entry", "mode", "act", "text"),
    [
        (ANY, "sync", "shrink", "'e' can't shrink, because it counts nothing: create it with an entry rule"),
        (CountFilterEntry(2), "geo", "", "entry rule count: expected a table that is not of mode geo"),
        (ENTRIES[2], "sync", "push", "'e': key 7: nan shows and nan clicks, expected 0 to 16777216"),
    ],
)
def test_wrong_rules_are_refused_in_words(entry: EntryAttr, mode: Mode, act: str, text: str) -> None:
    assert re.search(text, refuse(entry, mode, act))


def test_wrong_numbers_of_shrink_are_errors() -> None:
    with cluster(trainers=1) as found, found.client(0) as c:
        c.create_sparse("e", KEYS, DIM, OPTIM, NORMAL, CountFilterEntry(1))
        with pytest.raises(ValueError, match="shrink of 'e': score=nan, expected 0 to 16777216"):
            c.shrink("e", score=float("nan"))
        with pytest.raises(ValueError, match="shrink of 'e': unseen=-1, expected 0 to 4294967295"):
            c.shrink("e", score=1.0, unseen=-1)
        c.finish()


def test_trainer_that_is_not_the_first_may_not_shrink() -> None:
    def act(t: int) -> str:
        try:
            with found.client(t) as c:
                c.create_sparse("e", KEYS, DIM, OPTIM, NORMAL, CountFilterEntry(1))
                c.barrier()
                if t == 1:
                    c.call(lambda: c._core.shrink(0, 1.0, 1.0, 0))
        except ClientError as e:
            return str(e)
        return ""

    with cluster(trainers=2) as found:
        texts = run_trainers(2, act)
        for one in found.processes:
            one.proc.terminate()
    assert "'e': SHRINK of trainer 1; only trainer 0 may" in texts[1]
