"""Inference models come back as they were written."""

from __future__ import annotations

import json
import re
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pslaunch.runtime as paddle
from pslaunch.runtime.files.foreign import write_pdparams
from pslaunch.runtime.files.manifest import hash_file, read_manifest, write_manifest
from pslaunch.runtime.files.objects import Content
from pslaunch.runtime.paddle2 import static
from pslaunch.runtime.paddle2.nn import functional as F  # as in PaddlePaddle's pages
from pslaunch.runtime.paddle2.static.model_files import get_parameters
from support.hostile import damaged, spoilt
from support.static import run_startup


def make_program() -> tuple[static.Executor, list[static.Variable], static.Variable]:
    word, dense = static.data("word", [None, 2], "int64"), static.data("dense", [None, 3])
    static.data("label", [None, 1])
    row = paddle.reshape(static.nn.embedding(word, [9, 4], padding_idx=1), [-1, 8])
    hidden = static.nn.fc(paddle.concat([row, dense], axis=1), 5, activation="relu")
    weight = static.create_parameter([5, 5], "float32")
    out = F.softmax(paddle.matmul(hidden, weight, transpose_y=True))
    return run_startup(), [word, dense], out


def test_loaded_model_gives_the_same_bits(tmp_path: Path) -> None:
    executor, inputs, out = make_program()
    rng = np.random.default_rng(0)
    feed: dict[str, Any] = {
        "word": rng.integers(0, 9, (6, 2)),
        "dense": rng.random((6, 3)).astype(np.float32),
    }
    (before,) = executor.run(feed=feed, fetch_list=[out])
    prefix = str(tmp_path / "model")
    static.save_inference_model(prefix, inputs, [out], executor)
    program, names, fetches = static.load_inference_model(prefix, executor)
    assert names == ["word", "dense"]
    (after,) = executor.run(program, feed=feed, fetch_list=fetches)
    np.testing.assert_array_equal(after, before)


def test_model_is_saved_from_the_program_of_its_variables(tmp_path: Path) -> None:
    main = static.Program()
    with static.program_guard(main, static.Program()):
        executor, inputs, out = make_program()
    static.save_inference_model(str(tmp_path / "model"), inputs, [out], executor)
    program, names, _ = static.load_inference_model(str(tmp_path / "model"))
    assert names == ["word", "dense"]
    assert len(program.global_block().all_parameters()) == 4
    with pytest.raises(ValueError, match="save_inference_model: no program has all of word, dense, x"):
        static.save_inference_model(str(tmp_path / "model"), inputs, static.data("x", [1]))


@pytest.mark.parametrize(
    ("suffix", "limit", "most", "words"),
    [
        (".set", resource.RLIMIT_FSIZE, 100, "File too large"),
        (".set", resource.RLIMIT_NOFILE, 0, "Too many open files"),
        (".inference", resource.RLIMIT_FSIZE, 100, "File too large"),
        (".inference", resource.RLIMIT_FSIZE, 30_000, "File too large"),  # the program is the larger file
    ],
)
def test_file_that_can_not_be_saved_is_named_and_the_old_one_stays(
    tmp_path: Path, suffix: str, limit: int, most: int, words: str
) -> None:
    executor, inputs, out = make_program()
    for _ in range(200):
        out = out + 1.0
    model = str(tmp_path / "m")

    def save() -> None:
        if suffix == ".set":
            static.save(static.default_main_program(), model)
        else:
            static.save_inference_model(model, inputs, [out], executor)

    save()
    before = {path: path.read_bytes() for path in Path(model + suffix).iterdir()}
    own = resource.getrlimit(limit)
    resource.setrlimit(limit, (most, own[1]))
    try:
        with pytest.raises(
            OSError, match=rf"(?s){re.escape(model + suffix)}.*{words}|{words}.*'{re.escape(model + suffix)}"
        ):
            save()
    finally:
        resource.setrlimit(limit, own)
    assert {path: path.read_bytes() for path in Path(model + suffix).iterdir()} == before


def test_pdparams_of_another_model_change_nothing(tmp_path: Path) -> None:
    make_program()
    main = static.default_main_program()
    parameters = get_parameters(main, "test")
    before = {name: parameters[name] for name in parameters}
    *_, last = before
    write_pdparams(tmp_path / "m.pdparams", {n: one + 1 for n, one in before.items()} | {last: np.ones(77)})
    with pytest.raises(ValueError, match=rf"m\.pdparams: {last} has the shape \(77,\), the program"):
        static.load(main, str(tmp_path / "m"))
    for name, values in before.items():
        np.testing.assert_array_equal(parameters[name], values)


def test_lacking_input_is_named(tmp_path: Path) -> None:
    _, inputs, out = make_program()
    with pytest.raises(ValueError, match="save_inference_model: dense is needed too; add it to feed_vars"):
        static.save_inference_model(str(tmp_path / "model"), inputs[:1], out)


def spoil(folder: Path, text: bytes) -> None:
    """Put another program into a model, with the right digest."""
    (path,) = folder.glob("program-*.json")
    path.write_bytes(text)
    manifest = read_manifest(folder)
    parts = [entry for entry in manifest.files if entry.name != path.name]
    write_manifest(folder, replace(manifest, files=[*parts, hash_file(Content(path))]))


@given(st.data())
def test_model_of_anything_is_a_program_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "spoilt"
    whole, model = folder / "whole.json", folder / "model.inference"
    if not folder.exists():
        executor, inputs, out = make_program()
        static.save_inference_model(str(folder / "model"), inputs, [out], executor)
        shutil.copy(next(model.glob("program-*.json")), whole)
    program = json.loads(whole.read_text())
    if data.draw(st.booleans()):
        i = data.draw(st.integers(0, len(program["values"]) - 1))
        program["values"][i] = data.draw(spoilt(program["values"][i]))
        text = json.dumps(program).encode()
    else:
        text = data.draw(
            damaged(json.dumps(program).encode()) | spoilt(program).map(lambda x: json.dumps(x).encode())
        )
    spoil(model, text)
    try:
        found, names, fetches = static.load_inference_model(str(folder / "model"))
    except ValueError as e:
        assert str(model) in str(e)
    else:
        assert all(isinstance(one, static.Variable) for one in [*found.graph, *fetches])
        assert all(isinstance(name, str) for name in names)


def test_damaged_model_is_named(tmp_path: Path) -> None:
    executor, inputs, out = make_program()
    static.save_inference_model(str(tmp_path / "model"), inputs, out, executor)
    folder = tmp_path / "model.inference"
    (path,) = folder.glob("program-*.json")
    data = json.loads(path.read_text())
    cases = {
        json.dumps(
            {**data, "values": data["values"][1:]}
        ): "load_inference_model: the program has no value 'word'",
        json.dumps({**data, "values": [{"name": "x"}]}): "model.inference is damaged: 'params'",
        "{}": "is not an inference model of this version",
        **dict.fromkeys(["[" * 100_000, "1" * 5000, "\xff"], "model.inference is no inference model"),
    }
    for text, words in cases.items():
        spoil(folder, text.encode("latin-1"))
        with pytest.raises(ValueError, match=words):
            static.load_inference_model(str(tmp_path / "model"))
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(ValueError, match=f"{path} is not the file of manifest.json"):
        static.load_inference_model(str(tmp_path / "model"))
