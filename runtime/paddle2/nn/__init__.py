"""Layer classes of static mode by PaddlePaddle 2's names."""

from ...engine.clip import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue
from ..program import initializer
from . import functional
from .layers import Embedding, HSigmoidLoss, Layer, LayerList, Linear, PReLU, Sequential, make_layer
from .weight_layers import GRU, LSTM, BatchNorm1D, BatchNorm2D, Conv1D, Conv2D, LayerNorm

__all__ = [
    "ELU", "GELU", "GRU", "LSTM", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1D", "BatchNorm2D",
    "ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue", "Conv1D", "Conv2D", "CosineSimilarity",
    "CrossEntropyLoss", "Dropout", "Embedding", "HSigmoidLoss", "KLDivLoss", "L1Loss", "Layer",
    "LayerList", "LayerNorm", "LeakyReLU", "Linear", "LogSigmoid", "LogSoftmax", "MSELoss", "Mish",
    "PReLU", "ReLU", "ReLU6", "Sequential", "Sigmoid", "Silu", "SmoothL1Loss", "Softmax", "Softplus",
    "Swish", "Tanh", "functional", "initializer",
]  # fmt: skip

ReLU = make_layer("ReLU", functional.relu)
Sigmoid = make_layer("Sigmoid", functional.sigmoid)
Tanh = make_layer("Tanh", functional.tanh)
Softmax = make_layer("Softmax", functional.softmax)
ELU = make_layer("ELU", functional.elu)
GELU = make_layer("GELU", functional.gelu)
LeakyReLU = make_layer("LeakyReLU", functional.leaky_relu)
LogSigmoid = make_layer("LogSigmoid", functional.log_sigmoid)
LogSoftmax = make_layer("LogSoftmax", functional.log_softmax)
Mish = make_layer("Mish", functional.mish)
ReLU6 = make_layer("ReLU6", functional.relu6)
Silu = make_layer("Silu", functional.silu)
Softplus = make_layer("Softplus", functional.softplus)
Swish = make_layer("Swish", functional.swish)
Dropout = make_layer("Dropout", functional.dropout)
CosineSimilarity = make_layer("CosineSimilarity", functional.cosine_similarity)
KLDivLoss = make_layer("KLDivLoss", functional.kl_div)
L1Loss = make_layer("L1Loss", functional.l1_loss)
MSELoss = make_layer("MSELoss", functional.mse_loss)
SmoothL1Loss = make_layer("SmoothL1Loss", functional.smooth_l1_loss)
BCELoss = make_layer("BCELoss", functional.binary_cross_entropy)
BCEWithLogitsLoss = make_layer("BCEWithLogitsLoss", functional.binary_cross_entropy_with_logits)
CrossEntropyLoss = make_layer("CrossEntropyLoss", functional.cross_entropy)
