"""Files of a Fleet training: the parameters of a program, those on servers included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..program.program import Program, Variable, default_main_program, get_variable
from ..static.model_files import get_parameters
from ..static.model_files import save_inference_model as save_parts


def save_persistables(
    executor: object, dirname: str, main_program: Program | None = None, mode: int = 0
) -> None:
    """Write the parameters and the optimizer's state to the folder `dirname`; for worker 0 alone.

    Each server writes its own part there. `executor` and `mode` have no effect. A set that is there stays
    whole until the new one is (docs/checkpoint.md).
    """
    get_parameters(main_program, "fleet.save_persistables").save(dirname)


def load_persistables(executor: object, dirname: str, main_program: Program | None = None) -> None:
    """Take what save_persistables() wrote; on all workers, before fleet.init_worker().

    Raises ValueError that names the file and what is wrong.
    """
    get_parameters(main_program, "fleet.load_persistables").load(dirname)


def save_inference_model(
    executor: object,
    dirname: str,
    feeded_var_names: Sequence[str],
    target_vars: Sequence[Variable],
    main_program: Program | None = None,
    export_for_deployment: bool = True,
    mode: int = 0,
) -> None:
    """Write static.save_inference_model()'s files `dirname`/model.*; for one worker alone.

    `executor`, `export_for_deployment` and `mode` have no effect.
    """
    program = default_main_program() if main_program is None else main_program
    where = "fleet.save_inference_model"
    feeds: list[Any] = [get_variable(program, name, where) for name in feeded_var_names]
    save_parts(str(Path(dirname) / "model"), feeds, target_vars, program=program)
