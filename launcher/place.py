"""Options by which later shells find jobs on other machines, as the backends have them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .backends.face import Face
from .errors import SpecError
from .options.typer_glue import report_usage_errors

if TYPE_CHECKING:
    from .options.spec import Elsewhere


def ask_place(command: Callable[..., None], faces: Sequence[Face]) -> Callable[..., None]:
    """Add the options that choose the place to ask; the command gets it as `elsewhere`, None if not given."""
    options = {name: said for face in faces for name, said in face.place.items()}

    @functools.wraps(command)
    def run(ctx: typer.Context, **values: Any) -> None:
        given = {name: text for name in options if (text := values.pop(name)) is not None}
        with report_usage_errors(ctx):
            elsewhere = _find_elsewhere(given, faces)
        command(ctx, elsewhere=elsewhere, **values)

    signature = inspect.signature(command, eval_str=True)
    own = [p for name, p in signature.parameters.items() if name != "elsewhere"]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None, typer.Option(f"--{name}", metavar=metavar, help=text, show_default=False)
            ],
        )
        for name, (metavar, text) in options.items()
    ]
    vars(run)["__signature__"] = signature.replace(parameters=[*own, *added])
    return run


def _find_elsewhere(given: dict[str, str], faces: Sequence[Face]) -> Elsewhere | None:
    """Return the place to ask for jobs; None if none is given."""
    asked = [face for face in faces if given.keys() & face.place.keys()]
    if not asked:
        return None
    if len(asked) > 1:
        one, other = (next(name for name in face.place if name in given) for face in asked[:2])
        raise SpecError(f"--{one} and --{other} are both given: only one place is asked")
    (face,) = asked
    return face.find_place(given, Path.cwd())
