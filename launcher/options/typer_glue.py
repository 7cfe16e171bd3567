"""Extensions of typer: commands that pass words on, and options from the table."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final

import typer
from typer.core import TyperCommand, TyperGroup

from .. import __version__
from ..errors import SpecError
from .args import find_nearest, split_command_line
from .options import OPTIONS, Option, get_options
from .refused import REFUSED

HELP_NAMES: Final = ("--help", "-h")

# Typer carries its own copy of click in some versions and depends on it in others.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


@contextlib.contextmanager
def report_usage_errors(ctx: Any) -> Iterator[None]:
    """Report SpecErrors as usage errors of the command."""
    try:
        yield
    except SpecError as e:
        ctx.fail(str(e))


def _print_help(ctx: Any) -> None:
    typer.echo(ctx.get_help())
    ctx.exit()


# Typer would import pydantic for the options of the next two, which takes longer than starting a job.


class Commands(TyperGroup):
    """A group of commands: help without arguments, and the nearest command for an unknown one."""

    absent: ClassVar[Mapping[str, str]] = {}  # messages for commands that do not exist yet

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] in HELP_NAMES:
            _print_help(ctx)
        if args[0] == "--version":
            typer.echo(f"pslaunch {__version__}")
            ctx.exit()
        if args[0] in self.absent:
            ctx.fail(self.absent[args[0]])
        if args[0] not in self.commands:
            near = find_nearest(args[0].strip("-").lower(), self.commands, cutoff=0.5)
            meant = f"; did you mean {near!r}?" if near else f"; commands: {', '.join(self.commands)}"
            ctx.fail(f"unknown command {args[0]!r}{meant}")
        ctx.args = args
        return args

    def invoke(self, ctx: Any) -> Any:
        name, *words = ctx.args
        with self.commands[name].make_context(name, words, parent=ctx) as inner:
            return inner.command.invoke(inner)


class JobCommand(TyperCommand):
    """A command that starts a job: unknown words are passed to the trainer and the program."""

    backend: str  # its options

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ours = get_options(self.backend)
        options = {name: option.values for name, option in ours.items()}
        aliases = {alias: name for name, option in ours.items() for alias in option.aliases}
        repeatable = {name for name, option in ours.items() if option.repeatable}
        others: dict[str, list[str]] = {}
        for option in OPTIONS:
            if option.name not in ours:
                others.setdefault(option.name, []).extend(option.backends)
        with report_usage_errors(ctx):
            split = split_command_line(
                args, {**options, "help": 0}, repeatable, others, aliases, REFUSED.get(self.backend, {})
            )
        if "--help" in split.ours:
            _print_help(ctx)
        ctx.meta["split"], ctx.meta["backend"] = split, self.backend
        return []

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options for its help; only there, since to make them takes 5 ms for each command."""
        return [*make_options(self.backend), *super().get_params(ctx)]


class PlainCommand(TyperCommand):
    """A command with the names of its arguments unchanged in its usage line."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        names = [str(p.metavar) for p in self.params if p.param_type_name == "argument"]
        return [self.options_metavar or "", *names]


class PassCommand(TyperCommand):
    """A command that passes all its words to another program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = args
        return args


def make_flag_option(name: str, text: str) -> Any:
    """Return an option without a value, off unless given."""
    return typer.Option(f"--{name}", help=f"{text} [default: off]", show_default=False)


def make_options(backend: str) -> list[Any]:
    """Return the options of a backend's command as typer makes them of a function's signature."""

    def command() -> None:
        pass

    options = [_make_parameter(option) for option in get_options(backend).values()]
    vars(command)["__signature__"] = inspect.Signature(options)
    alone = typer.Typer(add_completion=False)
    alone.command()(command)
    return list(typer.main.get_command(alone).params)


def _make_parameter(option: Option) -> inspect.Parameter:
    kind: Any = (list[str] | None if option.repeatable else str | None) if option.valued else bool
    said = typer.Option(
        f"--{option.name}",
        *option.aliases,
        metavar=option.metavar or None,
        help=option.text,
        show_default=False,
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None if option.valued else False,
        annotation=Annotated[kind, said],
    )
