"""PaddlePaddle Fleet by its names: `from pslaunch.runtime import fleet` (docs/fleet.md)."""

from ...process.settings import set_part
from .. import base
from ..base.life import FLEET
from ..base.role_maker import PaddleCloudRoleMaker, Role, UserDefinedRoleMaker
from . import metrics
from .data_generator import MultiSlotDataGenerator, MultiSlotStringDataGenerator
from .distributed_strategy import DistributedStrategy, StrategyFactory, distributed_optimizer
from .persistables import load_persistables, save_inference_model, save_persistables
from .util_base import UtilBase

set_part({})  # from now on this is a Fleet program
init = FLEET.init
is_server = FLEET.is_server
is_worker = FLEET.is_worker
is_first_worker = FLEET.is_first_worker
worker_num = nranks = world_size = FLEET.worker_num
worker_index = rank = FLEET.worker_index
worker_endpoints = FLEET.worker_endpoints
server_num = FLEET.server_num
server_index = FLEET.server_index
server_endpoints = FLEET.server_endpoints
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
