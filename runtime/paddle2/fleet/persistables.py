"""Files of a Fleet training: the parameters of a program, those on servers included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...client.run import MODEL_NAME
from ..program.program import Program, Variable, default_main_program, get_variable
from ..static.model_files import get_parameters
from ..static.model_files import save_inference_model as save_parts


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
