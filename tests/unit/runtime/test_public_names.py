"""The v2 names that `dir()` shows, and the errors for names that are not there."""

from __future__ import annotations

import importlib

import pytest

import pslaunch.runtime as paddle

MODULES = [name for name in dir(paddle) if name not in ("init", "batch", "infer")]


@pytest.mark.parametrize(
    "name",
    [
        "networks",
        "evaluator",
        "image",
        "layer.lstmemory",
        "optimizer.AdaDelta",
        "data_type.sparse_binary_vector",
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
    assert str(raised.value) == (f"paddle.{name} is not in this runtime; it has {', '.join(dir(place))}")


@pytest.mark.parametrize("module", [*MODULES, "reader.creator", "dataset.imikolov"])
def test_dir_shows_public_names_alone(module: str) -> None:
    place = importlib.import_module(f"pslaunch.runtime.{module}")
    assert dir(place) == sorted(place.__all__)
    assert all(getattr(place, name) is not None for name in place.__all__)


def test_dir_of_layer_in_words() -> None:
    assert {"data", "embedding", "concat", "fc", "classification_cost"} < set(dir(paddle.layer))
    assert not {"annotations", "itertools", "make_config"} & set(dir(paddle.layer))
