"""Static mode by PaddlePaddle 2's names: a program is described, then run by an executor (docs/fleet.md)."""

from ..nn.layers import create_parameter
from ..program.program import (
    Program,
    Variable,
    data,
    default_main_program,
    default_startup_program,
    program_guard,
)
from . import nn
from .executor import Executor, global_scope
from .measures import accuracy, auc, ctr_metric_bundle, user_auc
from .model_files import load, load_inference_model, save, save_inference_model, set_program_state

__all__ = [
    "Executor", "Program", "Variable", "accuracy", "auc", "create_parameter", "ctr_metric_bundle", "data",
    "default_main_program", "default_startup_program", "global_scope", "load", "load_inference_model", "nn",
    "program_guard", "save", "save_inference_model", "set_program_state", "user_auc",
]  # fmt: skip
