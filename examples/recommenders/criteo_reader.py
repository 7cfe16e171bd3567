"""Lines of Criteo's form as samples: a label, 26 ids and 13 numbers. Config: `sparse_feature_number`."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pslaunch.runtime.distributed.fleet as fleet

DENSE = 13


class Reader(fleet.MultiSlotDataGenerator):
    """Ids are hashes of the categories, from 1; a missing one is 0."""

    def init(self, config: dict[str, Any]) -> None:
        self.ids = config["hyper_parameters.sparse_feature_number"] - 1

    def generate_sample(self, line: str) -> Callable[[], Iterator[list[tuple[str, list[Any]]]]]:
        def read() -> Iterator[list[tuple[str, list[Any]]]]:
            label, *fields = line.rstrip("\n").split("\t")
            slots = [("label", [int(label)])]
            for i, field in enumerate(fields[DENSE:], 1):
                slots.append((f"C{i}", [1 + zlib.crc32(f"{i} {field}".encode()) % self.ids if field else 0]))
            numbers = [math.log1p(max(float(field or 0), 0.0)) for field in fields[:DENSE]]
            yield [*slots, ("dense_input", numbers)]

        return read
