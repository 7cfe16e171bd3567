"""Pservers save at the end: for any number of shards, at TERM, and when it can't be written."""

from __future__ import annotations

import fcntl
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pslaunch.runtime.client.caller import Caller
from pslaunch.runtime.client.control import Control, Message
from pslaunch.runtime.client.dialer import PeerVanished
from pslaunch.runtime.engine.kernel_numbers import Optim
from pslaunch.runtime.files.manifest import Manifest, write_manifest
from pslaunch.runtime.files.objects import Content, PartFile, SetError, describe_object
from pslaunch.runtime.files.saving import SaveError
from pslaunch.runtime.files.sets import Set
from support import joined, reference
from support.disks import fill, small_disk
from support.process import read_memory, started
from support.pservers import NORMAL, PLAIN, cluster, run_trainers

pytestmark = pytest.mark.asan

F32 = npt.NDArray[np.float32]

ADAGRAD = Optim(method="adagrad", learning_rate=0.1)
MOMENTUM = Optim(method="momentum", learning_rate=0.1, numbers={"momentum": 0.9})
SIZE, ROWS, DIM = 50_000, 100, 8
SIZES = {"w": SIZE, "b": 3, "m": 20_001}
KEYS = np.arange(0, ROWS, 3, dtype=np.uint64)


def gradient(size: int) -> F32:
    """Of every step."""
    return np.random.default_rng(size).standard_normal(size, dtype=np.float32)


def create(c: Caller) -> None:
    """Three dense parameters and a table."""
    c.create_dense("w", SIZE, ADAGRAD)
    c.create_dense("b", 3, PLAIN)
    c.create_sparse("e", ROWS, DIM, ADAGRAD, NORMAL)
    c.create_dense("m", SIZES["m"], MOMENTUM)


def step(c: Caller) -> dict[str, F32]:
    """One; the dense values after it."""
    dense = {name: np.zeros(size, np.float32) for name, size in SIZES.items()}
    rows = (KEYS, gradient(len(KEYS) * DIM).reshape(-1, DIM))
    c.push_pull({name: gradient(size) for name, size in SIZES.items()}, dense, {"e": rows})
    return dense


def train(c: Caller, steps: int, *, finish: bool = True) -> dict[str, F32]:
    """Some steps; the values after them."""
    create(c)
    c.init_dense({name: np.zeros(size, np.float32) for name, size in SIZES.items()})
    values: dict[str, F32] = {}
    for _ in range(steps):
        values = step(c)
    values["e"] = c.pull_tables({"e": KEYS})["e"]
    if finish:
        c.finish()
    return values


def same(saved: dict[str, joined.Saved], values: dict[str, F32]) -> None:
    """Check that the saved values are the trainer's."""
    assert list(saved) == ["w", "b", "e", "m"]
    for name, array in values.items():
        np.testing.assert_array_equal(saved[name].values, array)
    assert saved["e"].keys is not None
    np.testing.assert_array_equal(saved["e"].keys, KEYS)


@pytest.mark.parametrize(("pservers", "ports", "sparse"), [(1, 3, 0), (3, 2, 2)])
def test_values_state_and_steps_for_any_number_of_shards(
    tmp_path: Path, pservers: int, ports: int, sparse: int
) -> None:
    folder = tmp_path / "made" / "here"
    with cluster(pservers, ports, sparse, trainers=2, options=[f"--save_dir={folder}"]) as found:
        values, other = run_trainers(2, lambda t: train(found.client(t), 3))
        assert found.codes() == [0] * pservers
        assert f"in {folder}" in found.processes[0].output()
    assert len(list(folder.iterdir())) == pservers * (ports + sparse)
    saved = joined.load(folder)
    same(saved, values)
    same(saved, other)
    assert {(s.steps, s.torn) for s in saved.values()} == {(3, False)}
    w, h = np.zeros(SIZE, np.float32), np.zeros((1, SIZE), np.float32)
    rule = reference.Rule(method=reference.ADAGRAD, lr=0.1, numbers=(1e-6,))
    for step in range(3):
        reference.apply_optim(rule, step + 1, w, h, gradient(SIZE) + gradient(SIZE))
    assert saved["w"].state is not None
    np.testing.assert_array_equal(saved["w"].state, h)
    assert saved["b"].state is None
    assert saved["e"].state is not None
    assert (saved["e"].state > 0).all()
    header = Set(folder).open("shard-00000-000.bin").read_header()
    assert (header.finished, header.pservers, header.ports_num) == (True, pservers, ports)


def test_the_program_lists_and_finds_damage(tmp_path: Path) -> None:
    with cluster(options=[f"--save_dir={tmp_path}"]) as found:
        train(found.client(0), 1)
        assert found.codes() == [0]
    argv = [sys.executable, "-P", "-m", "pslaunch.runtime.engine.convert", "show", str(tmp_path)]
    with started(argv) as process:
        assert process.wait() == 0
        assert "e: 34 of 100 rows of 8, 1 steps of adagrad, state 1 x" in process.output()
    path = tmp_path / "shard-00000-000.bin"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(SetError, match="damaged"):
        joined.load(tmp_path)
    path.write_bytes(raw[:-40])
    with started(argv) as process:
        assert process.wait() == 1
        assert "shard-00000-000.bin is damaged" in process.output()


def test_term_saves_the_present_values(tmp_path: Path) -> None:
    with cluster(2, options=[f"--save_dir={tmp_path}"]) as found, found.client(0) as c:
        values = train(c, 2, finish=False)
        for process in found.processes:
            process.proc.send_signal(signal.SIGTERM)
        assert found.codes() == [143, 143]
        assert "TERM" in found.processes[0].output()
    same(joined.load(tmp_path), values)
    assert not Set(tmp_path).open("shard-00001-000.bin").read_header().finished


def test_a_step_that_only_some_shards_have_is_called_torn(tmp_path: Path) -> None:
    with cluster(2, options=[f"--save_dir={tmp_path}"]) as found, found.client(0) as c:
        train(c, 1, finish=False)
        for process in found.processes:
            process.proc.send_signal(signal.SIGTERM)
            assert process.wait() == 143
            with pytest.raises(PeerVanished):
                step(c)
    saved = joined.load(tmp_path)
    assert (saved["w"].steps, saved["w"].torn) == (1, True)
    assert (saved["b"].steps, saved["b"].torn) == (1, False)  # on one shard alone


def test_term_before_the_first_values_keeps_the_earlier_files(tmp_path: Path) -> None:
    before = tmp_path / "shard-00000-000.bin"
    before.write_text("earlier")
    with cluster(options=[f"--save_dir={tmp_path}"]) as found, found.client(0) as c:
        create(c)
        found.processes[0].proc.send_signal(signal.SIGTERM)
        assert found.codes() == [143]
        found.processes[0].expect(f"nothing is saved in {tmp_path}")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["earlier"]


def test_a_full_disk_ends_the_pserver_with_74_and_a_remedy(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as disk, cluster(options=[f"--save_dir={disk}"]) as found:
        before = disk / "shard-00000-000.bin"
        before.write_text("earlier")
        with found.client(0) as c:
            train(c, 1, finish=False)
            fill(disk)
            c.finish()
        assert found.codes() == [74]
        words = "could not be saved: No space left on device; free some space there"
        said = found.processes[0].output()
        assert f"{before} {words}" in said and said.count("saved") == 1
        assert {p.name for p in disk.iterdir()} == {before.name, "ballast"}
        assert before.read_text() == "earlier"


def test_a_pserver_without_descriptors_for_its_files_ends_with_74(tmp_path: Path) -> None:
    before = tmp_path / "shard-00000-000.bin"
    before.write_text("earlier")
    with cluster(options=[f"--save_dir={tmp_path}"]) as found:
        with found.client(0) as c:
            train(c, 1, finish=False)
            pid = found.processes[0].proc.pid
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3))  # what it has open stays open
            c.finish()
        assert found.codes() == [74]
        assert f"{before} could not be saved: Too many open files" in found.processes[0].output()
    assert [p.read_text() for p in tmp_path.iterdir()] == ["earlier"]


def test_a_folder_that_can_not_be_is_refused_before_listening(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    name = "file/below"
    argv: Sequence[str] = [sys.executable, "-P", "-m", "pslaunch.runtime.pserver"]
    with started([*argv, f"--save_dir={tmp_path / name}"]) as process:
        assert process.wait() == 74
        assert process.output().startswith(f"pslaunch pserver: --save_dir={tmp_path / name}: ")
        assert len(process.output().splitlines()) == 1


def test_a_temporary_file_of_a_killed_pserver_is_removed_at_the_next_start(tmp_path: Path) -> None:
    left, busy = tmp_path / ".shard-00000-000.bin.part", tmp_path / ".shard-00001-000.bin.part"
    left.write_bytes(b"half")
    with busy.open("wb") as f:
        fcntl.flock(f, fcntl.LOCK_EX)  # as a pserver does while it saves
        with cluster(options=[f"--save_dir={tmp_path}"]):
            assert list(tmp_path.iterdir()) == [busy]


def test_a_grace_that_is_too_short_to_save_is_reported_while_there_is_time(tmp_path: Path) -> None:
    with cluster(options=[f"--save_dir={tmp_path}", "--grace=0.0001"]) as found, found.client(0) as c:
        train(c, 1, finish=False)
        found.processes[0].expect("but --grace is 0.0001 s")
        c.finish()
        assert found.codes() == [0]
        assert found.processes[0].output().count("--grace") == 1


MANY = 1_500_000  # rows of Adam: 149 MiB with their keys
ADAM = Optim(method="adam", learning_rate=0.1)


def save(c: Caller, folder: Path) -> list[str]:
    """Let pservers save, and make it a set; the names of the parts."""
    entries = c.save(folder, "one")
    items = PartFile(Content(folder / entries[0].name)).items.values()
    objects = [describe_object(item.create) for item in items]
    write_manifest(folder, Manifest(layout=asdict(c.layout), objects=objects, files=entries))
    return [entry.name for entry in entries]


def make_table(c: Caller) -> None:
    c.create_sparse("big", MANY, DIM, ADAM, NORMAL)
    c.init_dense({})


def test_saving_and_loading_take_little_memory_beside_the_table(tmp_path: Path) -> None:
    with cluster() as found, found.client(0) as c:
        make_table(c)
        for at in range(0, MANY, 1 << 16):
            keys = np.arange(at, min(at + (1 << 16), MANY), dtype=np.uint64)
            c.push_pull({}, {}, {"big": (keys, np.ones((len(keys), DIM), np.float32))})
        (process,) = found.processes
        Path(f"/proc/{process.proc.pid}/clear_refs").write_text("5")
        table = read_memory(process.pid, "VmRSS")
        save(c, tmp_path)
        assert read_memory(process.pid) - table < 64 << 20
        row = c.pull_tables({"big": np.array([7], np.uint64)})["big"]
    with cluster(2) as found, found.client(0) as c:
        c.load(tmp_path)
        make_table(c)
        np.testing.assert_array_equal(c.pull_tables({"big": np.array([7], np.uint64)})["big"], row)
        for process in found.processes:
            assert read_memory(process.pid) < table / 2 + (64 << 20)


def test_parts_move_to_the_node_of_trainer_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a relative folder is for pservers one in theirs of snapshots
    model, theirs = Path("model"), Path(".pslaunch/snapshots/model")
    with cluster(2) as found, found.client(0) as c:
        values = train(c, 1, finish=False)
        names = save(c, model)
        assert sorted(path.name for path in model.iterdir()) == ["manifest.json", *names]
        assert not list(theirs.iterdir())
    same(joined.load(model), values)


def test_parts_of_a_save_that_fails_are_removed_from_all_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (in_the_way := Path(".pslaunch/snapshots/model/shard-00001-000-one.bin")).mkdir(parents=True)
    with cluster(2) as found, found.client(0) as c:
        train(c, 1, finish=False)
        with pytest.raises(SaveError, match=r"port 0: .*shard-00001-000-one.bin"):
            c.save(Path("model"), "one")
        assert list(in_the_way.parent.iterdir()) == [in_the_way]


def test_a_save_and_a_load_outlive_lost_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receive, left = Control.receive, list[int]()

    def lose(control: Control, timeout_s: float | None = None) -> Message | None:
        if left and not left.pop():
            raise ConnectionResetError("lost")
        return receive(control, timeout_s)

    monkeypatch.setattr(Control, "receive", lose)
    with cluster(2) as found, found.client(0) as c:
        left[:] = [0]
        with pytest.raises(SetError, match="no set of saved parameters"):
            c.load(tmp_path)
        train(c, 1, finish=False)
        left[:] = [0]
        entries = c.save(tmp_path, "one")
        assert sorted(path.name for path in tmp_path.iterdir()) == [entry.name for entry in entries]
        assert not left


def test_a_load_is_refused_once_there_are_objects_and_a_damaged_or_missing_set_too(tmp_path: Path) -> None:
    with cluster(2) as found, found.client(0) as c:
        with pytest.raises(SetError, match="no set of saved parameters"):
            c.load(tmp_path)
        train(c, 1, finish=False)
        assert save(c, tmp_path) == ["shard-00000-000-one.bin", "shard-00001-000-one.bin"]
        same(joined.load(tmp_path), {})
        with pytest.raises(SetError, match="'w' was created before the load"):
            c.load(tmp_path)
        with pytest.raises(SaveError, match=r"saving to .*/file/below: can't create a file there"):
            (tmp_path / "file").write_text("")
            c.save(tmp_path / "file" / "below", "two")
        step(c)  # the connection goes on
