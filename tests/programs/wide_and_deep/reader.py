"""Samples as Criteo's: dense numbers, words of slots, and a label that depends on both."""

import numpy as np
from model import DENSE, SLOTS, WORDS


def make_reader(seed, samples):
    weights = np.random.RandomState(0).normal(size=(SLOTS, WORDS))

    def read():
        random = np.random.RandomState(seed)
        for _ in range(samples):
            dense = random.rand(DENSE)
            words = np.minimum(random.zipf(1.3, SLOTS), WORDS) - 1
            score = weights[np.arange(SLOTS), words].sum() + 4 * (dense[0] - 0.5)
            label = int(random.rand() < 1 / (1 + np.exp(-score)))
            yield [dense.astype("float32"), *([w] for w in words), [label]]

    return read
