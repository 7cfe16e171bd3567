"""The program of DeepFMLayer: the chance of a click."""

from net import DeepFMLayer

import pslaunch.runtime as paddle
import pslaunch.runtime.distributed.fleet as fleet
import pslaunch.runtime.nn.functional as F


class StaticModel:
    """Ids of 26 slots, and 13 numbers."""

    def __init__(self, config):
        self.config = {name.rpartition(".")[2]: value for name, value in config.items()}

    def create_feeds(self, is_infer=False):
        sparse = [
            paddle.static.data(f"C{i}", shape=[None, 1], dtype="int64")
            for i in range(1, self.config["sparse_inputs_slots"] + 1)
        ]
        label = paddle.static.data("label", shape=[None, 1], dtype="int64")
        dense = paddle.static.data(
            "dense_input", shape=[None, self.config["dense_input_dim"]], dtype="float32"
        )
        return [label, *sparse, dense]

    def net(self, inputs, is_infer=False):
        label, *sparse, dense = inputs
        model = DeepFMLayer(
            self.config["sparse_feature_number"],
            self.config["sparse_feature_dim"],
            self.config["dense_input_dim"],
            self.config["sparse_inputs_slots"],
            self.config["fc_sizes"],
        )
        chance = model(sparse, dense)
        both = paddle.concat(x=[1 - chance, chance], axis=1)
        auc, *_ = paddle.static.auc(input=both, label=label, num_thresholds=2**12, slide_steps=20)
        if is_infer:
            return {"auc": auc}
        cost = F.log_loss(input=chance, label=paddle.cast(label, dtype="float32"))
        self._cost = paddle.mean(x=cost)
        return {"cost": self._cost, "auc": auc}

    def create_optimizer(self, strategy=None):
        optimizer = paddle.optimizer.Adam(learning_rate=self.config["learning_rate"], lazy_mode=True)
        if strategy is not None:
            optimizer = fleet.distributed_optimizer(optimizer, strategy)
        optimizer.minimize(self._cost)
