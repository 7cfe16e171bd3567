"""The program of DNNLayer: the chance of a click."""

from net import DNNLayer

import pslaunch.runtime as paddle
import pslaunch.runtime.distributed.fleet as fleet
import pslaunch.runtime.nn.functional as F


class StaticModel:
    """Slots of one id have lod_level 1, as in PaddleRec."""

    def __init__(self, config):
        self.config = {name.rpartition(".")[2]: value for name, value in config.items()}

    def create_feeds(self, is_infer=False):
        sparse = [
            paddle.static.data(f"C{i}", shape=[None, 1], lod_level=1, dtype="int64")
            for i in range(1, self.config["sparse_inputs_slots"] + 1)
        ]
        label = paddle.static.data("label", shape=[None, 1], dtype="int64")
        dense = paddle.static.data(
            "dense_input", shape=[None, self.config["dense_input_dim"]], dtype="float32"
        )
        return [label, *sparse, dense]

    def net(self, inputs, is_infer=False):
        label, *sparse, dense = inputs
        model = DNNLayer(
            self.config["sparse_feature_number"],
            self.config["sparse_feature_dim"],
            self.config["dense_input_dim"],
            self.config["sparse_inputs_slots"],
            self.config["fc_sizes"],
        )
        scores = model(sparse, dense)
        self.predict = F.softmax(scores)
        auc, *_ = paddle.static.auc(input=self.predict, label=label, num_thresholds=2**12, slide_steps=20)
        if is_infer:
            return {"auc": auc}
        self._cost = paddle.mean(x=F.cross_entropy(input=scores, label=label))
        return {"cost": self._cost, "auc": auc}

    def create_optimizer(self, strategy=None):
        optimizer = paddle.optimizer.Adam(learning_rate=self.config["learning_rate"], lazy_mode=True)
        if strategy is not None:
            optimizer = fleet.distributed_optimizer(optimizer, strategy)
        optimizer.minimize(self._cost)
