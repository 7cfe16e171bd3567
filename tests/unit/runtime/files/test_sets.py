"""Sets: written by one process, read by any; and any damage is named before anything is changed."""

from __future__ import annotations

import hashlib
import io
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime.engine import convert
from pslaunch.runtime.engine.param_config import ParamConfig
from pslaunch.runtime.engine.parameters import Parameters
from pslaunch.runtime.files import saving
from pslaunch.runtime.files.foreign import read_npz, read_pdparams, write_npz, write_pdparams
from pslaunch.runtime.files.manifest import MANIFEST, hash_file, read_manifest, write_manifest
from pslaunch.runtime.files.objects import Content, SetError
from pslaunch.runtime.files.sets import Set
from support import joined
from support.models import hash_set, ngram_cost, ngrams

# Settings of another test may have pservers, with which load() verifies later.
pytestmark = pytest.mark.usefixtures("fresh")

CONFIGS = {
    "w": ParamConfig(name="w", rows=2, cols=3, std=1.0),
    "e": ParamConfig(name="e", rows=50, cols=2, std=1.0, sparse=True),
}


def make(folder: Path, value: float = 1.5) -> Parameters:
    """Save parameters of which one has set values, and a table two changed rows; return them."""
    parameters = Parameters(CONFIGS)
    parameters["w"] = np.full((2, 3), value, np.float32)
    table = parameters["e"]
    table[[3, 40]] = value
    parameters["e"] = table
    parameters.save(folder)
    return parameters


def list_parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.bin"))


def test_values_come_back_and_only_changed_rows_are_kept(tmp_path: Path) -> None:
    written = make(tmp_path / "set")
    keys = joined.load(tmp_path / "set")["e"].keys
    assert keys is not None and keys.tolist() == [3, 40]
    read = Parameters(CONFIGS)
    read.load(tmp_path / "set")
    for name in CONFIGS:
        np.testing.assert_array_equal(read[name], written[name])
    read.save(tmp_path / "again")
    assert hash_set(tmp_path / "again") == hash_set(tmp_path / "set")


def damage_each_bit(path: Path, use: Callable[[], object], error: type[Exception] = SetError) -> None:
    """Check that `use` finds a flipped bit in each byte of a file, and that it was cut short anywhere."""
    raw = path.read_bytes()
    for at in range(len(raw)):
        bad = bytearray(raw)
        bad[at] ^= 1 << at % 8
        path.write_bytes(bad)
        with pytest.raises(error):
            use()
    for size in [*range(0, len(raw), 7), len(raw) - 1]:
        path.write_bytes(raw[:size])
        with pytest.raises(error):
            use()
    path.write_bytes(raw)
    use()


def test_damage_of_any_file_is_found_and_nothing_is_changed(tmp_path: Path) -> None:
    make(tmp_path)
    target = Parameters(CONFIGS)
    before = target["w"]
    for path in [tmp_path / MANIFEST, *list_parts(tmp_path)]:
        raw = path.read_bytes()
        damage_each_bit(path, lambda: joined.load(tmp_path))
        path.write_bytes(raw[:-1])
        with pytest.raises(SetError, match=path.name):
            target.load(tmp_path)
        path.write_bytes(raw)
    np.testing.assert_array_equal(target["w"], before)


def test_mixed_parts_missing_ones_and_other_versions_are_named(tmp_path: Path) -> None:
    make(tmp_path / "a")
    make(tmp_path / "b", 2.5)
    (own,), (other,) = list_parts(tmp_path / "a"), list_parts(tmp_path / "b")
    raw = own.read_bytes()
    shutil.copy(other, own)
    with pytest.raises(SetError, match=f"{own} is not the file of manifest.json: .* of another save"):
        joined.load(tmp_path / "a")
    own.unlink()
    with pytest.raises(SetError, match=f"{own}: No such file or directory, but it is a file of the set"):
        joined.load(tmp_path / "a")
    old = bytearray(raw[: -saving.DIGEST_BYTES])
    struct.pack_into("<I", old, 8, 2)
    own.write_bytes(bytes(old) + hashlib.sha256(old).digest())
    manifest = read_manifest(tmp_path / "a")
    write_manifest(tmp_path / "a", replace(manifest, files=[hash_file(Content(own))]))
    with pytest.raises(SetError, match="a part of version 2, expected version 4"):
        joined.load(tmp_path / "a")
    (tmp_path / "b" / MANIFEST).unlink()
    with pytest.raises(SetError, match=r"it has no manifest\.json"):
        joined.load(tmp_path / "b")


def test_another_model_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    for config, words in (
        (ParamConfig(name="w", rows=2, cols=4), "w has 6 values, the program 8 values"),
        (ParamConfig(name="e", rows=51, cols=2), "e has 50 rows of 2, the program 51 rows of 2"),
        (ParamConfig(name="x", rows=2, cols=2), "lacks x; it has w, e"),
    ):
        with pytest.raises(SetError, match=words):
            Parameters({config.name: config}).load(tmp_path)


def test_a_failed_save_leaves_the_set_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr("pslaunch.runtime.files.sets.write_manifest", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make(tmp_path, 9.5)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def train(parameters: Parameters, passes: int, optimizer: object | None = None) -> list[float]:
    """Return the costs of a training in v2's words."""
    costs: list[float] = []
    rule = optimizer or paddle.optimizer.Adam(learning_rate=0.05)
    trainer = paddle.trainer.SGD(cost=ngram_cost(sparse=True), parameters=parameters, update_equation=rule)
    trainer.train(
        paddle.batch(ngrams(32), 32),
        num_passes=passes,
        event_handler=lambda e: costs.append(e.cost) if isinstance(e, paddle.event.EndIteration) else None,
    )
    return costs


def test_v2_parameters_go_on_with_the_state_of_adam(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = paddle.parameters.create(ngram_cost(sparse=True))
    six = train(whole, 6)
    half = paddle.parameters.create(ngram_cost(sparse=True))
    three = train(half, 3)
    half.save(tmp_path / "set")
    more = paddle.parameters.create(ngram_cost(sparse=True))
    more.load(tmp_path / "set")
    assert [*three, *train(more, 3)] == six
    whole.save(tmp_path / "six")
    more.save(tmp_path / "more")
    assert hash_set(tmp_path / "more") == hash_set(tmp_path / "six")

    capsys.readouterr()
    half.to_tar(io.BytesIO())
    half.to_tar(io.BytesIO())
    said = capsys.readouterr().err
    assert said.count("the state of adam is left out") == 1
    other = paddle.parameters.create(ngram_cost(sparse=True))
    other.load(tmp_path / "set")
    train(other, 1, paddle.optimizer.AdaGrad(learning_rate=0.05))
    assert "the state of adam is left out, as the program trains with adagrad" in capsys.readouterr().err


def test_convert_there_and_back_keeps_all_or_the_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = paddle.parameters.create(ngram_cost(sparse=True))
    train(parameters, 1)
    folder = tmp_path / "set"
    parameters.save(folder)

    def run(*words: object) -> str:
        assert convert.main([*map(str, words)]) == 0, capsys.readouterr().err
        return "".join(capsys.readouterr())

    run("convert", folder, tmp_path / "m.npz")
    run("convert", tmp_path / "m.npz", tmp_path / "again")
    assert hash_set(tmp_path / "again") == hash_set(folder)

    def list_digests(path: Path) -> list[str]:
        return [line.split("digest")[-1] for line in run("show", path).splitlines() if "steps of" in line]

    assert list_digests(tmp_path / "again") == list_digests(folder)
    for kind in ("tar", "pdparams"):
        assert "the state of adam is left out" in run("convert", folder, tmp_path / f"m.{kind}")
        run("convert", tmp_path / f"m.{kind}", tmp_path / kind)
        back = Parameters({name: parameters.get_config(name) for name in parameters})
        back.load(tmp_path / kind)
        for name in parameters:
            np.testing.assert_array_equal(back[name], parameters[name])
    assert convert.main(["convert", str(folder), str(tmp_path / "m.other")]) == 1
    assert "can't convert" in capsys.readouterr().err


def test_an_npz_that_was_changed_is_a_whole_set_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "set")
    paths = [str(tmp_path / name) for name in ("set", "m.npz", "back")]
    assert convert.main(["convert", *paths[:2]]) == 0
    arrays = read_npz(tmp_path / "m.npz")
    write_npz(tmp_path / "m.npz", (arrays | {"w": arrays["w"].astype(np.float64) + 1}).items())
    assert convert.main(["convert", *paths[1:]]) == 0
    assert (joined.load(tmp_path / "back")["w"].values == 2.5).all()
    for name, array in (("w", arrays["w"][:1]), ("e", arrays["e"][:1]), ("@set", np.zeros(3, np.uint8))):
        write_npz(tmp_path / "m.npz", (arrays | {name: array}).items())
        assert convert.main(["convert", *paths[1:]]) == 1
        assert f"{paths[1]} is no set of `pslaunch convert`: " in capsys.readouterr().err
    assert (joined.load(tmp_path / "back")["w"].values == 2.5).all()


def test_damage_of_files_of_others_is_found(tmp_path: Path) -> None:
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float32)}
    pdparams, npz, tar = (tmp_path / f"m.{kind}" for kind in ("pdparams", "npz", "tar"))
    write_pdparams(pdparams, arrays)
    damage_each_bit(pdparams, lambda: read_pdparams(pdparams))
    write_npz(npz, arrays.items())
    damage_each_bit(npz, lambda: read_npz(npz))
    make(tmp_path / "set").save_tar(tar)
    damage_each_bit(tar, lambda: Parameters.from_tar(io.BytesIO(tar.read_bytes())), ValueError)
    for path, read in ((pdparams, read_pdparams), (npz, read_npz)):
        for name, array in read(path).items():
            np.testing.assert_array_equal(array, arrays[name])
    with np.load(npz) as theirs:
        assert sorted(theirs) == ["b", "w"]


def test_a_pickle_that_would_run_a_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pdparams"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(SetError, match="expected arrays by name"):
        read_pdparams(path)


def test_a_set_opens_only_the_parts_that_are_needed(tmp_path: Path) -> None:
    make(tmp_path)
    found = Set(tmp_path)
    assert not found.open_parts
    found.find_rows("e")
    assert len(found.open_parts) == 1


def test_a_part_that_another_pserver_completes_meanwhile_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "glob", lambda folder, _: [folder / ".shard-00000-000.bin.part"])
    saving.prepare_folder(tmp_path)
