"""The program of MMoELayer: two chances."""

from net import MMoELayer

import pslaunch.runtime as paddle
import pslaunch.runtime.distributed.fleet as fleet
import pslaunch.runtime.nn.functional as F


class StaticModel:
    """The cost is the sum of those of both tasks."""

    def __init__(self, config):
        self.config = {name.rpartition(".")[2]: value for name, value in config.items()}

    def create_feeds(self, is_infer=False):
        numbers = paddle.static.data("input", shape=[None, self.config["feature_size"]], dtype="float32")
        income = paddle.static.data("label_income", shape=[None, 1], dtype="int64")
        marital = paddle.static.data("label_marital", shape=[None, 1], dtype="int64")
        return [numbers, income, marital]

    def net(self, inputs, is_infer=False):
        numbers, *labels = inputs
        names = "feature_size", "expert_num", "expert_size", "tower_size", "gate_num"
        chances = MMoELayer(*(self.config[name] for name in names))(numbers)
        aucs, costs = [], []
        for chance, label in zip(chances, labels, strict=True):
            aucs.append(paddle.static.auc(input=chance, label=label)[0])
            likely = paddle.slice(chance, axes=[1], starts=[1], ends=[2])
            costs.append(paddle.mean(F.log_loss(input=likely, label=paddle.cast(label, "float32"))))
        shown = {"auc_income": aucs[0], "auc_marital": aucs[1]}
        if is_infer:
            return shown
        self._cost = costs[0] + costs[1]
        return {"cost": self._cost, **shown}

    def create_optimizer(self, strategy=None):
        optimizer = paddle.optimizer.Adam(learning_rate=self.config["learning_rate"])
        if strategy is not None:
            optimizer = fleet.distributed_optimizer(optimizer, strategy)
        optimizer.minimize(self._cost)
