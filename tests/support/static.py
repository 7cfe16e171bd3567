"""Static programs in tests: their startup program is run, and their parameters are read."""

from __future__ import annotations

from pslaunch.runtime import CPUPlace
from pslaunch.runtime.engine.parameters import Parameters
from pslaunch.runtime.paddle2 import static


def run_startup() -> static.Executor:
    """Run the default startup program, and return an executor."""
    executor = static.Executor(CPUPlace())
    assert executor.run(static.default_startup_program()) == []
    return executor


def get_parameters() -> Parameters:
    """Return the parameters of the default programs, whose startup program was run."""
    parameters = static.default_startup_program().parameters
    assert parameters is not None
    return parameters
