"""Files of static mode: the parameters of a program."""

from __future__ import annotations

from pathlib import Path

from ..parameters import Parameters
from .program import Program, default_main_program

SUFFIX = ".pdparams"


def get_parameters(program: Program | None, where: str) -> Parameters:
    """Return the parameters of a program whose startup program was run."""
    own = default_main_program() if program is None else program
    found = own.startup.parameters if own.startup else None
    if found is None:
        raise RuntimeError(f"{where}: the program has no parameters yet; run its startup program first")
    return found


def save(program: Program, model_path: str, protocol: int = 4) -> None:
    """Write the parameters of a program to `model_path`.pdparams, a tar file of v2's form.

    `protocol` has no effect. The file is complete, old or absent at any time.
    """
    get_parameters(program, "static.save").save(Path(f"{model_path}{SUFFIX}"))


def load(program: Program, model_path: str, executor: object = None, var_list: None = None) -> None:
    """Take the parameters that static.save() wrote, before the first step with servers.

    `executor` has no effect.
    """
    if var_list is not None:
        raise ValueError("static.load: var_list is not in this runtime; leave it out")
    with Path(f"{model_path}{SUFFIX}").open("rb") as f:
        get_parameters(program, "static.load").init_from_tar(f)
