"""Rows that a trainer has asked pservers for, without pservers."""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import Mock

import numpy as np
import pytest

from pslaunch.runtime.client.remote import RemoteUpdater
from pslaunch.runtime.engine import clip, optimizer
from pslaunch.runtime.engine.param_config import ParamConfig
from pslaunch.runtime.engine.parameters import Parameters
from pslaunch.runtime.engine.updater import ParamRules, Watch

pytestmark = pytest.mark.usefixtures("fresh")

KEYS = np.arange(4, dtype=np.uint64)
CONFIGS = {"e": ParamConfig(name="e", rows=50, cols=3, sparse=True)}


@pytest.mark.parametrize("call", ["push_pull", "ask"])
def test_rows_of_an_interrupted_call_are_read_anew(call: str) -> None:
    client = Mock()
    updater = RemoteUpdater(
        ParamRules(CONFIGS, frozenset(CONFIGS), optimizer.SGD(learning_rate=1.0)),
        Parameters(CONFIGS),
        client,
        on_connected=lambda: None,
        guard=nullcontext,
    )
    updater.start()
    rows = np.full((4, 3), 2.0, np.float32)
    client.pull_tables.return_value = {"e": rows}
    assert updater.fetch({"e": KEYS}, {"e": KEYS})["e"] is rows
    getattr(client, call).side_effect = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        if call == "push_pull":
            updater.update({}, {"e": (KEYS, rows)}, 1)
        else:
            updater._ask_rows({"e": KEYS})
    assert updater.fetch({"e": KEYS}, {})["e"] is rows
    assert client.pull_tables.call_count == 2


@pytest.mark.parametrize(
    ("rule", "norm", "rows", "value", "goes"),
    [
        ("warn", None, 300, 1.0, True),
        ("warn", None, 2, 1.0, False),  # too small for a call of its own
        ("warn", None, 300, np.nan, False),  # the watch names it first
        ("skip", None, 300, 1.0, False),  # another gradient may have NaN
        ("warn", clip.ClipGradByGlobalNorm(1.0), 300, 1.0, False),  # of all
    ],
)
def test_a_gradient_that_needs_no_other_goes_out_as_soon_as_it_is_complete(
    rule: str, norm: clip.ClipGradByNorm | None, rows: int, value: float, goes: bool
) -> None:
    configs = {"w": ParamConfig(name="w", rows=rows, cols=300), "b": ParamConfig(name="b", rows=1, cols=3)}
    client = Mock(pushed=set())
    updater = RemoteUpdater(
        ParamRules(configs, frozenset(), optimizer.SGD(learning_rate=1.0, grad_clip=norm)),
        Parameters(configs),
        client,
        on_connected=lambda: None,
        guard=nullcontext,
    )
    updater.watch = Watch(rule, 0, print)
    updater.start()
    grads = {name: np.full((config.rows, config.cols), value, np.float32) for name, config in configs.items()}
    updater.fetch({}, {})
    updater.progress(7, {"w": grads["w"]})
    assert client.push_early.called == goes
    if goes:
        (pushed, values, samples, factor), _ = client.push_early.call_args
        assert (list(pushed), list(values), samples, factor) == (["w"], ["w"], 7, 1.0)
    updater.update(grads, {}, 7)
    assert client.push_pull.call_args.args[0].keys() == configs.keys()
