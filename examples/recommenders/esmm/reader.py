"""Lines of click, purchase and pairs of field and id as samples; each field has one id or more, 0 is none."""

import pslaunch.runtime.distributed.fleet as fleet


class Reader(fleet.MultiSlotDataGenerator):
    """All ids of a field are its slot's."""

    def init(self, config):
        self.fields = config["hyper_parameters.num_field"]

    def generate_sample(self, line):
        def read():
            click, purchase, *pairs = line.split(",")
            ids = [[] for _ in range(self.fields)]
            for pair in pairs:
                field, one = pair.split(":")
                ids[int(field) - 1].append(int(one))
            slots = [(f"field_{i}", own or [0]) for i, own in enumerate(ids)]
            yield [*slots, ("click", [int(click)]), ("purchase", [int(purchase)])]

        return read
