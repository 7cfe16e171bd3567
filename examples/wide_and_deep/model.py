"""Wide and deep: the chance of a click from 13 numbers and 26 categories."""

from __future__ import annotations

import itertools
import math

from reader import DENSE, SPARSE

import pslaunch.runtime as paddle
import pslaunch.runtime.nn as nn
import pslaunch.runtime.nn.functional as F

DIM = 10  # of a category's row
LAYERS = (64, 64, 64)


class WideDeepLayer(nn.Layer):
    """The wide part is linear in the numbers; the deep part has rows of one table, and hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(DENSE, 1)
        self.embedding = nn.Embedding(
            None,  # a row for any category, by a hash of 64 bits
            DIM,
            sparse=True,
            weight_attr=paddle.ParamAttr(
                name="SparseFeatFactors", initializer=nn.initializer.Uniform(-0.1, 0.1)
            ),
        )
        sizes = [DIM * SPARSE + DENSE, *LAYERS, 1]
        self.linears = []
        for i, (rows, columns) in enumerate(itertools.pairwise(sizes)):
            normal = nn.initializer.Normal(std=1.0 / math.sqrt(rows))
            linear = nn.Linear(rows, columns, weight_attr=paddle.ParamAttr(initializer=normal))
            self.linears.append(self.add_sublayer(f"linear_{i}", linear))

    def forward(
        self, sparse_inputs: list[paddle.static.Variable], dense_input: paddle.static.Variable
    ) -> paddle.static.Variable:
        """Return the chance of a click, [n, 1]."""
        rows = [paddle.reshape(self.embedding(one), shape=[-1, DIM]) for one in sparse_inputs]
        deep = paddle.concat(x=[*rows, dense_input], axis=1)
        for linear in self.linears[:-1]:
            deep = F.relu(linear(deep))
        return F.sigmoid(paddle.add(self.wide(dense_input), self.linears[-1](deep)))


class WideDeepModel:
    """The program: its inputs, the chance of a click, the cost, and the loader of batches."""

    def net(self) -> None:
        """Add all to the default program."""
        dense_input = paddle.static.data(name="dense_input", shape=[None, DENSE], dtype="float32")
        sparse_inputs = [
            paddle.static.data(name=f"C{i}", shape=[None, 1], dtype="string") for i in range(1, SPARSE + 1)
        ]
        label = paddle.static.data(name="label", shape=[None, 1], dtype="int64")
        self.inputs = [dense_input, *sparse_inputs, label]
        self.loader = paddle.io.DataLoader.from_generator(feed_list=self.inputs, capacity=64, iterable=False)
        self.chance = WideDeepLayer()(sparse_inputs, dense_input)
        cost = F.log_loss(input=self.chance, label=paddle.cast(label, dtype="float32"))
        self.cost = paddle.mean(x=cost)
