"""The keeper of a node whose agent a carrier has started: the agent dials the launcher, or node 0."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .. import messages
    from .loan import Loan

SECRET_VARIABLE = "PSLAUNCH_CARRIED_SECRET"  # the only variable that a carrier brings for us


def main(argv: Sequence[str]) -> int:
    """Run `task ORDER`, which a scheduler starts once on each node: be the keeper of the node.

    ORDER is JSON: the one of a rank process (rank.py), the names of the variables that have this `host`, its
    `number` and `of` how many, the beginnings of this task's `own` variables, which programs do not get, and
    the `asker`: the scheduler, whose signals end the job in order.
    """
    order, secret = json.loads(argv[0]), os.environ.pop(SECRET_VARIABLE, "")
    host, number, of = (os.environ[order[key]] for key in ("host", "number", "of"))
    for name in [name for name in os.environ if name.startswith(tuple(order["own"]))]:
        del os.environ[name]
    return keep(order, secret, host, [int(number)], int(of))


def keep(
    order: Mapping[str, Any],
    secret: str,
    host: str,
    ranks: Sequence[int],
    of: int,
    lent: Mapping[str, Loan] = {},
) -> int:
    """Be the keeper of an agent that dials: the first leads where the order says so.

    ranks: of the carrier's processes on this node, sorted.
    """
    from ..line import reach, wire
    from . import keeper

    dial: messages.DialMsg = {
        "type": "dial", "addrs": order["addrs"], "port": order["port"], "secret": secret,
        "host": host, "own": reach.list_candidates(""), "trainers": pack_ranks(ranks), "of": of,
    }  # fmt: skip
    read_fd, write_fd = os.pipe()
    os.write(write_fd, wire.encode_control(dial))
    os.close(write_fd)
    os.dup2(read_fd, 0)
    os.close(read_fd)
    after = () if order["head"] == "launcher" else ("lead",) if ranks[0] == 0 else ("dial",)
    words = [str(order["lost_after"]), str(order["grace"]), "dial", *after]
    return keeper.main(words, lent, order.get("asker", ""))


def pack_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as the bits of a number, since a proof has room for no more."""
    return f"{sum(1 << rank for rank in ranks):x}"
