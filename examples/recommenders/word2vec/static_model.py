"""The program of Word2VecLayer."""

from net import Word2VecLayer

import pslaunch.runtime as paddle
import pslaunch.runtime.distributed.fleet as fleet
import pslaunch.runtime.nn.functional as F


class StaticModel:
    """The cost of telling a true word from noise."""

    def __init__(self, config):
        self.config = {name.rpartition(".")[2]: value for name, value in config.items()}

    def create_feeds(self, is_infer=False):
        word = paddle.static.data("input_word", shape=[None, 1], dtype="int64")
        true = paddle.static.data("true_label", shape=[None, 1], dtype="int64")
        noise = paddle.static.data("neg_label", shape=[None, self.config["neg_num"]], dtype="int64")
        return [word, true, noise]

    def net(self, inputs, is_infer=False):
        names = "sparse_feature_number", "sparse_feature_dim", "neg_num"
        true, noise = Word2VecLayer(*(self.config[name] for name in names))(inputs)
        ones = paddle.full(shape=[paddle.shape(true)[0], 1], fill_value=1.0)
        zeros = paddle.full(shape=[paddle.shape(true)[0], self.config["neg_num"]], fill_value=0.0)
        true_cost = F.binary_cross_entropy_with_logits(true, ones, reduction="none")
        noise_cost = F.binary_cross_entropy_with_logits(noise, zeros, reduction="none")
        cost = paddle.add(paddle.sum(true_cost, axis=1), paddle.sum(noise_cost, axis=1))
        self._cost = paddle.mean(cost)
        return {"cost": self._cost}

    def create_optimizer(self, strategy=None):
        rate = paddle.optimizer.lr.ExponentialDecay(
            learning_rate=self.config["learning_rate"], gamma=self.config["decay_rate"]
        )
        optimizer = paddle.optimizer.SGD(learning_rate=rate)
        if strategy is not None:
            optimizer = fleet.distributed_optimizer(optimizer, strategy)
        optimizer.minimize(self._cost)
