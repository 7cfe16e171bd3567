"""Lines of a query, a document that fits it, and others, as samples of `max_length` words each; 0 is none."""

import pslaunch.runtime.distributed.fleet as fleet


class Reader(fleet.MultiSlotDataGenerator):
    """Words are ids from 1; of longer texts the first ones count."""

    def init(self, config):
        self.length = config["hyper_parameters.max_length"]

    def generate_sample(self, line):
        def read():
            texts = [list(map(int, text.split()))[: self.length] for text in line.split(";")]
            query, fit, *others = (words + [0] * (self.length - len(words)) for words in texts)
            slots = [(f"doc_neg_{i}", words) for i, words in enumerate(others)]
            yield [("query", query), ("doc_pos", fit), *slots]

        return read
