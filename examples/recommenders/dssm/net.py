"""Two towers (DSSM, Huang et al., CIKM 2013): query and document meet by their angle."""

import math

import pslaunch.runtime as paddle
import pslaunch.runtime.nn as nn
import pslaunch.runtime.nn.functional as F


class DSSMLayer(nn.Layer):
    """A tower for queries and one for documents, over the sum of the words' rows."""

    def __init__(self, words, dim, layer_sizes):
        super().__init__()
        spread = paddle.ParamAttr(name="words", initializer=nn.initializer.Uniform(-0.5, 0.5))
        self.embedding = nn.Embedding(words, dim, padding_idx=0, sparse=True, weight_attr=spread)
        self.query = self.make_layers("query", [dim, *layer_sizes])
        self.document = self.make_layers("document", [dim, *layer_sizes])

    def make_layers(self, name, sizes):
        layers = []
        for i in range(len(sizes) - 1):
            normal = nn.initializer.Normal(std=1.0 / math.sqrt(sizes[i]))
            linear = nn.Linear(sizes[i], sizes[i + 1], weight_attr=paddle.ParamAttr(initializer=normal))
            layers.append(self.add_sublayer(f"{name}_linear_{i}", linear))
            layers.append(self.add_sublayer(f"{name}_act_{i}", nn.Tanh()))
        return layers

    def climb(self, words, layers):
        """Return the vector of words by a tower, [n, size]."""
        x = paddle.sum(self.embedding(words), axis=1)
        for layer in layers:
            x = layer(x)
        return x

    def forward(self, query, documents):
        """Return the cosine of the query and each document, [n, documents]."""
        own = self.climb(query, self.query)
        cosines = [F.cosine_similarity(own, self.climb(one, self.document), axis=1) for one in documents]
        return paddle.concat([paddle.reshape(one, [-1, 1]) for one in cosines], axis=1)
