"""Optimizers of Fleet: the user's loss stays the reported one, and mistakes can be corrected."""

from __future__ import annotations

import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime.paddle2 import static
from pslaunch.runtime.paddle2.base.life import Fleet
from pslaunch.runtime.paddle2.fleet import PaddleCloudRoleMaker, UserDefinedRoleMaker, distributed_optimizer


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Worker 0 of 2 in a job with a server."""
    own = Fleet()
    own.init(UserDefinedRoleMaker(worker_num=2, server_endpoints=["127.0.0.1:6170"]))
    monkeypatch.setattr("pslaunch.runtime.paddle2.fleet.distributed_strategy.FLEET", own)
    return own


def test_wrong_loss_may_be_corrected_and_is_reported_whole(fleet: Fleet) -> None:
    main = static.Program()
    with static.program_guard(main, static.Program()):
        cost = static.nn.fc(static.data("x", [None, 3]), 1)
        optimizer = distributed_optimizer(paddle.optimizer.SGD(learning_rate=0.1))
        with pytest.raises(ValueError, match="minimize: 'cost' is not a variable"):
            optimizer.minimize("cost")
        with pytest.raises(ValueError, match="expected one value"):
            optimizer.minimize(cost)
        loss = paddle.mean(cost)
        optimizer.minimize(loss)
    assert main.training is not None
    assert main.training.loss is loss
    assert main.training.goal.attrs["scale"] == 0.5


def test_class_of_a_role_maker_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"PaddleCloudRoleMaker is a class; call it, PaddleCloudRoleMaker\(\)"
    ):
        Fleet().init(PaddleCloudRoleMaker)  # type: ignore[arg-type]  # wrong on purpose


def test_schedule_by_passes_is_refused() -> None:
    optimizer = paddle.optimizer.Momentum(
        momentum=0.0,
        learning_rate=0.1,
        learning_rate_schedule="pass_manual",
        learning_rate_args="1:1.0,2:0.5",
    )
    with pytest.raises(ValueError, match=r"pass_manual counts passes, .*; use manual, which counts samples"):
        distributed_optimizer(optimizer)
