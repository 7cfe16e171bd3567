"""Names of `distributed`: those that are refused name their substitute."""

from __future__ import annotations

import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime import fleet, static


def test_datasets_name_their_substitute() -> None:
    for make in (paddle.distributed.QueueDataset, paddle.distributed.InMemoryDataset):
        with pytest.raises(
            NotImplementedError, match=f"{make.__name__} is not .* io.DataLoader.from_generator"
        ):
            make()
    with pytest.raises(NotImplementedError, match=r"Executor\.train_from_dataset is not in this runtime"):
        static.Executor().train_from_dataset(None)


def test_fleet_is_found_in_its_place_of_paddlepaddle() -> None:
    assert paddle.distributed.fleet is fleet
