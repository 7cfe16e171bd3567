"""Lines of histories as samples, padded to `max_length` of the config; ids begin at 1, 0 is none."""

import pslaunch.runtime.distributed.fleet as fleet


class Reader(fleet.MultiSlotDataGenerator):
    """Histories are cut to their last items; the mask is 0 for these, and -1e9 for padding."""

    def init(self, config):
        self.length = config["hyper_parameters.max_length"]

    def generate_sample(self, line):
        def read():
            items, categories, (item,), (category,), label = (
                list(map(int, field.split())) for field in line.split(";")
            )
            count = min(len(items), self.length)
            padding = self.length - count
            yield [
                ("hist_item_seq", items[-count:] + [0] * padding),
                ("hist_cat_seq", categories[-count:] + [0] * padding),
                ("target_item", [item]),
                ("target_cat", [category]),
                ("label", [float(label[0])]),
                ("mask", [0.0] * count + [-1e9] * padding),
                ("target_item_seq", [item] * self.length),
                ("target_cat_seq", [category] * self.length),
            ]

        return read
