"""Files of a Fleet training: the parameters of a program, those on servers included."""

from __future__ import annotations

from pathlib import Path

from ..run import MODEL_NAME
from ..static.program import Program
from ..static.saving import get_parameters


def save_persistables(
    executor: object, dirname: str, main_program: Program | None = None, mode: int = 0
) -> None:
    """Write the current parameters to `dirname`/parameters.tar, v2's form; for one worker alone.

    `executor` and `mode` have no effect. The file is complete, old or absent at any time.
    """
    get_parameters(main_program, "fleet.save_persistables").save(Path(dirname) / MODEL_NAME)


def load_persistables(executor: object, dirname: str, main_program: Program | None = None) -> None:
    """Take the parameters that save_persistables() wrote; on all workers, before fleet.init_worker()."""
    with (Path(dirname) / MODEL_NAME).open("rb") as f:
        get_parameters(main_program, "fleet.load_persistables").init_from_tar(f)
