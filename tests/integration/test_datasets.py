"""Fleet programs that train from datasets: the bits of a loader's, and samples dealt among workers."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np

from support.fleet import make_local_blocks, train_by_hand, write_quick_start
from support.jobs import LocalPlace, finished
from support.models import hash_set
from support.process import until_gone


def write_data(folder: Path) -> None:
    """Write four files, two for each worker, that make no whole number of batches."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    for i, samples in enumerate((50, 40, 60, 70)):
        numbers = [rng.integers(0, 7, (samples, 13)), rng.integers(0, 1000, (samples, 26))]
        lines = np.concatenate([*numbers, rng.integers(0, 2, (samples, 1))], axis=1)
        np.savetxt(folder / f"{i}.txt", lines, fmt="%d", delimiter=",")


def test_quick_start_with_datasets_has_the_bits_of_a_loader(tmp_path: Path) -> None:
    write_quick_start(tmp_path)
    write_data(tmp_path / "data")
    digests = set()
    for way in ("loader", "QueueDataset", "InMemoryDataset"):
        *_, said = train_by_hand(tmp_path, *make_local_blocks(2, 2), program=("train_files.py", way, way))
        digests.add(hash_set(tmp_path / way))
        shown = re.findall(r"^time: .*, batch: \[3\], AUC\[1\]:\[0\.\d+\]$", said, re.MULTILINE)
        assert len(shown) == (way != "loader")
    assert len(digests) == 1


SHUFFLE = """
import pslaunch.runtime as paddle
from pslaunch.runtime import fleet

fleet.init()
if fleet.is_server():
    fleet.run_server()
else:
    fleet.init_worker()
    paddle.seed(1 + fleet.worker_index())
    dataset = paddle.distributed.InMemoryDataset()
    word = paddle.static.data("word", [None, 1], "int64", lod_level=1)
    dataset.init(batch_size=1000, use_var=[word])
    dataset.set_filelist([f"{fleet.worker_index()}.txt"])
    dataset.load_into_memory(is_shuffle=fleet.worker_index() == 0)
    for _ in range(2):
        dataset.global_shuffle(fleet)
        [batch] = dataset.read_batches()
        print("words", dataset.get_memory_data_size(fleet), batch["word"].items[:, 0].tolist())
    fleet.stop_worker()
"""


def test_samples_are_dealt_among_all_workers(tmp_path: Path) -> None:
    workers = 3
    for worker in range(workers):
        words = range(100 * worker, 100 * worker + 100)
        (tmp_path / f"{worker}.txt").write_text("".join(f"1 {word}\n" for word in words))
    found = []
    for _ in range(2):
        _, *said = train_by_hand(tmp_path, *make_local_blocks(1, workers), text=SHUFFLE)
        lines = [re.findall(r"^words (\d+) \[(.*)\]$", one, re.MULTILINE) for one in said]
        for shuffle in range(2):
            assert {own[shuffle][0] for own in lines} == {str(100 * workers)}
            every = [[int(word) for word in own[shuffle][1].split(", ")] for own in lines]
            assert sorted(itertools.chain.from_iterable(every)) == list(range(100 * workers))
            assert all(own != sorted(own) for own in every)
            assert all({word // 100 for word in own} == {*range(workers)} for own in every)
            found.append(every)
    assert found[:2] == found[2:]
    assert found[0] != found[1]


WIDE = """
import pslaunch.runtime as paddle
from pslaunch.runtime import fleet
from support.process import measure_peak

fleet.init()
if fleet.is_server():
    print("peak", measure_peak(fleet.run_server))
else:
    fleet.init_worker()
    dataset = paddle.distributed.InMemoryDataset()
    dataset.init(batch_size=1000, use_var=[paddle.static.data("words", [None, 1000], "int64")])
    dataset.set_filelist(["wide.txt"])
    dataset.load_into_memory()
    dataset.global_shuffle(fleet)
    assert dataset.get_memory_data_size(fleet) == 2000
    fleet.stop_worker()
"""


def test_global_shuffle_of_many_samples_needs_little_memory_of_servers(tmp_path: Path) -> None:
    (tmp_path / "wide.txt").write_text(f"1000 {'7 ' * 1000}\n" * 1000)  # 8 MB as columns
    support = {"PYTHONPATH": str(Path(__file__).parents[1])}
    said = train_by_hand(tmp_path, *(block | support for block in make_local_blocks(1, 2)), text=WIDE)
    [peak] = re.findall(r"^peak (\d+)$", said[0], re.MULTILINE)
    assert int(peak) < 32 << 20


HANGING = """
import os

import pslaunch.runtime as paddle

paddle.enable_static()
os.mkfifo("begun")
dataset = paddle.distributed.InMemoryDataset()
word = paddle.static.data("word", [None, 1], "int64")
dataset.init(use_var=[word], pipe_command="sh -c 'sleep 600 & echo $! > begun; wait'")
dataset.set_filelist(["train.py"])
dataset.preload_into_memory()
with open("begun") as begun:
    print("child", begun.read(), end="", flush=True)
os._exit(3)
"""


def test_commands_end_with_a_trainer_that_fails(workspace: Path) -> None:
    code, job = finished(LocalPlace(1), workspace, "--server_num=0", "--worker_num=1", text=HANGING)
    assert code == 3, job.launcher.output()
    [pid] = [int(line.split()[1]) for line in job.lines("trainer/0") if line.startswith("child ")]
    until_gone(pid, within_s=45)
