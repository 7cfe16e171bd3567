"""Layer classes of static mode by PaddlePaddle 2's names."""

from ...engine.clip import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue
from ..program import initializer
from . import functional
from .layers import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    HSigmoidLoss,
    Layer,
    LayerList,
    Linear,
    ReLU,
    Sequential,
    Sigmoid,
    Softmax,
    Tanh,
)
from .norm_layers import BatchNorm1D, BatchNorm2D, LayerNorm

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "BatchNorm1D", "BatchNorm2D", "ClipGradByGlobalNorm", "ClipGradByNorm",
    "ClipGradByValue", "CrossEntropyLoss", "Dropout", "Embedding", "HSigmoidLoss", "Layer", "LayerList",
    "LayerNorm", "Linear", "ReLU", "Sequential", "Sigmoid", "Softmax", "Tanh", "functional", "initializer",
]  # fmt: skip
