"""Checkpoints: the state of dense parameters and the rows of the same step, in one set of files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from pslaunch.runtime.files.sets import Set

from .session import get_session

DENSE = "dense.pt"  # in the set, with the number of the save in its name


def save(folder: str | Path, model: torch.nn.Module, optimizer: Any = None, extra: Any = None) -> None:
    """Write `state_dict` of model and optimizer, `extra`, and all that pservers have, after this step.

    All trainers call it between two steps; trainer 0 writes. A set that is there stays whole until then.
    """
    session = get_session()
    session.settle()
    session.make_tables()
    session.client.barrier()
    if session.client.trainer == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer and optimizer.state_dict()}
        state["extra"] = extra
        content = io.BytesIO()
        torch.save(state, content)
        session.client.save(folder, {DENSE: content.getvalue()})
    session.client.barrier()


def load(folder: str | Path, model: torch.nn.Module, optimizer: Any = None) -> Any:
    """Take what save() has written, and return `extra`; all trainers call it, before the first lookup.

    Before a DistributedOptimizer is made: it takes the values from the pservers.
    """
    session = get_session()
    if not session.is_empty:
        raise RuntimeError("load() comes before the first lookup, and before a DistributedOptimizer is made")
    session.client.load(folder)
    state = torch.load(io.BytesIO(Set(Path(folder)).read_file(DENSE)), map_location="cpu")
    model.load_state_dict(state["model"])
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])
    return state["extra"]
