"""Deep and cross network (Wang et al., ADKDD 2017)."""

import math

import pslaunch.runtime as paddle
import pslaunch.runtime.nn as nn
import pslaunch.runtime.nn.functional as F


class DCNLayer(nn.Layer):
    """Products of the input with itself up to a degree, beside hidden layers."""

    def __init__(self, feature_number, feature_dim, dense_dim, num_field, layer_sizes, cross_num):
        super().__init__()
        self.feature_dim, self.cross_num = feature_dim, cross_num
        self.width = feature_dim * num_field + dense_dim
        self.embedding = nn.Embedding(
            feature_number,
            feature_dim,
            sparse=True,
            weight_attr=paddle.ParamAttr(
                name="SparseFeatFactors", initializer=nn.initializer.Uniform(-0.1, 0.1)
            ),
        )
        small = nn.initializer.Normal(std=0.1 / math.sqrt(self.width))
        self.layer_w = self.create_parameter(
            shape=[self.width], attr=paddle.ParamAttr(name="cross_w", initializer=small)
        )
        self.layer_b = self.create_parameter(
            shape=[self.width], attr=paddle.ParamAttr(name="cross_b"), is_bias=True
        )
        sizes = [self.width, *layer_sizes]
        self.layers = []
        for i in range(len(layer_sizes)):
            normal = nn.initializer.Normal(std=1.0 / math.sqrt(sizes[i]))
            linear = nn.Linear(sizes[i], sizes[i + 1], weight_attr=paddle.ParamAttr(initializer=normal))
            self.layers.append(self.add_sublayer(f"linear_{i}", linear))
            self.layers.append(self.add_sublayer(f"act_{i}", nn.ReLU()))
        self.last = nn.Linear(self.width + layer_sizes[-1], 1)

    def cross(self, x):
        """Return x0 (x w) + b + x, repeated from x = x0; and the squares of x w, for the cost."""
        first, squares = x, 0.0
        for _ in range(self.cross_num):
            weighed = paddle.multiply(x, self.layer_w)
            product = paddle.multiply(first, paddle.sum(weighed, axis=1, keepdim=True))
            x = paddle.add(paddle.add(product, self.layer_b), x)
            squares += paddle.mean(paddle.square(weighed))
        return x, squares

    def forward(self, sparse_inputs, dense_input):
        """Return the chance of a click, [n, 1], and the squares."""
        rows = [paddle.reshape(self.embedding(one), shape=[-1, self.feature_dim]) for one in sparse_inputs]
        x = paddle.concat(x=[*rows, dense_input], axis=1)
        crossed, squares = self.cross(x)
        for layer in self.layers:
            x = layer(x)
        return F.sigmoid(self.last(paddle.concat([x, crossed], axis=-1))), squares
