"""A training that loads what another has saved goes on as if nothing had been: values, rows, state."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pslaunch.runtime.files.manifest import read_manifest
from pslaunch.runtime.files.objects import SetError
from support import joined
from support.fleet import make_local_blocks, run_by_hand, train_by_hand
from support.models import hash_set

# Six steps, or three from a saved set; then the parameters are saved.
PROGRAM = """
import sys
import numpy as np
import pslaunch.runtime as paddle
from pslaunch.runtime import fleet, static

way, rows, first, last, into, *model = sys.argv[1:]
rows = int(rows)
fleet.init()
paddle.seed(3 if model else 1)
word = static.data("word", [None, 1], "int64")
row = static.nn.sparse_embedding(word, [rows, 8])
hidden = static.nn.fc(paddle.reshape(row, [-1, 8]), 3000, activation="tanh")
fixed = static.create_parameter([1, 3000], "float32", attr=paddle.ParamAttr(trainable=False))
loss = paddle.mean(paddle.square(static.nn.fc(hidden + fixed * 0.1, 1) - 1.0))
rate = paddle.optimizer.lr.ExponentialDecay(0.01, 0.9)
fleet.distributed_optimizer(paddle.optimizer.Adam(rate)).minimize(loss)
main = static.default_main_program()
if fleet.is_server():
    fleet.run_server()
else:
    exe = static.Executor()
    exe.run(static.default_startup_program())
    if model and way == "static":
        static.load(main, model[0])
    elif model:
        fleet.load_persistables(exe, model[0])
    fleet.init_worker()
    for step in range(int(first), int(last)):
        rate.last_epoch = step
        rate.last_lr = 0.01 * 0.9**step
        feed = {"word": np.array([[3], [4], [rows - 1], [step * 50]])}
        print("loss", float(exe.run(feed=feed, fetch_list=[loss])[0]).hex())
    if way == "static":
        static.save(main, into)
    else:
        fleet.save_persistables(exe, into)
    fleet.stop_worker()
"""


def train(folder: Path, servers: int, *words: object) -> list[str]:
    """Return the losses of a training with one worker."""
    blocks = make_local_blocks(servers, 1) if servers else [{}]
    *_, said = train_by_hand(folder, *blocks, text=PROGRAM, program=["train.py", *map(str, words)])
    return re.findall(r"^loss (\S+)$", said, re.MULTILINE)


@pytest.mark.parametrize(("servers", "others"), [((2, 3)), ((0, 0)), ((0, 2)), ((3, 0))])
def test_three_steps_of_adam_saved_and_three_more_are_six(tmp_path: Path, servers: int, others: int) -> None:
    way = "static" if servers == others == 0 else "fleet"
    six = train(tmp_path, servers, way, 5000, 0, 6, "six")
    three = train(tmp_path, servers, way, 5000, 0, 3, "three")
    more = train(tmp_path, others, way, 5000, 3, 6, "more", "three")
    assert [*three, *more] == six
    assert len(set(six)) == 6
    suffix = ".set" if way == "static" else ""
    if servers and others:
        assert hash_set(tmp_path / f"more{suffix}") == hash_set(tmp_path / f"six{suffix}")


def test_a_table_of_many_known_rows_is_saved_as_those_in_use(tmp_path: Path) -> None:
    six = train(tmp_path, 2, "fleet", 2**32, 0, 6, "six")
    train(tmp_path, 2, "fleet", 2**32, 0, 3, "three")
    assert sum(path.stat().st_size for path in (tmp_path / "three").iterdir()) < 1 << 20
    saved = joined.load(tmp_path / "three")["embedding_0.w_0"]
    assert saved.keys is not None and saved.total == 2**32
    np.testing.assert_array_equal(saved.keys, [0, 3, 4, 50, 100, 2**32 - 1])
    assert train(tmp_path, 3, "fleet", 2**32, 3, 6, "more", "three") == six[3:]
    assert hash_set(tmp_path / "more") == hash_set(tmp_path / "six")


def test_a_save_replaces_the_set_that_is_there(tmp_path: Path) -> None:
    train(tmp_path, 2, "fleet", 5000, 0, 1, "model")
    before = {path.name for path in (tmp_path / "model").iterdir()}
    train(tmp_path, 1, "fleet", 5000, 0, 2, "model")
    after = {path.name for path in (tmp_path / "model").iterdir()}
    assert before & after == {"manifest.json"}
    manifest = read_manifest(tmp_path / "model")
    assert {entry.name for entry in manifest.files} | {"manifest.json"} == after
    assert (manifest.step, manifest.layout["pservers"]) == (2, 1)


def test_servers_refuse_a_damaged_set_by_name_and_train_nothing(tmp_path: Path) -> None:
    train(tmp_path, 1, "fleet", 5000, 0, 1, "model")
    (part,) = (tmp_path / "model").glob("shard-*")
    raw = bytearray(part.read_bytes())
    raw[-5000] ^= 4
    part.write_bytes(raw)
    blocks = make_local_blocks(1, 1)
    words = ["train.py", "fleet", "5000", "0", "3", "other", "model"]
    _, worker = run_by_hand(tmp_path, *blocks, program=words)
    assert worker.wait() != 0
    assert f"{part} is damaged" in worker.output()
    assert "loss" not in worker.output() and not (tmp_path / "other").exists()
    with pytest.raises(SetError, match="is damaged"):
        joined.load(tmp_path / "model")
