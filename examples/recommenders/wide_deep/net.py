"""Wide and deep (Cheng et al., 2016): a linear part beside hidden layers."""

import math

import pslaunch.runtime as paddle
import pslaunch.runtime.nn as nn


class WideDeepLayer(nn.Layer):
    """The wide part has the numbers, the deep part the numbers and rows of one table."""

    def __init__(self, feature_number, feature_dim, dense_dim, num_field, layer_sizes):
        super().__init__()
        self.feature_dim = feature_dim
        truncated = nn.initializer.TruncatedNormal(mean=0.0, std=1.0 / math.sqrt(dense_dim))
        self.wide_part = nn.Linear(dense_dim, 1, weight_attr=paddle.ParamAttr(initializer=truncated))
        self.embedding = nn.Embedding(
            feature_number,
            feature_dim,
            sparse=True,
            weight_attr=paddle.ParamAttr(
                name="SparseFeatFactors", initializer=nn.initializer.Uniform(-0.1, 0.1)
            ),
        )
        sizes = [feature_dim * num_field + dense_dim, *layer_sizes, 1]
        self.layers = []
        for i in range(len(sizes) - 1):
            normal = nn.initializer.Normal(std=1.0 / math.sqrt(sizes[i]))
            linear = nn.Linear(sizes[i], sizes[i + 1], weight_attr=paddle.ParamAttr(initializer=normal))
            self.layers.append(self.add_sublayer(f"linear_{i}", linear))
            if i < len(layer_sizes):
                self.layers.append(self.add_sublayer(f"act_{i}", nn.ReLU()))

    def forward(self, sparse_inputs, dense_input):
        """Return a score for each sample, [n, 1]."""
        rows = [paddle.reshape(self.embedding(one), shape=[-1, self.feature_dim]) for one in sparse_inputs]
        deep = paddle.concat(x=[*rows, dense_input], axis=1)
        for layer in self.layers:
            deep = layer(deep)
        return paddle.add(x=self.wide_part(dense_input), y=deep)
