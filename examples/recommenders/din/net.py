"""Deep interest network (Zhou et al., KDD 2018): attention of an item to a user's history."""

import pslaunch.runtime as paddle
import pslaunch.runtime.nn as nn
import pslaunch.runtime.nn.functional as F


class DINLayer(nn.Layer):
    """The items of the history weighed by their fit to the target item, then hidden layers."""

    def __init__(self, item_count, cat_count, item_size, cat_size):
        super().__init__()
        self.size = item_size + cat_size
        self.item_emb = nn.Embedding(item_count, item_size, sparse=True, weight_attr=self.spread("item_emb"))
        self.cat_emb = nn.Embedding(cat_count, cat_size, sparse=True, weight_attr=self.spread("cat_emb"))
        zero = paddle.ParamAttr(name="item_b", initializer=nn.initializer.Constant(value=0.0))
        self.item_b = nn.Embedding(item_count, 1, sparse=True, weight_attr=zero)
        self.attention = self.make_layers("att", [4 * self.size, 80, 40, 1])
        self.history = nn.Linear(self.size, self.size)
        self.layers = self.make_layers("con", [2 * self.size, 80, 40, 1])

    def spread(self, name):
        return paddle.ParamAttr(name=name, initializer=nn.initializer.Uniform(-0.5, 0.5))

    def make_layers(self, name, sizes):
        layers = []
        for i in range(len(sizes) - 1):
            uniform = paddle.ParamAttr(initializer=nn.initializer.XavierUniform())
            linear = nn.Linear(sizes[i], sizes[i + 1], weight_attr=uniform)
            layers.append(self.add_sublayer(f"{name}_linear_{i}", linear))
            if i < len(sizes) - 2:
                layers.append(self.add_sublayer(f"{name}_act_{i}", nn.Sigmoid()))
        return layers

    def forward(self, hist_item, hist_cat, item, cat, mask, item_seq, cat_seq):
        """Return a score for each sample, [n, 1]. The sequences are [n, k], the mask [n, k, 1]."""
        history = paddle.concat([self.item_emb(hist_item), self.cat_emb(hist_cat)], axis=2)
        target_seq = paddle.concat([self.item_emb(item_seq), self.cat_emb(cat_seq)], axis=2)
        target = paddle.concat([self.item_emb(item), self.cat_emb(cat)], axis=2)
        x = paddle.concat([history, target_seq, history - target_seq, history * target_seq], axis=2)
        for layer in self.attention:
            x = layer(x)
        scores = paddle.transpose(paddle.add(x, mask), perm=[0, 2, 1])  # [n, 1, k]
        weights = F.softmax(paddle.scale(scores, scale=self.size**-0.5))
        pooled = paddle.reshape(paddle.matmul(weights, history), shape=[-1, self.size])
        x = paddle.concat([self.history(pooled), paddle.reshape(target, shape=[-1, self.size])], axis=1)
        for layer in self.layers:
            x = layer(x)
        return x + paddle.reshape(self.item_b(item), shape=[-1, 1])
