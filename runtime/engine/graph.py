"""Values and programs: the description of a computation, which both faces build and plan.py computes.

A value is the result of one operation (`ops/`) on other values. A program holds values in the order of their
definition. Neither has numbers of a batch or values of parameters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from ..shared.env import suggest
from .param_config import ParamConfig

Kind = Literal["float", "id"]
BATCH = -1  # the free size of a batch, in shapes; always first
FREE = -1  # a size behind it that each run has anew, of data and of what depends on it


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Value:
    """Result of an operation: an input of other operations, and of a fetch by its name.

    `op` names a class of `ops/`; "data" is an input of the program. `attrs` are that class's options.
    `shape` begins with BATCH, unless the size does not depend on the batch: (BATCH, 26, 9), (). Other sizes
    of data may be FREE.
    `kind`: "float" values are float32, "id" values int64, such as ids, labels and counts.
    `is_sequence`: each sample has a number of items of its own; `shape[1:]` is then the shape of one item.
    `params` are the parameters that the operation itself reads, in the order that its class defines.
    `number` counts the values of this process, in the order of their definition.

    Values are compared and hashed by identity. A face may derive a class from it, to add methods.
    """

    name: str
    op: str
    shape: tuple[int, ...]
    inputs: tuple[Value, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    kind: Kind = "float"
    is_sequence: bool = False
    params: tuple[ParamConfig, ...] = ()
    number: int = field(init=False, default_factory=itertools.count().__next__)

    def __post_init__(self) -> None:
        fixed = self.shape[1:] if self.has_batch else self.shape
        may_be_free = self.op == "data" or any(FREE in one.shape[1:] for one in self.inputs)
        if any(size < 1 and not (size == FREE and may_be_free) for size in fixed):
            raise ValueError(f"{self.name}: shape {list(self.shape)}; only sizes of data may be free")
        if self.is_sequence and (not self.has_batch or FREE in fixed):
            raise ValueError(f"{self.name}: of a sequence only the batch is free, not {list(self.shape)}")

    @property
    def has_batch(self) -> bool:
        """True if there is one result for each sample of a batch."""
        return bool(self.shape) and self.shape[0] == BATCH

    @property
    def size(self) -> int:
        """Items of one sample, or of one item of a sequence, or of a value without a batch; 0: free."""
        return math.prod(max(0, size) for size in (self.shape[1:] if self.has_batch else self.shape))


V = TypeVar("V", bound=Value)


class Graph:
    """Values in the order of their definition, each after its inputs, with unique names.

    params: the parameters of all values by name, in the order of the values. Values that share a parameter
    give it equal configurations.
    """

    def __init__(self, values: Iterable[Value] = ()) -> None:
        self._values: dict[str, Value] = {}
        self.params: dict[str, ParamConfig] = {}
        for value in values:
            self.add(value)

    def add(self, value: V) -> V:
        """Add a value and return it.

        Raises ValueError, and adds nothing, if its name is taken, if an input is not in this program, or if
        one of its parameters differs from a known one of the same name.
        """
        if value.name in self._values:
            raise ValueError(f"two values have the name {value.name}; give one of them another name")
        for one in value.inputs:
            if one not in self:
                raise ValueError(f"{value.name}: its input {one.name} is in another program")
        found: dict[str, ParamConfig] = {}
        for config in value.params:
            self._check_param(value, config, found.setdefault(config.name, config))
            self._check_param(value, config, self.params.get(config.name, config))
        self._values[value.name] = value
        self.params.update(found)
        return value

    def _check_param(self, value: Value, config: ParamConfig, known: ParamConfig) -> None:
        if known.shape != config.shape:
            raise ValueError(
                f"parameter {config.name}: {value.name} needs {config.shape}, another value made it "
                f"{known.shape}; give it a name of its own"
            )
        if known != config:
            raise ValueError(
                f"parameter {config.name}: {value.name} gives it other attributes than an earlier value; "
                "values that share a parameter must give it equal attributes"
            )

    def get(self, name: str) -> Value:
        """Return the value of a name; raises KeyError that names the nearest one."""
        found = self._values.get(name)
        if found is None:
            hint = suggest(name, self._values)
            raise KeyError(f"the program has no value {name!r}{hint}")
        return found

    def __contains__(self, value: object) -> bool:
        return isinstance(value, Value) and self._values.get(value.name) is value

    def __iter__(self) -> Iterator[Value]:
        return iter(self._values.values())

    def __len__(self) -> int:
        return len(self._values)


def sort_values(outputs: Iterable[Value]) -> list[Value]:
    """Return all values below `outputs`, each once and after its inputs."""
    found: dict[Value, None] = {}
    waiting = [*outputs][::-1]  # next ones last
    while waiting:
        missing = [one for one in waiting[-1].inputs if one not in found]
        if missing and waiting[-1] not in found:
            waiting += reversed(missing)
        else:
            found[waiting.pop()] = None
    return list(found)
