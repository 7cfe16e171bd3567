"""The public client with real pservers: steps, futures, borrowed arrays, files and the end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pslaunch.runtime import Client
from pslaunch.runtime.client.caller import Init
from pslaunch.runtime.client.client import TensorHandle
from pslaunch.runtime.client.dialer import PeerVanished
from pslaunch.runtime.engine.kernel_numbers import Mode, Optim
from pslaunch.runtime.entry import ShowClickEntry
from support.jobs import LocalPlace, succeeded
from support.others import torch_python, write_lib
from support.process import poll_until, started
from support.pservers import PLAIN, Cluster, cluster, run_trainers

F32 = npt.NDArray[np.float32]
ADAGRAD = Optim(method="fleet_adagrad", learning_rate=0.1)
KEYS = np.array([3, 5, 2**63], np.uint64)


def connect(found: Cluster, trainer: int = 0, **options: Any) -> Client:
    servers = [f"{host}:{port}" for host, port in found.endpoints]
    return Client(servers, trainer=trainer, trainers=found.trainers, log=lambda _: None, **options)


def make(*shape: int, value: float = 1.0) -> F32:
    return np.full(shape, value, np.float32)


def train(client: Client, trainer: int) -> tuple[F32, F32, F32]:
    """Three steps of a tensor and a table, then one more of a tensor that is made late."""
    w = client.tensor("w", (300, 200), ADAGRAD, init=0.5)
    t = client.table("emb", 4, ADAGRAD, init=Init(kind="uniform", mean=0.0, std=0.1))
    draw = np.random.default_rng(trainer).standard_normal
    values, rows = np.empty((300, 200), np.float32), np.empty((3, 4), np.float32)
    grads = draw((300, 200), np.float32), draw((3, 4), np.float32)
    for _ in range(3):
        client.push_pull({w: grads[0]}, {w: values}, {t: (KEYS, grads[1])}, {t: (KEYS, rows)}).wait()
    late = client.tensor("late", (5,), PLAIN, init=np.arange(5))
    last = np.empty(5, np.float32)
    client.push_pull({w: grads[0], late: make(5)}, {late: last}).wait()
    return values, rows, last


@pytest.mark.parametrize("mode", ["half_async", "async"])
def test_asynchronous_modes_have_several_pushes_on_their_way(mode: Mode) -> None:
    with cluster(2) as found, connect(found, mode=mode) as client:
        w, t = client.tensor("w", (4, 2), PLAIN), client.table("emb", 2, PLAIN)
        grads = [make(4, 2, value=value) for value in (1, 2, 3)]
        row_grads = [make(3, 2, value=value) for value in (1, 2, 3)]
        futures = [
            client.push({w: grad}, rows={t: (KEYS, rows)})
            for grad, rows in zip(grads, row_grads, strict=True)
        ]
        values, rows = make(4, 2), make(3, 2)
        client.pull({w: values}, {t: (KEYS, rows)}).wait(timeout=20)
        for future in futures:
            future.wait()
            assert future.done()
        np.testing.assert_array_equal(values, make(4, 2, value=-6))
        np.testing.assert_array_equal(rows, make(3, 2, value=-6))
        assert client.stats()["steps"] == {"w": 3, "emb": 3}


def test_in_geo_pservers_subtract_what_is_pushed() -> None:
    with cluster() as found, connect(found, mode="geo") as client:
        with pytest.raises(ValueError, match="w: in mode geo pservers add changes"):
            client.tensor("w", (2,), PLAIN)
        w, value = client.tensor("w", (2,), init=3), make(2)
        client.push_pull({w: make(2, value=0.5)}, {w: value}).wait()
        np.testing.assert_array_equal(value, make(2, value=2.5))


@pytest.mark.asan
def test_arrays_that_do_not_fit_are_refused_by_name_and_nothing_is_sent() -> None:
    with cluster() as found, connect(found) as client:
        w, t = client.tensor("w", (2, 3), PLAIN), client.table("emb", 4, PLAIN)
        grad, out, rows, both = make(2, 3), make(2, 3), make(3, 4), make(5, 3)
        negative, floats = np.array([-1, 2, 3]), KEYS.astype(np.float32)
        cases: list[tuple[Callable[[], object], str]] = [
            (
                lambda: client.push({w: make(3, 2)}),
                "w: an array of float32 .3, 2.; expected C-contiguous float32 .2, 3.: reshape it",
            ),
            (
                lambda: client.push({w: grad.astype("f8")}),
                "w: an array of float64 .*; expected .* or give a copy",
            ),
            (lambda: client.push({w: make(2, 6)[:, ::2]}), "w: .*not C-contiguous; expected"),
            (lambda: client.push({w: [1.0]}), "w: list: .*; expected an array of numpy, a CPU tensor or"),
            (lambda: client.push_pull({w: grad}, {w: grad}), "w: out shares memory with another array of"),
            (lambda: client.push_pull({w: both[:2]}, {w: both[1:3]}), "w: out shares memory"),
            (lambda: client.pull({w: np.broadcast_to(np.float32(1), (2, 3))}), "w: .*not C-contiguous"),
            (lambda: client.pull({w: memoryview(bytes(24)).cast("f", (2, 3))}), "w: .*read-only"),
            (lambda: client.push({w: grad}, {t: (negative, rows)}), "emb: keys below 0; with"),
            (lambda: client.push({w: grad}, {t: (floats, rows)}), "emb: keys of float32"),
            (lambda: client.push({w: grad}, {t: (KEYS, rows[:2])}), "emb: an array of float32 .2, 4."),
            (lambda: client.push({}), "missing gradients: .'w'.; a step pushes all"),
            (lambda: client.push({"w": grad}), "'w' is no TensorHandle: give the handle that"),
            (lambda: client.pull({}, {w: (KEYS, rows)}), "TensorHandle.* is no TableHandle: give"),
            (lambda: client.push({w: grad}, samples=-1), "samples=-1, expected a whole number from 0"),
            (lambda: client.push({w: grad}, samples=0.5), "samples=0.5, expected a whole number from 0"),
        ]
        for call, error in cases:
            with pytest.raises((TypeError, ValueError), match=error):
                call()
        client.push_pull({w: grad}, {w: out}).wait()
        np.testing.assert_array_equal(out, make(2, 3, value=-1))


@pytest.mark.asan
def test_an_array_of_a_call_on_its_way_is_refused_in_another_one() -> None:
    with cluster() as found, connect(found) as client:
        w, t = client.tensor("w", (2, 3), PLAIN), client.table("emb", 4, PLAIN)
        grad, out, rows = make(2, 3), make(2, 3), make(3, 4)
        future = client.push_pull({w: grad}, {w: out}, fetch={t: (KEYS, rows)})
        again: list[Callable[[], object]] = [
            lambda: client.pull({w: out}),
            lambda: client.push({w: grad}),
            lambda: client.pull(fetch={t: (KEYS, rows)}),
            lambda: client.pull({w: grad}),
        ]
        for call in again:
            with pytest.raises(ValueError, match=r"(w|emb): .* on its way: wait for that one first, or"):
                call()
        with pytest.raises(ValueError, match="the push of 'w' before this one has no answer yet: wait"):
            client.push({w: make(2, 3)})
        other = make(3, 4)
        client.pull(fetch={t: (KEYS, other)}).wait()  # keys are read by both
        future.wait()
        client.push_pull({w: grad}, {w: out}).wait()
        np.testing.assert_array_equal(out, make(2, 3, value=-2))


def test_a_wait_has_a_limit_and_the_call_goes_on() -> None:
    with cluster(trainers=2) as found:
        first, second = run_trainers(2, lambda trainer: connect(found, trainer))
        handles = run_trainers(2, lambda trainer: (first, second)[trainer].tensor("w", (2,), PLAIN))
        out = make(2, value=7)
        future = first.push_pull({handles[0]: make(2)}, {handles[0]: out})
        assert not future.done()
        waited_s = first.stats()["waited_s"]
        with pytest.raises(TimeoutError, match=r"have not answered within 0.01 s; the call is on its way"):
            future.wait(timeout=0.01)
        assert first.stats()["waited_s"] >= waited_s + 0.01
        second.push({handles[1]: make(2)}).wait()
        future.wait(timeout=20)
        np.testing.assert_array_equal(out, make(2, value=-2))
        first.finish()
        second.finish()


def test_waits_of_no_time_move_a_call_until_it_is_done() -> None:
    with cluster() as found, connect(found) as client:
        w, out = client.tensor("w", (1000, 1000), PLAIN), make(1000, 1000)  # more than a connection takes

        def is_done() -> bool:
            try:
                future.wait(0)
            except TimeoutError:
                return False
            return True

        future = client.push_pull({w: make(1000, 1000)}, {w: out})
        poll_until(is_done, describe="the call has not come to its end")
        np.testing.assert_array_equal(out, make(1000, 1000, value=-1))


def test_tables_alone_have_steps_entry_rules_and_sums_over_trainers() -> None:
    def run(trainer: int) -> Any:
        with connect(found, trainer) as client:
            t = client.table("emb", 2, PLAIN, init=1.0, entry=ShowClickEntry("s", "c", threshold=3))
            assert (t.dim, t.push_dim) == (2, 4)
            rows = make(3, 2)
            grads = np.array([[2, 2, 1, 1]] * 3, np.float32)  # shows and clicks first
            client.push_pull(rows={t: (KEYS, grads)}, fetch={t: (KEYS, rows)}, samples=3).wait()
            client.end_pass()
            client.barrier()
            return rows, client.reduce(np.array([trainer, 5]))

    with cluster(2, trainers=2) as found:
        for rows, total in run_trainers(2, run):
            np.testing.assert_array_equal(rows, make(3, 2, value=0))  # the second push admits the keys
            np.testing.assert_array_equal(total, [1, 10])


def test_a_training_goes_on_from_saved_files(tmp_path: Path) -> None:
    def run(trainer: int, load: bool) -> Any:
        with connect(found, trainer) as client:
            if load:
                client.load(tmp_path)
            values = train(client, trainer)
            if trainer == 0:
                client.save(tmp_path)
            else:
                with pytest.raises(ValueError, match="only trainer 0 saves"):
                    client.save(tmp_path)
            return values

    with cluster(2, trainers=2) as found:
        before = run_trainers(2, lambda trainer: run(trainer, load=False))[0]
    with cluster(3, trainers=2) as found:
        after = run_trainers(2, lambda trainer: run(trainer, load=True))[0]
    assert (before[0] != after[0]).any()
    np.testing.assert_array_equal(after[2], before[2] - 2)


def test_a_training_goes_on_from_a_snapshot_with_what_the_program_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(found: Cluster, **options: Any) -> tuple[Client, Any]:
        client = connect(found, snapshot_steps=2, **options)
        return client, client.resume(lambda: {"value": float(value[0])})

    def step(client: Client, w: TensorHandle) -> bool:
        with pytest.raises(ValueError, match="shares memory"):
            client.push_pull({w: value}, {w: value})  # it takes no cut along
        client.push_pull({w: make(1)}, {w: value}).wait()
        return any(tmp_path.glob("cut-*/manifest.json"))

    value = make(1)
    monkeypatch.setenv("PSLAUNCH_SNAPSHOT_DIR", str(tmp_path))
    with cluster(2) as found:
        client, state = begin(found)
        assert state is None and client.reduce(np.ones(1)) == [1]  # before the first tensor
        w = client.tensor("w", (1,), PLAIN)
        poll_until(lambda: step(client, w), describe="no snapshot")
        client.close()
    with cluster() as found, pytest.raises(ValueError, match=r"call resume\(\) before the first tensor"):
        connect(found, resume="1").tensor("w", (1,), PLAIN)
    with cluster() as found:
        client, state = begin(found, resume="1")
        client.pull({client.tensor("w", (1,), PLAIN): value}).wait()
        assert state == {"value": value[0]} and value[0] < 0
        client.finish()


def test_a_handle_that_is_refused_leaves_nothing_in_what_is_saved(tmp_path: Path) -> None:
    for saves in (True, False):
        with cluster() as found, connect(found) as client:
            if not saves:
                client.load(tmp_path)
            client.tensor("w", (3,), ADAGRAD)
            for make_again in (client.tensor, client.table):
                with pytest.raises(ValueError, match="'w' already exists"):
                    make_again("w", 3 if make_again == client.table else (3,), PLAIN)
            if saves:
                client.save(tmp_path)


def test_calls_on_their_way_have_the_error_of_a_pserver_that_is_gone() -> None:
    with cluster(trainers=2) as found:
        client, other = run_trainers(2, lambda trainer: connect(found, trainer))
        w = client.tensor("w", (2,), PLAIN)
        future = client.push({w: make(2)})
        assert not future.done()  # it waits for the other trainer
        found.processes[0].proc.kill()
        found.processes[0].wait()
        for ask in (future.wait, future.done, future.wait):
            with pytest.raises(PeerVanished, match="is gone"):
                ask()
        client.close()
        other.close()


TORCH = """
import sys, torch
from pslaunch.runtime import Client
from pslaunch.runtime.engine.kernel_numbers import Optim

with Client(sys.argv[1:]) as client:
    rule = Optim(method="sgd", learning_rate=1.0)
    w, t = client.tensor("w", (2, 2), rule, init=torch.ones(2, 2)), client.table("emb", 2, rule)
    out, rows, keys = torch.zeros(2, 2), torch.zeros(2, 2), torch.tensor([7, 1])
    grads = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    client.push_pull({w: grads}, {w: out}, {t: (keys, grads)}, {t: (keys, rows)}).wait()
    assert torch.equal(out, 1 - grads) and torch.equal(rows, -grads), (out, rows)
    try:
        client.push({w: torch.nn.Parameter(grads)})
    except TypeError as e:
        print(e)
"""


def test_tensors_of_torch_are_taken_without_copies(tmp_path: Path) -> None:
    (program := tmp_path / "program.py").write_text(TORCH)
    env = {**os.environ, "PYTHONPATH": str(write_lib(tmp_path / "lib"))}
    with cluster() as found:
        argv = [str(torch_python()), str(program), *(f"{host}:{port}" for host, port in found.endpoints)]
        ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env=env)
        assert (ran.returncode, ran.stdout[:14]) == (0, "w: Parameter: "), ran.stdout + ran.stderr
        assert found.codes() == [0]


# A program's end: what it does after a step, its exit code, and whether its pserver has ended by then.
ENDS = [
    ("", 0, True),
    ("raise ValueError('its own')", 1, False),
    ("client.close()", 0, False),
    ("import os, signal; os.kill(int(sys.argv[2]), signal.SIGKILL); client.push({w: w0}).wait()", 75, True),
]


@pytest.mark.parametrize(("then", "code", "ended"), ENDS)
def test_a_program_says_finished_unless_an_exception_ends_it(then: str, code: int, ended: bool) -> None:
    begin = (
        "import sys, numpy as np; from pslaunch.runtime import Client; "
        "from pslaunch.runtime.engine.kernel_numbers import Optim; client = Client(sys.argv[1:2]); "
        "w0 = np.ones(2, 'f4'); w = client.tensor('w', (2,), Optim(method='sgd', learning_rate=1.0)); "
        "client.push({w: w0}).wait()\n"
    )
    with cluster() as found:
        ((host, port),), (pserver,) = found.endpoints, found.processes
        argv = [sys.executable, "-c", begin + then, f"{host}:{port}", str(pserver.pid)]
        with started(argv) as program:
            assert program.wait() == code
        assert ("is gone: Connection refused" in program.output()) == (code == 75)
        if ended:
            pserver.wait()
        else:
            assert pserver.proc.poll() is None


def test_a_program_that_reaches_no_pserver_has_the_code_of_that() -> None:
    words = "from pslaunch.runtime import Client; Client(['127.0.0.1:1'], connect_timeout=0.2)"
    with started([sys.executable, "-c", words]) as program:
        assert program.wait() == 69, program.output()


TRAIN = """
import zlib
import numpy as np
import pslaunch.runtime as paddle
from pslaunch.runtime import Client

client = Client.from_env()
w = client.tensor("w", (300, 200), paddle.optimizer.Adam(learning_rate=0.1))
t = client.table("emb", 8, paddle.optimizer.AdaGrad(learning_rate=0.1), init=0.5)
random = np.random.default_rng(client.trainer)
values, keys, found = np.empty(w.shape, np.float32), np.arange(500) * 7, np.empty((500, 8), np.float32)
for _ in range(4):
    grads = random.standard_normal(w.shape, np.float32)
    rows = random.choice(keys, 300, replace=False), random.standard_normal((300, 8), np.float32)
    client.push_pull({w: grads}, {w: values}, {t: rows}, {t: (keys, found)}, samples=300).wait()
total = client.reduce(np.array([client.trainer + 1]))[0]
print("trainers", client.trainers, "sum", total, "bits", zlib.crc32(values), zlib.crc32(found))
"""


def test_jobs_have_the_same_bits_for_any_number_of_pservers(workspace: Path) -> None:
    (workspace / "train.py").write_text(TRAIN)
    results = []
    for pservers in (1, 3):
        options = [f"--server_num={pservers}", "--worker_num=2"]
        job = succeeded(LocalPlace(1), workspace, *options, program=["train.py"])
        for trainer in range(2):
            results += [line for line in job.lines(f"trainer/{trainer}") if line.startswith("trainers ")]
    assert results == [results[0]] * 4
    assert results[0].startswith("trainers 2 sum 3 bits ")
