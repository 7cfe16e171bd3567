"""Static mode by PaddlePaddle 2's names: a program is described, then run by an executor (docs/fleet.md)."""

from .. import publish
from ..nn.layers import create_parameter
from . import nn
from .data import data
from .executor import Executor, global_scope
from .inference import load_inference_model, save_inference_model
from .metric import accuracy, auc
from .program import (
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    program_guard,
)
from .saving import load, save

__all__ = [
    "Executor",
    "Program",
    "Variable",
    "accuracy",
    "auc",
    "create_parameter",
    "data",
    "default_main_program",
    "default_startup_program",
    "global_scope",
    "load",
    "load_inference_model",
    "nn",
    "program_guard",
    "save",
    "save_inference_model",
]
publish(__name__, __all__)
