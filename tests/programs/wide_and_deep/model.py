"""Wide and deep, as the model file of PaddlePaddle's quick start of parameter servers has it."""

import math

import paddle
import paddle.nn as nn
import paddle.nn.functional as F

DENSE, SLOTS, WORDS = 13, 26, 1000


class WideDeepLayer(nn.Layer):
    def __init__(self, sparse_feature_number, sparse_feature_dim, dense_feature_dim, num_field, layer_sizes):
        super().__init__()
        self.sparse_feature_dim = sparse_feature_dim
        self.wide_part = nn.Linear(
            in_features=dense_feature_dim,
            out_features=1,
            weight_attr=paddle.ParamAttr(
                initializer=nn.initializer.TruncatedNormal(mean=0.0, std=1.0 / math.sqrt(dense_feature_dim))
            ),
        )
        self.embedding = nn.Embedding(
            sparse_feature_number,
            sparse_feature_dim,
            sparse=True,
            weight_attr=paddle.ParamAttr(name="SparseFeatFactors", initializer=nn.initializer.Uniform()),
        )
        sizes = [sparse_feature_dim * num_field + dense_feature_dim, *layer_sizes, 1]
        acts = ["relu" for _ in range(len(layer_sizes))] + [None]
        self._mlp_layers = []
        for i in range(len(layer_sizes) + 1):
            linear = nn.Linear(
                in_features=sizes[i],
                out_features=sizes[i + 1],
                weight_attr=paddle.ParamAttr(
                    initializer=nn.initializer.Normal(std=1.0 / math.sqrt(sizes[i]))
                ),
            )
            self.add_sublayer(f"linear_{i}", linear)
            self._mlp_layers.append(linear)
            if acts[i] == "relu":
                act = nn.ReLU()
                self.add_sublayer(f"act_{i}", act)
                self._mlp_layers.append(act)

    def forward(self, sparse_inputs, dense_inputs):
        wide_output = self.wide_part(dense_inputs)
        sparse_embs = []
        for s_input in sparse_inputs:
            emb = self.embedding(s_input)
            emb = paddle.reshape(emb, shape=[-1, self.sparse_feature_dim])
            sparse_embs.append(emb)
        deep_output = paddle.concat(x=[*sparse_embs, dense_inputs], axis=1)
        for n_layer in self._mlp_layers:
            deep_output = n_layer(deep_output)
        prediction = paddle.add(x=wide_output, y=deep_output)
        return F.sigmoid(prediction)


class WideDeepModel:
    def net(self, is_train=True):
        dense_input = paddle.static.data(name="dense_input", shape=[None, DENSE], dtype="float32")
        sparse_inputs = [
            paddle.static.data(name=f"C{i}", shape=[None, 1], dtype="int64") for i in range(1, SLOTS + 1)
        ]
        label_input = paddle.static.data(name="label", shape=[None, 1], dtype="int64")
        self.inputs = [dense_input, *sparse_inputs, label_input]
        if is_train:
            self.loader = paddle.io.DataLoader.from_generator(
                feed_list=self.inputs, capacity=64, iterable=False, use_double_buffer=False
            )
        layer = WideDeepLayer(WORDS, 9, DENSE, SLOTS, [32, 16])
        pred = layer(sparse_inputs, dense_input)
        predict_2d = paddle.concat(x=[1 - pred, pred], axis=1)
        self.auc, self.batch_auc, self.states = paddle.static.auc(
            input=predict_2d, label=paddle.cast(label_input, "int64"), slide_steps=0
        )
        cost = F.log_loss(input=pred, label=paddle.cast(label_input, dtype="float32"))
        self.cost = paddle.mean(x=cost)
