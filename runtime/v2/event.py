"""Events of `train` for its event handler, by the v2 names."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["BeginIteration", "BeginPass", "EndIteration", "EndPass", "TestResult"]


@dataclass(slots=True)
class BeginPass:
    """A pass begins."""

    pass_id: int


@dataclass(slots=True)
class EndPass:
    """A pass is over on all trainers; parameters are current. `cost`, `metrics`: this trainer's means."""

    pass_id: int
    cost: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class BeginIteration:
    """A batch was read."""

    pass_id: int
    batch_id: int


@dataclass(slots=True)
class EndIteration:
    """A step is done. `cost` and `metrics` are means over this trainer's batch."""

    pass_id: int
    batch_id: int
    cost: float
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class TestResult:
    """Result of `test`: means over all samples read."""

    __test__ = False  # not a test class for pytest

    cost: float
    metrics: dict[str, float] = field(default_factory=dict)
