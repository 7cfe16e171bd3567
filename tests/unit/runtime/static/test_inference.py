"""Inference models come back as they were written."""

from __future__ import annotations

import json
import re
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pslaunch.runtime as paddle
from pslaunch.runtime.paddle2 import static
from pslaunch.runtime.paddle2.nn import functional as F  # as in PaddlePaddle's pages
from support.hostile import damaged, spoilt


def make_program() -> tuple[static.Executor, list[static.Variable], static.Variable]:
    word, dense = static.data("word", [None, 2], "int64"), static.data("dense", [None, 3])
    static.data("label", [None, 1])
    row = paddle.reshape(static.nn.embedding(word, [9, 4], padding_idx=1), [-1, 8])
    hidden = static.nn.fc(paddle.concat([row, dense], axis=1), 5, activation="relu")
    weight = static.create_parameter([5, 5], "float32")
    out = F.softmax(paddle.matmul(hidden, weight, transpose_y=True))
    executor = static.Executor()
    executor.run(static.default_startup_program())
    return executor, [word, dense], out


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


@pytest.mark.parametrize(
    ("suffix", "limit", "most", "words"),
    [
        (".pdparams", resource.RLIMIT_FSIZE, 100, "File too large"),
        (".pdparams", resource.RLIMIT_NOFILE, 0, "Too many open files"),
        (".pdiparams", resource.RLIMIT_FSIZE, 100, "File too large"),
        (".pdmodel", resource.RLIMIT_FSIZE, 30_000, "File too large"),  # it is the larger file
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
        if suffix == ".pdparams":
            static.save(static.default_main_program(), model)
        else:
            static.save_inference_model(model, inputs, [out], executor)

    save()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    own = resource.getrlimit(limit)
    resource.setrlimit(limit, (most, own[1]))
    try:
        with pytest.raises(OSError, match=rf"{words}.*: '{re.escape(model + suffix)}'"):
            save()
    finally:
        resource.setrlimit(limit, own)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_lacking_input_is_named(tmp_path: Path) -> None:
    _, inputs, out = make_program()
    with pytest.raises(ValueError, match="save_inference_model: dense is needed too; add it to feed_vars"):
        static.save_inference_model(str(tmp_path / "model"), inputs[:1], out)


@given(st.data())
def test_model_of_anything_is_a_program_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "spoilt"
    path, whole = folder / "model.pdmodel", folder / "whole.json"
    if not folder.exists():
        executor, inputs, out = make_program()
        static.save_inference_model(str(folder / "model"), inputs, [out], executor)
        path.rename(whole)
    model = json.loads(whole.read_text())
    if data.draw(st.booleans()):
        i = data.draw(st.integers(0, len(model["values"]) - 1))
        model["values"][i] = data.draw(spoilt(model["values"][i]))
        text = json.dumps(model).encode()
    else:
        text = data.draw(
            damaged(json.dumps(model).encode()) | spoilt(model).map(lambda x: json.dumps(x).encode())
        )
    path.write_bytes(text)
    try:
        program, names, fetches = static.load_inference_model(str(folder / "model"))
    except ValueError as e:
        assert str(path) in str(e)
    else:
        assert all(isinstance(one, static.Variable) for one in [*program.graph, *fetches])
        assert all(isinstance(name, str) for name in names)


def test_deep_or_huge_models_are_named(tmp_path: Path) -> None:
    for text in ("[" * 100_000, "1" * 5000, "\xff"):
        (tmp_path / "model.pdmodel").write_text(text, encoding="latin-1")
        with pytest.raises(ValueError, match=r"model\.pdmodel is damaged"):
            static.load_inference_model(str(tmp_path / "model"))


def test_damaged_model_is_named(tmp_path: Path) -> None:
    executor, inputs, out = make_program()
    static.save_inference_model(str(tmp_path / "model"), inputs, out, executor)
    path = tmp_path / "model.pdmodel"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "values": data["values"][1:]}))
    with pytest.raises(ValueError, match=r"load_inference_model: the program has no value 'word'"):
        static.load_inference_model(str(tmp_path / "model"))
    path.write_text(json.dumps({**data, "values": [{"name": "x"}]}))
    with pytest.raises(ValueError, match=r"model.pdmodel is damaged: 'params'"):
        static.load_inference_model(str(tmp_path / "model"))
    path.write_text("{}")
    with pytest.raises(ValueError, match="is not an inference model of this runtime"):
        static.load_inference_model(str(tmp_path / "model"))
