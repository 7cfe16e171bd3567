"""Rows that a trainer has asked pservers for, without pservers."""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import Mock

import numpy as np
import pytest

from pslaunch.runtime.client.remote import RemoteUpdater
from pslaunch.runtime.engine import optimizer
from pslaunch.runtime.engine.param_config import ParamConfig
from pslaunch.runtime.engine.parameters import Parameters
from pslaunch.runtime.engine.updater import ParamRules

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
