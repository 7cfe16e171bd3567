"""The program of ESMMLayer: chances of a click, and of a click with a purchase."""

from net import ESMMLayer

import pslaunch.runtime as paddle
import pslaunch.runtime.distributed.fleet as fleet
import pslaunch.runtime.nn.functional as F


class StaticModel:
    """Slots of any number of ids."""

    def __init__(self, config):
        self.config = {name.rpartition(".")[2]: value for name, value in config.items()}

    def create_feeds(self, is_infer=False):
        fields = [
            paddle.static.data(f"field_{i}", shape=[None, 1], lod_level=1, dtype="int64")
            for i in range(self.config["num_field"])
        ]
        click = paddle.static.data("click", shape=[None, 1], dtype="int64")
        purchase = paddle.static.data("purchase", shape=[None, 1], dtype="int64")
        return [*fields, click, purchase]

    def net(self, inputs, is_infer=False):
        *fields, click, purchase = inputs
        names = "sparse_feature_number", "sparse_feature_dim", "num_field", "ctr_fc_sizes", "cvr_fc_sizes"
        chances = ESMMLayer(*(self.config[name] for name in names))(fields)
        aucs, costs = [], []
        for chance, label in zip(chances, (click, purchase), strict=True):
            both = paddle.concat([1 - chance, chance], axis=1)
            aucs.append(paddle.static.auc(input=both, label=label)[0])
            costs.append(F.log_loss(input=chance, label=paddle.cast(label, dtype="float32")))
        shown = {"auc_ctr": aucs[0], "auc_ctcvr": aucs[1]}
        if is_infer:
            return shown
        self._cost = paddle.mean(paddle.add(*costs))
        return {"cost": self._cost, **shown}

    def create_optimizer(self, strategy=None):
        optimizer = paddle.optimizer.Adam(learning_rate=self.config["learning_rate"], lazy_mode=True)
        if strategy is not None:
            optimizer = fleet.distributed_optimizer(optimizer, strategy)
        optimizer.minimize(self._cost)
