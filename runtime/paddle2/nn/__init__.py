"""Layer classes of static mode by PaddlePaddle 2's names."""

from ...engine.clip import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue
from ..program import initializer
from . import functional
from .conv_layers import Conv1D, Conv2D
from .layers import (
    ELU,
    GELU,
    BCELoss,
    BCEWithLogitsLoss,
    CosineSimilarity,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    HSigmoidLoss,
    KLDivLoss,
    L1Loss,
    Layer,
    LayerList,
    LeakyReLU,
    Linear,
    LogSigmoid,
    LogSoftmax,
    Mish,
    MSELoss,
    PReLU,
    ReLU,
    ReLU6,
    Sequential,
    Sigmoid,
    Silu,
    SmoothL1Loss,
    Softmax,
    Softplus,
    Swish,
    Tanh,
)
from .norm_layers import BatchNorm1D, BatchNorm2D, LayerNorm
from .recurrent_layers import GRU, LSTM

__all__ = [
    "ELU", "GELU", "GRU", "LSTM", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1D", "BatchNorm2D",
    "ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue", "Conv1D", "Conv2D", "CosineSimilarity",
    "CrossEntropyLoss", "Dropout", "Embedding", "HSigmoidLoss", "KLDivLoss", "L1Loss", "Layer",
    "LayerList", "LayerNorm", "LeakyReLU", "Linear", "LogSigmoid", "LogSoftmax", "MSELoss", "Mish",
    "PReLU", "ReLU", "ReLU6", "Sequential", "Sigmoid", "Silu", "SmoothL1Loss", "Softmax", "Softplus",
    "Swish", "Tanh", "functional", "initializer",
]  # fmt: skip
