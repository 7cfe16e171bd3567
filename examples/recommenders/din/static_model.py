"""The program of DINLayer: the chance of a click on an item."""

from net import DINLayer

import pslaunch.runtime as paddle
import pslaunch.runtime.distributed.fleet as fleet
import pslaunch.runtime.nn.functional as F

SEQUENCES = ("hist_item_seq", "hist_cat_seq", "target_item_seq", "target_cat_seq")


class StaticModel:
    """Histories padded to one length."""

    def __init__(self, config):
        self.config = {name.rpartition(".")[2]: value for name, value in config.items()}

    def create_feeds(self, is_infer=False):
        length = self.config["max_length"]
        hist_item, hist_cat, item_seq, cat_seq = (
            paddle.static.data(name, shape=[None, length], dtype="int64") for name in SEQUENCES
        )
        item = paddle.static.data("target_item", shape=[None, 1], dtype="int64")
        cat = paddle.static.data("target_cat", shape=[None, 1], dtype="int64")
        label = paddle.static.data("label", shape=[None, 1], dtype="float32")
        mask = paddle.static.data("mask", shape=[None, length, 1], dtype="float32")
        return [hist_item, hist_cat, item, cat, label, mask, item_seq, cat_seq]

    def net(self, inputs, is_infer=False):
        hist_item, hist_cat, item, cat, label, mask, item_seq, cat_seq = inputs
        model = DINLayer(
            self.config["item_count"],
            self.config["cat_count"],
            self.config["item_emb_size"],
            self.config["cat_emb_size"],
        )
        score = model(hist_item, hist_cat, item, cat, mask, item_seq, cat_seq)
        chance = F.sigmoid(score)
        both = paddle.concat([1 - chance, chance], axis=-1)
        auc, *_ = paddle.static.auc(input=both, label=paddle.cast(label, "int64"), slide_steps=20)
        if is_infer:
            return {"auc": auc}
        self._cost = F.binary_cross_entropy_with_logits(score, label, reduction="mean")
        return {"cost": self._cost, "auc": auc}

    def create_optimizer(self, strategy=None):
        rate = self.config["learning_rate"]
        decay = paddle.optimizer.lr.PiecewiseDecay(boundaries=[10000], values=[rate, rate / 4])
        optimizer = paddle.optimizer.Adam(learning_rate=decay, lazy_mode=True)
        if strategy is not None:
            optimizer = fleet.distributed_optimizer(optimizer, strategy)
        optimizer.minimize(self._cost)
