"""Options by which later shells find jobs on other machines: `--conf`, `--namespace` and their like."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .errors import SpecError
from .options.typer_glue import report_usage_errors

if TYPE_CHECKING:
    from .options.spec import Elsewhere

OF_PLACE: Final[dict[str, tuple[str, str]]] = {
    "conf": ("FILE", "Ask the first host of this conf.py. [default: the jobs known on this machine]"),
    "namespace": ("NAME", "Ask the cluster for the jobs in this namespace. [default: the context's]"),
    "context": ("NAME", "Ask the cluster of this context. [default: the current one]"),
    "kubeconfig": ("FILE", "Ask the cluster of this kubeconfig. [default: KUBECONFIG, else ~/.kube/config]"),
}


def ask_place(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that choose the place to ask; the command gets it as `elsewhere`, None if not given."""

    @functools.wraps(command)
    def run(ctx: typer.Context, **values: Any) -> None:
        command(ctx, elsewhere=_find_elsewhere(ctx, *map(values.pop, OF_PLACE)), **values)

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
        for name, (metavar, text) in OF_PLACE.items()
    ]
    vars(run)["__signature__"] = signature.replace(parameters=[*own, *added])
    return run


def _find_elsewhere(
    ctx: Any, conf: str | None, namespace: str | None, context: str | None, kubeconfig: str | None
) -> Elsewhere | None:
    """Return the place to ask for jobs; None if none is given."""
    of_cluster = {"namespace": namespace, "context": context, "kubeconfig": kubeconfig}
    given = {name: text for name, text in of_cluster.items() if text is not None}
    with report_usage_errors(ctx):
        if conf is not None:
            from pathlib import Path

            from .options.fabric_spec import find_first_host

            if given:
                raise SpecError(
                    f"--conf and --{next(iter(given))} are both given: hosts or a cluster is asked"
                )
            return find_first_host(conf, Path.cwd())
        if given:
            from .options.k8s_spec import find_cluster

            return find_cluster(given)
    return None
