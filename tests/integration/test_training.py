"""Training with real pservers: the same bits whatever their number, and no hang with uneven data."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from support.cluster import Cluster, find_digests, run_job
from support.process import poll_until, started
from support.progress import heard

pytestmark = pytest.mark.asan

PROGRAM = """
import json, os, sys
import pslaunch.runtime as paddle
from support.models import digest, ngram_cost, ngrams

options = json.loads(sys.argv[1])
paddle.init(trainer_count=options.get("threads", 1), log_period=1)
rank = int(os.environ.get("PADDLE_INIT_TRAINER_ID", "0"))
cost = ngram_cost(sparse=options.get("sparse", False), drop_rate=options.get("drop_rate", 0.0))
parameters = paddle.parameters.create(cost)
if options.get("loaded"):
    parameters["_proj"] = parameters["_proj"] * (2 if rank == 0 else 3)
method = getattr(paddle.optimizer, options.get("method", "AdaGrad"))
regularization = paddle.optimizer.L2Regularization(8e-4)
optimizer = method(learning_rate=2e-2, regularization=regularization, **options.get("numbers", {}))
trainer = paddle.trainer.SGD(cost, parameters, optimizer, is_local=options.get("local", False))
batches = options.get("batches", {}).get(str(rank), 6)
seen = []

def handler(event):
    if isinstance(event, paddle.event.EndPass):
        seen.append(digest(parameters))
        print("share", event.metrics["classification_error_evaluator"])
    if isinstance(event, paddle.event.EndIteration) and options.get("test") and event.batch_id == 1:
        print("tested", trainer.test(paddle.batch(ngrams(40), 20)).cost)
    if isinstance(event, paddle.event.EndIteration) and options.get("fail") == rank:
        raise RuntimeError("the program fails")

if options.get("test"):
    print("before", trainer.test(paddle.batch(ngrams(40), 20)).cost)
trainer.train(paddle.batch(ngrams(16 * batches, seed=rank), 16), 2, handler)
assert seen[-1] == digest(parameters)
print("digest", seen[-1])
"""


POLY = {"learning_rate_schedule": "poly", "learning_rate_decay_a": 0.01, "learning_rate_decay_b": 0.5}


def same(clusters: Sequence[Cluster], folder: Path, options: dict[str, object]) -> str:
    """Run on each cluster; the one digest of all of them."""
    found = [find_digests(run_job(cluster, PROGRAM, folder, options)) for cluster in clusters]
    assert len(found[0]) == 1, found
    assert all(one == found[0] for one in found), found
    return found[0].pop()


@pytest.mark.parametrize(
    ("sparse", "method", "numbers"),
    [(False, "AdaGrad", {}), (True, "Momentum", {"momentum": 0.9, **POLY})],
)
def test_alone_equals_one_trainer_with_any_pservers(
    tmp_path: Path, sparse: bool, method: str, numbers: dict[str, object]
) -> None:
    options: dict[str, object] = {"sparse": sparse, "method": method, "numbers": numbers, "drop_rate": 0.3}
    clusters = [Cluster(), Cluster(pservers=3, ports_num=2, ports_num_for_sparse=1)]
    together = same(clusters, tmp_path, options)
    argv = [sys.executable, "train.py", json.dumps(options | {"local": True})]
    with started(argv, env=Cluster().environ(0), cwd=tmp_path) as alone:
        assert alone.wait() == 0, alone.output()
        assert find_digests([alone.output()]) == {together}
        assert "THIS TRAINER TRAINS ALONE" in alone.output()


TABLE = """
import io, os, sys
from pathlib import Path
import pslaunch.runtime as paddle
from support.process import measure_peak
from support.models import digest

rank = int(os.environ["PADDLE_INIT_TRAINER_ID"])
paddle.init()
ids = [paddle.layer.data(name=name, type=paddle.data_type.integer_value(400_000)) for name in "ab"]
attr = paddle.attr.Param(name="table", sparse_update=True)
rows = [paddle.layer.embedding(input=one, size=64, param_attr=attr) for one in ids]
guess = paddle.layer.fc(input=paddle.layer.concat(input=rows), size=2, act=paddle.activation.Softmax())
label = paddle.layer.data(name="label", type=paddle.data_type.integer_value(2))
cost = paddle.layer.classification_cost(input=guess, label=label)
parameters = paddle.parameters.create(cost)
trainer = paddle.trainer.SGD(cost, parameters, paddle.optimizer.AdaGrad(), is_local=False)
samples = [(i, i + 32, i % 2) for i in range(32)]

def train():
    trainer.train(paddle.batch(lambda: iter(samples), 32), 1)
    if rank == 0:
        parameters.save_tar(Path("parameters.tar"))

print("peak", measure_peak(train) >> 20)
if rank == 0:
    with open("parameters.tar", "rb") as f:
        print("same", digest(paddle.parameters.Parameters.from_tar(f)) == digest(parameters))
    print("known", len(paddle.infer(guess, parameters, [(i, i) for i in range(100)])))
"""


def test_tables_take_no_memory_of_trainers_to_the_end(tmp_path: Path) -> None:
    """The table has 98 MiB; before, a trainer had it in memory once, and once more while it was saved."""
    first, second = run_job(Cluster(trainers=2, pservers=2), TABLE, tmp_path)
    for said, limit in ((first, 64), (second, 16)):
        found = re.search(r"^peak (\d+)$", said, re.M)
        assert found and int(found[1]) < limit, said
    assert "same True\n" in first and "known 100\n" in first


COUNT = """
import pslaunch.runtime as paddle
from pslaunch.runtime.client.caller import Caller
from support.models import ngram_cost, ngrams

calls = []
for name in ("push_pull", "pull_tables"):
    def note(self, *arguments, name=name, method=getattr(Caller, name), **options):
        calls.append(name)
        return method(self, *arguments, **options)
    setattr(Caller, name, note)

paddle.init()
cost = ngram_cost(sparse=True)
trainer = paddle.trainer.SGD(cost, paddle.parameters.create(cost), paddle.optimizer.SGD(), is_local=False)
trainer.train(paddle.batch(ngrams(6 * 16), 16), 2)
print("calls", calls.count("push_pull"), calls.count("pull_tables"))
"""


def test_a_step_is_one_call_that_brings_the_rows_of_the_next(tmp_path: Path) -> None:
    (said,) = run_job(Cluster(), COUNT, tmp_path)
    assert "calls 12 2\n" in said


FORK = """
import os, sys
import pslaunch.runtime as paddle
from support.models import ngram_cost, ngrams

paddle.init()
cost = ngram_cost()
trainer = paddle.trainer.SGD(cost, paddle.parameters.create(cost), paddle.optimizer.SGD(), is_local=False)
trainer.train(paddle.batch(ngrams(32), 16), 1)
child = os.fork()
if child == 0:
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
trainer.train(paddle.batch(ngrams(32), 16), 1)
print("trained on")
"""


def test_a_child_made_by_fork_says_nothing_at_its_exit(tmp_path: Path) -> None:
    (said,) = run_job(Cluster(), FORK, tmp_path)
    assert "trained on" in said


def test_uneven_data_has_the_same_bits_with_any_pservers_and_never_hangs(tmp_path: Path) -> None:
    clusters = [Cluster(trainers=3), Cluster(trainers=3, pservers=3, ports_num=2, ports_num_for_sparse=2)]
    batches = {"0": 3, "1": 2, "2": 0}
    same(
        clusters,
        tmp_path,
        {"sparse": True, "threads": 2, "drop_rate": 0.3, "test": True, "batches": batches},
    )


def test_reports_have_metrics_over_all_trainers(tmp_path: Path) -> None:
    cluster, found = Cluster(trainers=2, pservers=2), list[object]()
    options = {"batches": {"0": 3, "1": 5}}
    with (
        heard(tmp_path) as reports,
        cluster.serving(tmp_path),
        cluster.training(PROGRAM, tmp_path, options) as trainers,
    ):

        def have_ended() -> bool:
            has_ended = all("digest" in trainer.output() for trainer in trainers)
            found.extend(one.get("metric.classification_error_evaluator") for one in reports())
            return has_ended

        poll_until(have_ended, describe=lambda: str([trainer.output() for trainer in trainers]))
        assert [trainer.wait() for trainer in trainers] == [0, 0]
        shares = [float(re.findall(r"^share (.*)$", one.output(), re.M)[-1]) for one in trainers]
    assert shares[0] != shares[1]
    assert pytest.approx((3 * shares[0] + 5 * shares[1]) / 8) in found


def test_values_of_trainer_0_win(tmp_path: Path) -> None:
    cluster = Cluster(trainers=2, pservers=2)
    loaded = same([cluster], tmp_path, {"sparse": True, "loaded": True})
    assert loaded != same([cluster], tmp_path, {"sparse": True})


def test_an_aborted_training_is_not_finished(tmp_path: Path) -> None:
    cluster = Cluster()
    with cluster.serving(tmp_path) as (pserver,):
        with cluster.training(PROGRAM, tmp_path, {"fail": 0}) as (trainer,):
            assert trainer.wait() == 1
            assert "RuntimeError: the program fails" in trainer.output()
        assert "finished" not in pserver.output()


SECOND = """
import sys
import pslaunch.runtime as paddle
from support.models import ngram_cost, ngrams

paddle.init()
cost = ngram_cost()
parameters = paddle.parameters.create(cost)

def trainer(is_local):
    return paddle.trainer.SGD(cost, parameters, paddle.optimizer.SGD(), is_local=is_local)

samples = paddle.batch(ngrams(32), 16)
first, second = trainer(False), trainer(False)
first.train(samples, 1)
second.test(samples)
trainer(True).train(samples, 1)
try:
    second.train(samples, 1)
except RuntimeError as error:
    print(f"refused: {error}")
"""


def test_a_second_trainer_with_pservers_is_refused_in_words(tmp_path: Path) -> None:
    (said,) = run_job(Cluster(), SECOND, tmp_path)
    assert re.search(r"^refused: trainer\.SGD: another trainer\.SGD of this program ", said, re.M), said


def test_a_vanished_pserver_ends_the_trainer_with_75(tmp_path: Path) -> None:
    cluster = Cluster()
    with cluster.serving(tmp_path) as (pserver,):
        options = {"batches": {"0": 100000}}
        with cluster.training(PROGRAM, tmp_path, options) as (trainer,):
            log = tmp_path / "log" / "paddle_trainer.INFO"
            pserver.expect(r"1 of 1 trainers connected")
            trainer.expect("init rpc client with trainer_id 0")
            poll_until(lambda: log.is_file() and "Batch=5 " in log.read_text(), describe=trainer.output)
            pserver.proc.send_signal(signal.SIGKILL)
            assert trainer.wait() == 75, trainer.output()
            assert "trainer 0 ends with 75" in trainer.output()


def told(output: str) -> list[str]:
    """The last block of a trainer that ends by itself: warnings, no traceback."""
    assert "Traceback" not in output, output
    return [line for line in output.splitlines() if line.startswith("WARNING")]


def test_a_pserver_that_is_not_reached_ends_the_trainer_with_69(tmp_path: Path) -> None:
    cluster = Cluster(connect_timeout_s=0.3)
    with heard(tmp_path) as reports, cluster.training(PROGRAM, tmp_path) as (trainer,):
        assert trainer.wait() == 69, trainer.output()
        why = f"no connection to pserver {cluster.address(0)} after 0.3 s (option connect_timeout): "
        assert [str(one["why"]).startswith(why) for one in reports()] == [True]
        (line,) = told(trainer.output())
        assert f"no connection to pserver {cluster.address(0)} after 0.3 s" in line
        assert "connect_timeout" in line
        assert line.endswith("trainer 0 ends with 69")


def test_numbers_that_disagree_end_the_trainer_with_78(tmp_path: Path) -> None:
    cluster = Cluster()
    with (
        cluster.serving(tmp_path),
        replace(cluster, trainers=2).training(PROGRAM, tmp_path) as both,
    ):
        for trainer in both:
            assert trainer.wait() == 78, trainer.output()
            (line,) = told(trainer.output())
            assert "num_gradient_servers is 2 at trainer" in line
            assert f"and 1 at the pserver {cluster.address(0)} " in line
            assert "option --num_gradient_servers" in line
