"""Fleet programs of the bundled runtime, started by pslaunch, and by hand with Fleet's variables."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from pslaunch.runtime.engine.parameters import read_parameters
from pslaunch.runtime.files.sets import Set
from pslaunch.runtime.paddle2 import static
from support.fleet import make_local_blocks, run_by_hand, train_by_hand, write_quick_start
from support.jobs import LocalPlace, finished, succeeded, until_nothing_runs
from support.models import hash_set
from support.process import started

ROLES = """
import numpy as np
from pslaunch.runtime import fleet

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    print(f"server {fleet.server_index()} of {fleet.server_num()} has ended")
else:
    fleet.init_worker()
    rank = fleet.worker_index()
    for i in range(3):
        total = fleet.util.all_reduce(np.array([rank + 1, 2**40 + i]))
        most = fleet.all_reduce(rank / 3, mode="max")
        names = fleet.util.all_gather(np.arange(rank + 1))
    print(fleet.util.get_file_shard(["a", "b", "c"]), total.tolist(), most, [len(name) for name in names])
    fleet.barrier_worker()
    fleet.util.print_on_rank("the first worker alone", 0)
    fleet.stop_worker()
"""
SHARES = (["a", "b"], ["c"])


def test_launched_processes_have_their_parts_and_end_together(workspace: Path) -> None:
    (workspace / "train.py").write_text(ROLES)
    job = succeeded(LocalPlace(1), workspace, "--server_num=2", "--worker_num=2", program=["train.py"])
    assert job.end()["reason"] == "all trainers ended with 0"
    for i in range(2):
        assert job.lines(f"pserver/{i}")[-1] == f"server {i} of 2 has ended"
        assert f"{SHARES[i]} [3, {2 * (2**40 + 2)}] {1 / 3} [1, 2]" in job.lines(f"trainer/{i}")
        assert ("the first worker alone" in job.lines(f"trainer/{i}")) == (i == 0)
    until_nothing_runs(2.0)


def test_four_blocks_of_variables_by_hand_need_no_launcher(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of all processes")
    blocks = [block | {"PADDLE_INIT_SECRET_FILE": "secret"} for block in make_local_blocks(2, 2)]
    said = train_by_hand(tmp_path, *blocks, text=ROLES)
    for i, server in enumerate(said[:2]):
        host, port = blocks[i]["POD_IP"], blocks[i]["PADDLE_PORT"]
        assert f"Server listening on {host}:{port} selected port: {port}\n" in server
        assert server.endswith(f"server {i} of 2 has ended\n")
    for i, worker in enumerate(said[2:]):
        assert f"init rpc client with trainer_id {i}\n" in worker
        assert f"{SHARES[i]} [3, " in worker


NOT_FINITE = """
import numpy as np
import pslaunch.runtime as paddle
from pslaunch.runtime import fleet

fleet.init()
paddle.enable_static()
x = paddle.static.data("x", [None, 3], "float32")
label, user = (paddle.static.data(name, [None, 1], "int64") for name in ("label", "user"))
guess = paddle.nn.functional.sigmoid(paddle.static.nn.fc(x, 1, name="out"))
*_, counts = paddle.static.auc(paddle.concat([1 - guess, guess], axis=1), label, slide_steps=20)
paddle.static.user_auc(guess, label, user)
paddle.static.ctr_metric_bundle(guess, label)
loss = paddle.mean(paddle.square(guess - paddle.cast(label, "float32")))
fleet.distributed_optimizer(paddle.optimizer.Adam(0.1), fleet.DistributedStrategy()).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    rng = np.random.default_rng(fleet.worker_index())
    for step in range(5):
        feed = {"x": rng.random((40, 3), np.float32), "user": rng.integers(0, 3, (40, 1))}
        feed["label"] = feed["x"][:, :1].round().astype(np.int64)
        if (step, fleet.worker_index()) == (2, 1):
            feed["x"][:] = np.nan
        pos, neg = exe.run(feed=feed, fetch_list=counts[2:])
    print("AUC at the end", fleet.metrics.auc(pos, neg), pos.sum() + neg.sum())
    fleet.stop_worker()
"""


@pytest.mark.parametrize(("rule", "code"), [("skip", 0), ("refuse", 65)])
def test_gradient_that_is_not_finite_spoils_no_job(workspace: Path, rule: str, code: int) -> None:
    own = rule == "refuse"  # the program's own
    begin = 'paddle.init(nan="refuse")\nfleet.init()' if own else "fleet.init()"
    (workspace / "train.py").write_text(NOT_FINITE.replace("fleet.init()", begin))
    options = ("--server_num=2", "--worker_num=2", *([] if own else [f"--nan={rule}"]))
    found, job = finished(LocalPlace(1), workspace, *options, program=["train.py"])
    assert found == code, job.launcher.output()
    where = "trainer 1, step 3: NaN or infinity in the gradient of out.w_0, out.b_0, from that in the data"
    if code:
        assert where in job.end()["failure"]["text"]
        return
    assert any(where in line for line in job.lines("trainer/1"))
    ends = [line for i in range(2) for line in job.lines(f"trainer/{i}") if line.startswith("AUC at")]
    *_, auc, samples = ends[1].split()
    assert samples == "160" and f"{auc} 200" in ends[0]
    last = [e for e in job.events() if e.get("metric.auc") == pytest.approx(float(auc), rel=1e-6)]
    assert last and 0 < last[-1]["metric.user_auc"] < 1 and 0.5 < last[-1]["metric.calibration"] < 2
    assert [e["metric.steps_not_finite"] for e in job.events() if "metric.steps_not_finite" in e][-1] == 1


def test_program_without_variables_trains_alone(tmp_path: Path) -> None:
    (said,) = train_by_hand(tmp_path, {}, text=ROLES)
    assert "this program trains alone" in said and "['a', 'b', 'c'] [1, " in said


@pytest.mark.parametrize(
    ("program", "block", "text"),
    [
        ("fleet.init()", {"TRAINING_ROLE": "TRAINER"}, "PADDLE_TRAINER_ID are missing"),
        ("fleet.is_server()", {}, "call fleet.init() first"),
        ("fleet.init(); fleet.run_server()", {}, "is worker 0; call it only if fleet.is_server()"),
        ("fleet.init(); fleet.stop_worker()", {}, "call fleet.init_worker() first"),
        ("fleet.init(); fleet.init_worker(); fleet.init_worker()", {}, "fleet.init_worker: called twice"),
        ("fleet.init(); fleet.init_worker(); fleet.shrink(1.0)", {}, "no table with an entry rule"),
        ("fleet.init(is_collective=True)", {}, "parameter servers alone"),
        ("fleet.init(strategy=1)", {}, "give strategy to fleet.distributed_optimizer"),
    ],
)  # fmt: skip
def test_wrong_lives_are_refused_in_words(
    tmp_path: Path, program: str, block: dict[str, str], text: str
) -> None:
    (tmp_path / "train.py").write_text(f"from pslaunch.runtime import fleet\n{program}\n")
    (process,) = run_by_hand(tmp_path, block)
    assert process.wait() == 1
    assert text in process.output().splitlines()[-1]


def test_busy_port_of_a_server_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ROLES)
    blocks = make_local_blocks(1, 1)
    host, port = blocks[0]["POD_IP"], blocks[0]["PADDLE_PORT"]
    with socket.create_server((host, int(port))):
        (process,) = run_by_hand(tmp_path, blocks[0])
    assert process.wait() == 69
    assert f"port {port} at {host} is busy" in process.output()


SCHEDULED = """
import sys
import numpy as np
import pslaunch.runtime as paddle
import pslaunch.runtime.distributed.fleet as fleet

mode, optimizer, folder = sys.argv[1:]
fleet.init()
rank = fleet.worker_index() if fleet.is_worker() else 0
word = paddle.static.data("word", [None, 1], "int64")
row = paddle.reshape(paddle.static.nn.embedding(word, [20, 4], is_sparse=True), [-1, 4])
loss = paddle.mean(paddle.square(paddle.static.nn.fc(row, 9000) - 1.0)) * 1000.0  # of 3 blocks
decay = paddle.optimizer.lr.ExponentialDecay(0.2, gamma=0.7)
scheduler = paddle.optimizer.lr.LinearWarmup(decay, 3, 0.0, 0.2)
options = {"momentum": 0.9} if optimizer == "Momentum" else {}
own = getattr(paddle.optimizer, optimizer)(learning_rate=scheduler, **options)
strategy = fleet.DistributedStrategy()
strategy.a_sync = mode != "sync"
if mode == "geo":
    strategy.a_sync_configs = {"k_steps": 2}
fleet.distributed_optimizer(own, strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    feed = {"word": np.arange(8).reshape(-1, 1) + rank}
    losses = []
    for i in range(12 - 3 * rank):
        losses.append(float(exe.run(feed=feed, fetch_list=[loss])[0]))
        if rank == 0 or mode != "sync":  # in sync the rate is that of worker 0
            scheduler.step()
    print("first", losses[0] == losses[1], "last", losses[-1] < losses[0] * 0.9)
    fleet.barrier_worker()
    if fleet.is_first_worker():
        fleet.save_persistables(exe, folder)
    fleet.stop_worker()
"""


def train_scheduled(folder: Path, servers: int, workers: int, *arguments: str) -> str:
    """Return the digest of the model; check that all workers have learned."""
    blocks = make_local_blocks(servers, workers) if servers else [{}]
    said = train_by_hand(folder, *blocks, text=SCHEDULED, program=["train.py", *arguments, f"{servers}"])
    assert all("last True" in worker for worker in said[servers:])
    assert workers > 1 or "first True" in said[-1]  # the first rate is 0
    return hash_set(folder / f"{servers}")


@pytest.mark.parametrize("optimizer", ["Momentum", "Adam"])
def test_rates_of_a_scheduler_give_the_same_bits_alone_and_with_any_number_of_servers(
    tmp_path: Path, optimizer: str
) -> None:
    alone, *others = (train_scheduled(tmp_path, servers, 1, "sync", optimizer) for servers in (0, 1, 3))
    assert others == [alone, alone]


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_schedulers_work_in_every_mode(tmp_path: Path, mode: str) -> None:
    train_scheduled(tmp_path, 2, 2, mode, "SGD")


def test_training_before_init_worker_is_refused(tmp_path: Path) -> None:
    write_quick_start(tmp_path)
    text = (tmp_path / "train.py").read_text().replace("    fleet.init_worker()\n", "")
    (tmp_path / "train.py").write_text(text)
    (process,) = run_by_hand(tmp_path, {}, program=("train.py", "sync"))
    assert process.wait() == 1
    assert process.output().endswith("call fleet.init_worker() before the first step of training\n")


ENTRY = """
import numpy as np
import pslaunch.runtime as paddle
from pslaunch.runtime import fleet

fleet.init()
word = paddle.static.data("word", [None, 1], "int64")
entry = paddle.distributed.CountFilterEntry(2)
half = paddle.nn.initializer.Constant(0.5)
emb = paddle.ParamAttr(name="emb", initializer=half)
row = paddle.static.nn.sparse_embedding(word, [50, 4], entry=entry, param_attr=emb)
show, click = (paddle.static.data(name, [None, 1]) for name in ("show", "click"))
entry = paddle.distributed.ShowClickEntry("show", "click", threshold=5, zeros=True)
vector = paddle.static.nn.sparse_embedding(word, [50, 2], entry=entry, param_attr=half)
loss = paddle.mean(row) + paddle.mean(vector)
strategy = fleet.DistributedStrategy()
strategy.sparse_table_configs = {"emb": {"delete_threshold": 100}}
fleet.distributed_optimizer(paddle.optimizer.SGD(1.0), strategy).minimize(loss)
if fleet.is_server():
    fleet.run_server()
else:
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    feed = {"word": np.array([[3]]), "show": np.ones((1, 1), "float32"), "click": np.ones((1, 1), "float32")}
    step = lambda: [float(value.mean()) for value in exe.run(feed=feed, fetch_list=[row, vector])]
    found = [step() for _ in range(4)]
    fleet.shrink()
    found += [step()]
    fleet.shrink(threshold=100)
    found += [step()]
    print("values", [row for row, _ in found])
    print("vectors", [vector for _, vector in found])
    fleet.stop_worker()
"""


def test_tables_admit_ids_by_their_entry_and_shrink(tmp_path: Path) -> None:
    for worker in train_by_hand(tmp_path, *make_local_blocks(2, 2), text=ENTRY)[2:]:
        found = re.search(r"^values \[(.*)\]$", worker, re.MULTILINE)
        assert found, worker
        unseen, *values, last, _ = (float(text) for text in found[1].split(", "))
        assert sorted({unseen, *values}, reverse=True) == [0.5, *values]
        assert last == 0.5
        (text,) = re.findall(r"^vectors \[(.*)\]$", worker, re.MULTILINE)
        *zeros, first, second, gone = (float(number) for number in text.split(", "))
        assert [*zeros, gone] == [0.0] * 4
        assert 0.5 > first > second  # one day leaves it


LOADING = """
import sys
import numpy as np
import pslaunch.runtime as paddle
from pslaunch.runtime import fleet

mode, seed, into, *model = sys.argv[1:]
fleet.init()
paddle.seed(int(seed))
word = paddle.static.data("word", [None, 1], "int64")
row = paddle.static.nn.sparse_embedding(word, [5000, 16])
score = paddle.static.nn.fc(paddle.reshape(row, [-1, 16]), 2000, activation="tanh")
loss = paddle.mean(paddle.square(paddle.static.nn.fc(score, 1) - 1.0))
strategy = fleet.DistributedStrategy()
strategy.a_sync = mode != "sync"
if mode == "geo":
    strategy.a_sync_configs = {"k_steps": 2}
fleet.distributed_optimizer(paddle.optimizer.SGD(0.1), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server(*model)
    fleet.run_server()
else:
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    feed = {"word": np.array([[3], [4], [4321], [3]])}
    tested = paddle.static.default_main_program().clone(for_test=True)
    print("begins with", exe.run(tested, feed=feed, fetch_list=[loss])[0].tobytes().hex())
    for _ in range(4):
        exe.run(feed=feed)
    fleet.barrier_worker()
    print("ends with", exe.run(tested, feed=feed, fetch_list=[loss])[0].tobytes().hex())
    fleet.save_persistables(exe, into)
    fleet.stop_worker()
"""


def train_loaded(folder: Path, servers: int, *words: str) -> tuple[str, str]:
    """Return the loss before and after a training of one worker, as bits."""
    *_, said = train_by_hand(
        folder, *make_local_blocks(servers, 1), text=LOADING, program=("train.py", *words)
    )
    first, last = re.findall(r"^(?:begins|ends) with (\w+)$", said, re.MULTILINE)
    return first, last


@pytest.mark.parametrize("mode", ["sync", "geo"])
def test_servers_go_on_from_saved_values(tmp_path: Path, mode: str) -> None:
    begun, saved = train_loaded(tmp_path, 2, mode, "1", "first")
    assert begun != saved
    assert train_loaded(tmp_path, 3, mode, "2", "second", "first")[0] == saved
    first, last = zip(
        train_loaded(tmp_path, 1, mode, "3", "third", "second"),
        train_loaded(tmp_path, 2, mode, "4", "fourth", "second"),
        strict=True,
    )
    assert first[0] == first[1]
    if mode == "sync":
        assert last[0] == last[1]
    else:  # its last bits depend on when an exchange arrives
        losses = [np.frombuffer(bytes.fromhex(one), np.float32) for one in last]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_table_keeps_rows_that_nobody_pushed(tmp_path: Path) -> None:
    train_loaded(tmp_path, 2, "sync", "1", "first")
    train_loaded(tmp_path, 2, "sync", "2", "second", "first")
    train_loaded(tmp_path, 2, "sync", "2", "fresh")
    tables = []
    for name in ("first", "second", "fresh"):
        tables.append(read_parameters(Set(tmp_path / name))["embedding_0.w_0"])
    assert (tables[0] != tables[2]).any(axis=1).all()
    same = (tables[0] == tables[1]).all(axis=1)
    assert same.sum() == 5000 - 3
    assert not same[[3, 4, 4321]].any()


def test_loaded_servers_refuse_workers_with_another_order_of_servers(tmp_path: Path) -> None:
    train_loaded(tmp_path, 2, "sync", "1", "model")
    *servers, worker = make_local_blocks(2, 1)
    listed = ",".join(reversed(worker["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")))
    argv = [sys.executable, "train.py", "sync", "1", "other", "model"]
    with contextlib.ExitStack() as stack:
        for block in servers:
            stack.enter_context(started(argv, cwd=tmp_path, env=os.environ | block))
        other = os.environ | worker | {"PADDLE_PSERVERS_IP_PORT_LIST": listed}
        process = stack.enter_context(started(argv, cwd=tmp_path, env=other))
        assert process.wait() != 0
        assert "in those by which it has loaded values (option pservers, in one order)" in process.output()


def test_workers_find_out_servers_that_have_not_loaded_the_file(tmp_path: Path) -> None:
    train_loaded(tmp_path, 1, "sync", "1", "first")
    *servers, worker = make_local_blocks(2, 1)
    argv = [sys.executable, "train.py", "sync", "1", "third"]
    with contextlib.ExitStack() as stack:
        for block, words in zip(servers, (["first"], []), strict=True):
            stack.enter_context(started([*argv, *words], cwd=tmp_path, env=os.environ | block))
        process = stack.enter_context(started(argv, cwd=tmp_path, env=os.environ | worker))
        assert process.wait() == 78
        found = re.search(r"pserver \S+ has loaded (.*), pserver \S+ (.*): every server", process.output())
        assert found, process.output()
        assert "no file" in found.groups() and len(set(found.groups())) == 2


SMALLER = {"[5000, 16]": "[5000, 8]", "[-1, 16]": "[-1, 8]"}
LARGER = {"loss = ": "score = paddle.static.nn.fc(score, 3, name='more')\nloss = "}
FIXED = {"16])\n": "16], param_attr=paddle.ParamAttr(trainable=False))\n"}
ALONE = {"fleet.distributed_optimizer(paddle.optimizer.SGD(0.1), strategy)": "paddle.optimizer.SGD(0.1)"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, r"/model/manifest.json: No such file .*; fleet.save_persistables\(exe, 'model'\)"),
        (SMALLER, r"embedding_0.w_0 has 5000 rows of 16, the program 5000 rows of 8"),
        (LARGER, r"lacks more.w_0; it has "),
        (FIXED, r"embedding_0.w_0 does not learn"),
        (ALONE, r"call minimize\(\) of"),
    ],
)
def test_values_that_servers_can_not_load_are_refused(
    tmp_path: Path, change: dict[str, str], text: str
) -> None:
    program = LOADING
    if change:
        train_loaded(tmp_path, 1, "sync", "1", "model")
    for old, new in change.items():
        assert old in program
        program = program.replace(old, new)
    (tmp_path / "train.py").write_text(program)
    words = ("train.py", "sync", "1", "other", "model")
    (server,) = run_by_hand(tmp_path, make_local_blocks(1, 1)[0], program=words)
    assert server.wait() == 1
    assert re.search(text, server.output().splitlines()[-1]), server.output()


# Its part comes from the program, not from Fleet's variables.
DEFINED = """
import os
import numpy as np
import pslaunch.runtime as paddle
from pslaunch.runtime import fleet
from pslaunch.runtime.fleet.base.role_maker import Role, UserDefinedRoleMaker

maker = UserDefinedRoleMaker(
    current_id=int(os.environ["OWN_INDEX"]),
    role=Role.SERVER if os.environ["OWN_ROLE"] == "server" else Role.WORKER,
    worker_num=2,
    server_endpoints=os.environ["OWN_SERVERS"].split(","),
)
fleet.init(maker)
x = paddle.static.data("x", [None, 3])
y = paddle.static.data("y", [None, 1])
guess = paddle.static.nn.fc(x, 1)
loss = paddle.mean(paddle.square(guess - y))
strategy = fleet.StrategyFactory.create_half_async_strategy()
fleet.distributed_optimizer(paddle.optimizer.SGD(0.1), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    rng = np.random.default_rng(fleet.worker_index())
    for _ in range(300):
        values = rng.random((16, 3), dtype=np.float32)
        exe.run(feed={"x": values, "y": values.sum(axis=1, keepdims=True)}, fetch_list=[loss])
    fleet.barrier_worker()
    if fleet.is_first_worker():
        fleet.save_inference_model(exe, "model", ["x"], [guess])
    fleet.stop_worker()
"""


def test_program_that_defines_its_roles_trains_half_asynchronously_and_its_inference_model_is_used(
    tmp_path: Path,
) -> None:
    listed = make_local_blocks(2, 2)[0]["PADDLE_PSERVERS_IP_PORT_LIST"]
    blocks = [
        {"OWN_ROLE": role, "OWN_INDEX": str(index), "OWN_SERVERS": listed}
        for role in ("server", "worker")
        for index in range(2)
    ]
    assert "mode half_async" in train_by_hand(tmp_path, *blocks, text=DEFINED)[-1]
    program, inputs, results = static.load_inference_model(str(tmp_path / "model" / "model"))
    feed = dict.fromkeys(inputs, np.array([[0.1, 0.2, 0.3], [0.9, 0.8, 0.0]], dtype=np.float32))
    [sums] = static.Executor().run(program, feed=feed, fetch_list=results)
    np.testing.assert_allclose(sums, [[0.6], [1.7]], atol=0.05)
