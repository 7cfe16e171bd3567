"""The v2 names that `dir()` shows, and the errors for names that are not there."""

from __future__ import annotations

import importlib
import inspect
import re
import traceback

import pytest

import pslaunch.runtime as paddle

MODULES = [name for name in dir(paddle) if inspect.ismodule(getattr(paddle, name))]


INNER = ["optimizer.lr", "nn.functional", "nn.initializer", "static.nn", "fleet.base.role_maker"]


@pytest.mark.parametrize(
    "name",
    [
        "networks",
        "evaluator",
        "image",
        "layer.lstmemory",
        "optimizer.AdaDelta",
        "optimizer.lr.CyclicLR",
        "data_type.sparse_float_vector_sequence",
        "dataset.uci_housing",
        "activation.Exp",
        "attr.Hook",
        "trainer.Trainer",
        "parameters.load",
        "reader.pipe_reader",
        "reader.creator.recordio",
        "dataset.imikolov.fetch",
        "event.EndForwardBackward",
    ],
)
def test_a_name_that_is_not_there_is_answered_with_those_that_are(name: str) -> None:
    *path, last = name.split(".")
    place = importlib.import_module(".".join(["pslaunch.runtime", *path]))
    with pytest.raises(AttributeError) as raised:
        getattr(place, last)
    begin, every = f"paddle.{name} is not in this runtime; ", f"it has {', '.join(dir(place))}"
    assert re.fullmatch(rf"{re.escape(begin)}(did you mean \w+\?|{re.escape(every)})", str(raised.value))
    assert "".join(traceback.format_exception_only(raised.value)).count("id you mean") <= 1


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("layer.embeddings", "embedding"),
        ("static.default_program", "default_main_program"),
        ("static.nn.sparse_embeding", "sparse_embedding"),
        ("nn.functional.softmax_cross_entropy", "softmax_with_cross_entropy"),
        ("fleet.init_workers", "init_worker"),
        ("add_m", "add_n"),
    ],
)
def test_nearest_name_comes_first(name: str, near: str) -> None:
    *path, last = name.split(".")
    with pytest.raises(AttributeError, match=rf"not in this runtime; did you mean {near}\?"):
        getattr(importlib.import_module(".".join(["pslaunch.runtime", *path])), last)


@pytest.mark.parametrize("module", [*MODULES, "reader.creator", "dataset.imikolov", *INNER])
def test_dir_shows_public_names_alone(module: str) -> None:
    place = importlib.import_module(f"pslaunch.runtime.{module}")
    assert dir(place) == sorted(place.__all__)
    assert all(getattr(place, name) is not None for name in place.__all__)


def test_dir_of_layer_in_words() -> None:
    assert {"data", "embedding", "concat", "fc", "classification_cost"} < set(dir(paddle.layer))
    assert not {"annotations", "itertools", "make_config"} & set(dir(paddle.layer))
