"""Lines of numbers and ids as samples of the model; as a program it writes text of slots."""

import paddle.distributed.fleet as fleet
from model import DENSE, SLOTS

NAMES = ["dense_input", *(f"C{i}" for i in range(1, SLOTS + 1)), "label"]


def read_line(line):
    numbers = line.split(",")
    dense = [int(one) / 7 for one in numbers[:DENSE]]
    return [dense, *([int(one)] for one in numbers[DENSE:])]


class Slots(fleet.MultiSlotDataGenerator):
    def generate_sample(self, line):
        return lambda: [zip(NAMES, read_line(line), strict=True)]


if __name__ == "__main__":
    Slots().run_from_stdin()
