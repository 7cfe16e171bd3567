"""PaddlePaddle Fleet by its names: `from pslaunch.runtime import fleet` (docs/fleet.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...engine.ops.signature import R, make_function
from ...process.settings import set_part
from .. import base
from ..base.life import FLEET
from ..base.role_maker import PaddleCloudRoleMaker, Role, UserDefinedRoleMaker
from . import metrics
from .data_generator import MultiSlotDataGenerator, MultiSlotStringDataGenerator
from .distributed_strategy import DistributedStrategy, StrategyFactory, distributed_optimizer
from .persistables import load_persistables, save_inference_model, save_persistables
from .util_base import UtilBase


def _show(row: str, text: str, find: Callable[..., R]) -> Callable[..., R]:
    """Return a function of this process's part in the job."""
    return make_function(f"fleet.{row}", text, lambda **given: find(FLEET.get_part(), **given))


def _list(endpoints: Sequence[str], to_string: bool) -> list[str] | str:
    return ",".join(endpoints) if to_string else list(endpoints)


set_part({})  # from now on this is a Fleet program
init = FLEET.init
# fmt: off
is_server = _show("is_server", "True if this process is a server", lambda part: part.is_server)
is_worker = _show("is_worker", "True if this process is a worker", lambda part: not part.is_server)
is_first_worker = _show("is_first_worker", "True if this process is worker 0",
                        lambda part: not part.is_server and part.index == 0)
worker_num = nranks = world_size = _show("worker_num", "the number of workers", lambda part: part.workers)
server_num = _show("server_num", "the number of servers; 0 if this worker trains alone",
                   lambda part: len(part.servers))
worker_index = rank = server_index = _show("worker_index", "the index of this process in its role",
                                           lambda part: part.index)
worker_endpoints = _show("worker_endpoints | to_string=False",
                         "host:port of each worker, joined with commas if `to_string`; none are needed",
                         lambda part, to_string: _list(part.worker_endpoints, to_string))
server_endpoints = _show("server_endpoints | to_string=False",
                         "host:port of each server, joined with commas if `to_string`",
                         lambda part, to_string: _list(part.servers, to_string))
# fmt: on
init_server = FLEET.init_server
run_server = FLEET.run_server
init_worker = FLEET.init_worker
barrier_worker = FLEET.barrier_worker
shrink = FLEET.shrink
stop_worker = FLEET.stop_worker
util = UtilBase()
all_reduce = util.all_reduce

__all__ = [
    "DistributedStrategy", "MultiSlotDataGenerator", "MultiSlotStringDataGenerator", "PaddleCloudRoleMaker",
    "Role", "StrategyFactory", "UserDefinedRoleMaker", "UtilBase", "all_reduce", "barrier_worker", "base",
    "distributed_optimizer", "init", "init_server", "init_worker", "is_first_worker", "is_server",
    "is_worker", "load_persistables", "metrics", "nranks", "rank", "run_server", "save_inference_model",
    "save_persistables", "server_endpoints", "server_index", "server_num", "shrink", "stop_worker", "util",
    "worker_endpoints", "worker_index", "worker_num", "world_size",
]  # fmt: skip
