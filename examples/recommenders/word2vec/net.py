"""Skip-gram with noise (Mikolov et al., NIPS 2013)."""

import pslaunch.runtime as paddle
import pslaunch.runtime.nn as nn


class Word2VecLayer(nn.Layer):
    """Vectors of words, and vectors and a bias of the words beside them."""

    def __init__(self, words, dim, neg_num):
        super().__init__()
        self.dim, self.neg_num = dim, neg_num
        uniform = nn.initializer.Uniform(-0.5 / dim, 0.5 / dim)
        zero = nn.initializer.Constant(value=0.0)
        attrs = [
            paddle.ParamAttr(name=name, initializer=how)
            for name, how in (("emb", uniform), ("emb_w", zero), ("emb_b", zero))
        ]
        self.embedding = nn.Embedding(words, dim, sparse=True, weight_attr=attrs[0])
        self.embedding_w = nn.Embedding(words, dim, sparse=True, weight_attr=attrs[1])
        self.embedding_b = nn.Embedding(words, 1, sparse=True, weight_attr=attrs[2])

    def forward(self, inputs):
        """Return scores of the true word, [n, 1], and of the noise, [n, neg_num]."""
        word, true, noise = inputs
        vector = paddle.squeeze(self.embedding(word), axis=[1])
        true_w = paddle.squeeze(self.embedding_w(true), axis=[1])
        true_b = paddle.squeeze(self.embedding_b(true), axis=[1])
        true_scores = paddle.add(paddle.sum(paddle.multiply(vector, true_w), axis=1, keepdim=True), true_b)
        noise_w = paddle.reshape(self.embedding_w(noise), shape=[-1, self.neg_num, self.dim])
        noise_b = paddle.reshape(self.embedding_b(noise), shape=[-1, self.neg_num])
        row = paddle.reshape(vector, shape=[-1, 1, self.dim])
        products = paddle.bmm(row, paddle.transpose(noise_w, perm=[0, 2, 1]))
        return true_scores, paddle.add(paddle.reshape(products, shape=[-1, self.neg_num]), noise_b)
