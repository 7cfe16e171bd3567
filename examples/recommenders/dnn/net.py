"""A deep network over ids and numbers."""

import math

import pslaunch.runtime as paddle
import pslaunch.runtime.nn as nn


class DNNLayer(nn.Layer):
    """Rows of one table and the numbers, then hidden layers."""

    def __init__(self, feature_number, feature_dim, dense_dim, num_field, layer_sizes):
        super().__init__()
        self.feature_dim = feature_dim
        self.embedding = nn.Embedding(
            feature_number,
            feature_dim,
            sparse=True,
            weight_attr=paddle.ParamAttr(
                name="SparseFeatFactors", initializer=nn.initializer.Uniform(-0.1, 0.1)
            ),
        )
        sizes = [feature_dim * num_field + dense_dim, *layer_sizes, 2]
        self.layers = []
        for i in range(len(sizes) - 1):
            normal = nn.initializer.Normal(std=1.0 / math.sqrt(sizes[i]))
            linear = nn.Linear(sizes[i], sizes[i + 1], weight_attr=paddle.ParamAttr(initializer=normal))
            self.layers.append(self.add_sublayer(f"linear_{i}", linear))
            if i < len(layer_sizes):
                self.layers.append(self.add_sublayer(f"act_{i}", nn.ReLU()))

    def forward(self, sparse_inputs, dense_input):
        """Return two scores for each sample, [n, 2]."""
        rows = [paddle.reshape(self.embedding(one), shape=[-1, self.feature_dim]) for one in sparse_inputs]
        x = paddle.concat(x=[*rows, dense_input], axis=1)
        for layer in self.layers:
            x = layer(x)
        return x
