"""The program of DSSMLayer: which of several documents fits the query."""

from net import DSSMLayer

import pslaunch.runtime as paddle
import pslaunch.runtime.distributed.fleet as fleet
import pslaunch.runtime.nn.functional as F

SHARPNESS = 5.0


class StaticModel:
    """The first document fits."""

    def __init__(self, config):
        self.config = {name.rpartition(".")[2]: value for name, value in config.items()}

    def create_feeds(self, is_infer=False):
        names = ["query", "doc_pos", *(f"doc_neg_{i}" for i in range(self.config["neg_num"]))]
        return [
            paddle.static.data(name, shape=[None, self.config["max_length"]], dtype="int64") for name in names
        ]

    def net(self, inputs, is_infer=False):
        query, *documents = inputs
        names = "sparse_feature_number", "sparse_feature_dim", "fc_sizes"
        cosines = DSSMLayer(*(self.config[name] for name in names))(query, documents)
        chances = F.softmax(cosines * SHARPNESS, axis=1)
        fit = paddle.slice(chances, axes=[1], starts=[0], ends=[1])
        self._cost = paddle.mean(-paddle.log(fit))
        return {"cost": self._cost, "hit": paddle.mean(fit)}

    def create_optimizer(self, strategy=None):
        optimizer = paddle.optimizer.Adam(learning_rate=self.config["learning_rate"], lazy_mode=True)
        if strategy is not None:
            optimizer = fleet.distributed_optimizer(optimizer, strategy)
        optimizer.minimize(self._cost)
