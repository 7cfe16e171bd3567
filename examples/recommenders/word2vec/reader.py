"""Lines of words, which are ids from 1, as samples: a word, one beside it, and words drawn as noise."""

import random
import zlib

import pslaunch.runtime.distributed.fleet as fleet


class Reader(fleet.MultiSlotDataGenerator):
    """The noise depends on the line, so a second pass has the same."""

    def init(self, config):
        self.words = config["hyper_parameters.sparse_feature_number"]
        self.noise = config["hyper_parameters.neg_num"]
        self.window = config["hyper_parameters.window_size"]

    def generate_sample(self, line):
        def read():
            words = list(map(int, line.split()))
            draw = random.Random(zlib.crc32(line.strip().encode()))
            for i, word in enumerate(words):
                for other in words[max(0, i - self.window) : i] + words[i + 1 : i + 1 + self.window]:
                    noise = [draw.randrange(1, self.words) for _ in range(self.noise)]
                    yield [("input_word", [word]), ("true_label", [other]), ("neg_label", noise)]

        return read
