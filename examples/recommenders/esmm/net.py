"""Entire space multi-task model (Ma et al., SIGIR 2018): purchases after clicks, learned from all samples."""

import math

import pslaunch.runtime as paddle
import pslaunch.runtime.nn as nn
import pslaunch.runtime.nn.functional as F


class ESMMLayer(nn.Layer):
    """One table for both tasks: the rows of a field are added up."""

    def __init__(self, feature_number, feature_dim, num_field, ctr_sizes, cvr_sizes):
        super().__init__()
        self.dim = feature_dim
        self.embedding = nn.Embedding(
            feature_number,
            feature_dim,
            sparse=True,
            weight_attr=paddle.ParamAttr(
                name="SparseFeatFactors", initializer=nn.initializer.Uniform(-0.1, 0.1)
            ),
        )
        self.ctr = self.make_layers("ctr", [feature_dim * num_field, *ctr_sizes, 2])
        self.cvr = self.make_layers("cvr", [feature_dim * num_field, *cvr_sizes, 2])

    def make_layers(self, name, sizes):
        layers = []
        for i in range(len(sizes) - 1):
            normal = nn.initializer.Normal(std=1.0 / math.sqrt(sizes[i]))
            linear = nn.Linear(sizes[i], sizes[i + 1], weight_attr=paddle.ParamAttr(initializer=normal))
            layers.append(self.add_sublayer(f"{name}_linear_{i}", linear))
            if i < len(sizes) - 2:
                layers.append(self.add_sublayer(f"{name}_act_{i}", nn.ReLU()))
        return layers

    def forward(self, inputs):
        """Return the chances of a click and of a purchase, both from all samples, [n, 1] each."""
        pooled = [paddle.static.nn.sequence_pool(self.embedding(one), pool_type="sum") for one in inputs]
        ctr = cvr = paddle.concat(x=[paddle.reshape(one, [-1, self.dim]) for one in pooled], axis=1)
        for layer in self.ctr:
            ctr = layer(ctr)
        for layer in self.cvr:
            cvr = layer(cvr)
        click = paddle.slice(F.softmax(ctr), axes=[1], starts=[1], ends=[2])
        after = paddle.slice(F.softmax(cvr), axes=[1], starts=[1], ends=[2])
        return click, paddle.multiply(click, after)
