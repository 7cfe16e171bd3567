"""Lines of two labels and numbers, separated by commas, as samples."""

import pslaunch.runtime.distributed.fleet as fleet


class Reader(fleet.MultiSlotDataGenerator):
    """The labels of both tasks, after the numbers."""

    def init(self, config):
        pass

    def generate_sample(self, line):
        def read():
            first, second, *numbers = line.split(",")
            yield [
                ("input", list(map(float, numbers))),
                ("label_income", [int(first)]),
                ("label_marital", [int(second)]),
            ]

        return read
