"""Tables for ids of any value: text and crosses are learned, saved and loaded by Fleet and v2 programs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.jobs import LocalPlace, succeeded

FLEET = """
import pslaunch.runtime as paddle
import pslaunch.runtime.fleet as fleet

fleet.init()
user, item = (paddle.static.data(name, [None, 1], "string") for name in ("user", "item"))
tags = paddle.static.data("tags", [None, 1], "string", lod_level=1)
label = paddle.static.data("label", [None, 1])
table = paddle.ParamAttr("table")
both = paddle.static.nn.cross([user, item])
rows = [paddle.static.nn.sparse_embedding(one, [None, 4], param_attr=table) for one in (user, both, tags)]
parts = [paddle.reshape(one, [-1, 4]) for one in rows[:2]]
parts.append(paddle.reshape(paddle.static.nn.sequence_pool(rows[2], "sum"), [-1, 4]))
guess = paddle.static.nn.fc(paddle.concat(parts, axis=1), 1)
loss = paddle.mean(paddle.square(guess - label))
fleet.distributed_optimizer(paddle.optimizer.Adam(0.05), fleet.DistributedStrategy()).minimize(loss)
if fleet.is_server():
    fleet.init_server(*(["model"] if LOADS else []))
    fleet.run_server()
else:
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    dataset = paddle.distributed.QueueDataset()
    dataset.init(batch_size=4, use_var=[user, item, tags, label])
    dataset.set_filelist(["data.txt"])
    test = paddle.static.default_main_program().clone(for_test=True)
    feed = {"user": [["ann"], ["bob"]], "item": [["tea"], ["tea"]], "tags": [["x", "y"], []]}
    feed["label"] = [[0.0], [0.0]]
    for _ in range(0 if LOADS else 30):
        exe.train_from_dataset(paddle.static.default_main_program(), dataset)
    print("guess", exe.run(test, feed=feed, fetch_list=[guess])[0].tolist())
    if not LOADS:
        fleet.save_persistables(exe, "model")
    fleet.stop_worker()
"""
# Users like what others do not: only crosses can tell.
LINES = "1 ann 1 tea 2 x y 1 1\n1 bob 1 tea 0 1 -1\n1 ann 1 coffee 1 x 1 -1\n1 bob 1 coffee 0 1 1\n"


def test_text_slots_and_crosses_learn_and_come_back(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text(LINES)
    found = []
    for loads in (False, True):
        (tmp_path / "train.py").write_text(f"LOADS = {loads}\n{FLEET}")
        job = succeeded(LocalPlace(1), tmp_path, "--server_num=2", "--worker_num=1", "--server=script")
        (line,) = re.findall(r"guess (.*)", "\n".join(job.lines("trainer/0")))
        found.append(line)
    ann, bob = (float(one) for one in re.findall(r"-?\d\.\d+", found[0]))
    assert ann == pytest.approx(1, abs=0.2)
    assert bob == pytest.approx(-1, abs=0.2)
    assert found[1] == found[0]


V2 = """
import pslaunch.runtime as paddle

paddle.init()
words = paddle.layer.data(name="words", type=paddle.data_type.string_sequence())
label = paddle.layer.data(name="label", type=paddle.data_type.dense_vector(1))
rows = paddle.layer.embedding(words, 3, param_attr=paddle.attr.Param(sparse_update=True))
out = paddle.layer.fc(paddle.layer.pooling(rows, paddle.pooling.Sum()), 1, act=paddle.activation.Linear())
cost = paddle.layer.square_error_cost(out, label)
parameters = paddle.parameters.create(cost)
trainer = paddle.trainer.SGD(cost, parameters, paddle.optimizer.Adam(learning_rate=0.1), is_local=False)
samples = [(["good", "day"], [1.0]), (["bad"], [-1.0]), ([], [0.0])]
trainer.train(lambda: [samples] * 40)
print("guess", paddle.infer(out, parameters, [one[:1] for one in samples]).tolist())
"""


def test_words_without_a_dictionary_learn_in_v2(tmp_path: Path) -> None:
    job = succeeded(LocalPlace(1), tmp_path, text=V2)
    (line,) = re.findall(r"guess (.*)", "\n".join(job.lines("trainer/0")))
    good, bad, _ = (float(one) for one in re.findall(r"-?\d\.\d+", line))
    assert good == pytest.approx(1, abs=0.2)
    assert bad == pytest.approx(-1, abs=0.2)
    assert (tmp_path / "output/parameters/manifest.json").exists()
