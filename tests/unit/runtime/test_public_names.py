"""Public names: those that `dir()` shows, errors for others, and Fleet's modules in `distributed`."""

from __future__ import annotations

import functools
import importlib
import inspect
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType

import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime import PUBLIC
from pslaunch.runtime.paddle2 import fleet

MODULES = [name for name in dir(paddle) if inspect.ismodule(getattr(paddle, name))]


def find_place(name: str) -> tuple[ModuleType, str]:
    """Return the module of a public name, and the name in it."""
    path, _, last = f"pslaunch.runtime.{name}".rpartition(".")
    return importlib.import_module(path), last


INNER = ["optimizer.lr", "nn.functional", "nn.initializer", "static.nn", "fleet.base.role_maker"]


@pytest.mark.parametrize(
    "name",
    [
        "layer.crf",
        "optimizer.LBFGS",
        "dataset.mnist",
        "reader.creator.recordio",
        "dataset.imikolov.fetch",
    ],
)
def test_a_name_that_is_not_there_is_answered_with_those_that_are(name: str) -> None:
    place, last = find_place(name)
    with pytest.raises(AttributeError) as raised:
        getattr(place, last)
    begin, every = f"paddle.{name} is not in this runtime; ", f"it has {', '.join(dir(place))}"
    assert re.fullmatch(
        rf"{re.escape(begin)}(did you mean \w+\?|use .+|{re.escape(every)})", str(raised.value)
    )
    assert "".join(traceback.format_exception_only(raised.value)).count("id you mean") <= 1


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("layer.embeddings", "embedding"),
        ("static.nn.sparse_embeding", "sparse_embedding"),
        ("concatt", "concat"),
    ],
)
def test_nearest_name_comes_first(name: str, near: str) -> None:
    with pytest.raises(AttributeError, match=rf"not in this runtime; did you mean {near}\?"):
        getattr(*find_place(name))


@pytest.mark.parametrize("name", paddle._INSTEAD)
def test_an_absent_name_of_paddle_is_answered_with_its_substitute(name: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"not in this runtime; use {paddle._INSTEAD[name]}")):
        getattr(*find_place(name))
    first = re.match(r"[a-z][\w.]+|CPUPlace", paddle._INSTEAD[name].removeprefix("the "))
    assert first
    if "()" not in paddle._INSTEAD[name]:
        functools.reduce(getattr, first[0].split("."), paddle)


@pytest.mark.parametrize("name", ["shape", "slice", "nn.functional.gelu", "static.nn.sequence_pad"])
def test_names_of_like_letters_are_no_substitutes(name: str) -> None:
    try:
        getattr(*find_place(name))
    except AttributeError as e:
        assert "did you mean" not in str(e)


@pytest.mark.parametrize("module", [*MODULES, "reader.creator", "dataset.imikolov", *INNER])
def test_dir_shows_public_names_alone(module: str) -> None:
    place = importlib.import_module(f"pslaunch.runtime.{module}")
    assert dir(place) == sorted(place.__all__)
    assert all(getattr(place, name) is not None for name in place.__all__)


def test_dir_of_layer_in_words() -> None:
    assert {"data", "embedding", "concat", "fc", "classification_cost"} < set(dir(paddle.layer))
    assert not {"annotations", "itertools", "make_config"} & set(dir(paddle.layer))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_another_one_of_the_same_module(name: str) -> None:
    """In a new process: nothing else has imported the module, or another one by this name."""
    code = (
        f"import pslaunch.runtime.{name} as public, importlib, sys\n"
        f"place = importlib.import_module('pslaunch.runtime.{PUBLIC[name]}')\n"
        "assert public is place and place.__spec__.name == place.__name__, place\n"
        f"assert sys.modules['pslaunch.runtime.{name}'] is place\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_private_modules_have_no_public_name() -> None:
    """They would be found in the folder of a public package, a second time."""
    for name in ("fleet.life", "static.executor", "nn.layers"):
        with pytest.raises(ModuleNotFoundError, match=f"No module named 'pslaunch.runtime.{name}'"):
            importlib.import_module(f"pslaunch.runtime.{name}")


def test_pickles_by_public_names_have_the_same_classes() -> None:
    kind = importlib.import_module("pslaunch.runtime.data_type").InputType
    assert pickle.loads(b"cpslaunch.runtime.data_type\nInputType\n.") is kind
    assert pickle.loads(pickle.dumps(kind)) is kind


PAGE = (Path(__file__).parents[3] / "docs/fleet.md").read_text()
STATEMENTS = re.findall(r"\| `(import pslaunch\.[^`]+)` \|$", PAGE, re.MULTILINE)
assert len(STATEMENTS) == 5


@pytest.mark.parametrize("name", ["fleet", *(name for name in PUBLIC if name.startswith("fleet."))])
def test_modules_of_fleet_are_the_same_in_their_place_of_paddlepaddle(name: str) -> None:
    found = importlib.import_module(f"pslaunch.runtime.distributed.{name}")
    assert found is importlib.import_module(f"pslaunch.runtime.{name}")
    assert found is importlib.import_module(f"pslaunch.runtime.{PUBLIC[name]}")
    assert paddle.distributed.fleet is fleet
    assert isinstance(fleet.util, fleet.UtilBase)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_import_statements_of_the_page_work_in_a_new_process(statement: str) -> None:
    subprocess.run([sys.executable, "-c", statement], check=True)


@pytest.mark.parametrize("name", ["launch", "fleet.launch", "fleet.base.launch"])
def test_missing_modules_are_refused_in_pythons_words(name: str) -> None:
    whole = f"pslaunch.runtime.distributed.{name}"
    with pytest.raises(ModuleNotFoundError, match=rf"^No module named '{re.escape(whole)}'$"):
        importlib.import_module(whole)
