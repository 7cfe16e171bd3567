"""DeepFM (Guo et al., IJCAI 2017): a factorization machine and hidden layers on the same vectors."""

import math

import pslaunch.runtime as paddle
import pslaunch.runtime.nn as nn
import pslaunch.runtime.nn.functional as F


class DeepFMLayer(nn.Layer):
    """Both parts, and their sum."""

    def __init__(self, feature_number, feature_dim, dense_dim, num_field, layer_sizes):
        super().__init__()
        self.fm = FM(feature_number, feature_dim, dense_dim)
        self.dnn = DNN(feature_dim * (num_field + dense_dim), layer_sizes)
        self.bias = self.create_parameter(
            shape=[1], attr=paddle.ParamAttr(name="fm_bias"), default_initializer=nn.initializer.Constant(0.0)
        )

    def forward(self, sparse_inputs, dense_input):
        """Return the chance of a click, [n, 1]."""
        first_order, second_order, vectors = self.fm(sparse_inputs, dense_input)
        return F.sigmoid(first_order + second_order + self.dnn(vectors) + self.bias)


class FM(nn.Layer):
    """Weights of fields, and products of each pair of their vectors."""

    def __init__(self, feature_number, feature_dim, dense_dim):
        super().__init__()
        normal = nn.initializer.TruncatedNormal(mean=0.0, std=0.1 / math.sqrt(feature_dim))
        first, vectors, dense_first, dense_vectors = (
            paddle.ParamAttr(name=f"fm_{name}", initializer=normal)
            for name in ("first", "vectors", "dense_first", "dense_vectors")
        )
        self.embedding_one = nn.Embedding(feature_number, 1, padding_idx=0, sparse=True, weight_attr=first)
        self.embedding = nn.Embedding(
            feature_number, feature_dim, padding_idx=0, sparse=True, weight_attr=vectors
        )
        self.dense_w_one = self.create_parameter(shape=[dense_dim], attr=dense_first)
        self.dense_w = self.create_parameter(shape=[1, dense_dim, feature_dim], attr=dense_vectors)

    def forward(self, sparse_inputs, dense_input):
        """Return first and second order, [n, 1] each, and the vectors of all fields, [n, fields, dim]."""
        ids = paddle.concat(sparse_inputs, axis=1)
        dense_one = paddle.unsqueeze(paddle.multiply(dense_input, self.dense_w_one), axis=2)
        first_order = paddle.sum(self.embedding_one(ids), 1) + paddle.sum(dense_one, 1)
        dense_vectors = paddle.multiply(paddle.unsqueeze(dense_input, axis=2), self.dense_w)
        vectors = paddle.concat([self.embedding(ids), dense_vectors], 1)
        square_of_sum = paddle.square(paddle.sum(vectors, 1))
        sum_of_squares = paddle.sum(paddle.square(vectors), 1)
        second_order = 0.5 * paddle.sum(square_of_sum - sum_of_squares, 1, keepdim=True)
        return first_order, second_order, vectors


class DNN(nn.Layer):
    """Hidden layers over all vectors of a sample."""

    def __init__(self, width, layer_sizes):
        super().__init__()
        self.width = width
        sizes = [width, *layer_sizes, 1]
        self.layers = []
        for i in range(len(sizes) - 1):
            normal = nn.initializer.Normal(std=0.1 / math.sqrt(sizes[i]))
            linear = nn.Linear(sizes[i], sizes[i + 1], weight_attr=paddle.ParamAttr(initializer=normal))
            self.layers.append(self.add_sublayer(f"linear_{i}", linear))
            if i < len(layer_sizes):
                self.layers.append(self.add_sublayer(f"act_{i}", nn.ReLU()))

    def forward(self, vectors):
        x = paddle.reshape(vectors, [-1, self.width])
        for layer in self.layers:
            x = layer(x)
        return x
