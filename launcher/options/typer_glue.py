"""Extensions of typer: groups of commands, commands with errors in our words, and their parameters.

The list of commands needs nothing else of this folder: for its speed the rest is imported where it is used.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from .. import __version__
from ..errors import SpecError

HELP_NAMES: Final = ("--help", "-h")
PROGRAM_OPTIONS: Final[Mapping[str, str]] = {
    "--version": "Print the version.",
    "--install-completion [SHELL]": "Let bash, zsh or fish complete words; this terminal's unless named.",
    "--show-completion [SHELL]": "Print the script for that.",
}

# Typer carries its own copy of click in some versions and depends on it in others.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


@contextlib.contextmanager
def report_usage_errors(ctx: Any) -> Iterator[None]:
    try:
        yield
    except SpecError as e:
        ctx.fail(str(e))


def print_help(ctx: Any) -> None:
    typer.echo(ctx.get_help())
    ctx.exit()


# Typer would import pydantic for the options of a group, which takes longer than starting a job.


class Listed(NamedTuple):
    """A command as its group lists it. It is made only when it is invoked, from the words after its name."""

    text: str  # its help; "": it is not listed
    make: Callable[[Sequence[str]], Any]  # raises SpecError


class Commands(TyperGroup):
    """A group of commands: help without arguments, and the nearest command for an unknown one."""

    def __init__(
        self,
        name: str,
        text: str,
        names: Sequence[str],
        find: Callable[[str], Listed],
        find_added: Callable[[], Iterable[str]] = tuple,
        meant: Mapping[str, str] = {},
        headings: Mapping[str, Sequence[str]] = {"Commands": ()},
    ) -> None:
        """find: returns a command by its name. find_added: returns names of further ones; slow.

        meant: command lines, by words for them that are no commands of this group; "" is for a program.
        headings: those of its help, with the commands under them; the first has all others.
        """
        settings = {"help_option_names": list(HELP_NAMES)}
        super().__init__(name=name, help=text, rich_markup_mode=None, context_settings=settings)
        self._names, self._find, self._find_added, self._meant = names, find, find_added, meant
        self._headings = headings
        self.texts = {"-h, --help": "Print this text.", **(PROGRAM_OPTIONS if name == "pslaunch" else {})}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell completes a word
            ctx.meta["words"] = args
            return []
        if not args or args[0] in HELP_NAMES:
            print_help(ctx)
        if args[0] in ("--install-completion", "--show-completion"):
            from .completion import offer_script

            offer_script(ctx, *args[:2])
        if args[0] == "--version":
            typer.echo(f"pslaunch {__version__}")
            ctx.exit()
        names = self._names
        if args[0] not in names and args[0] not in (names := self.list_commands(ctx)):
            ctx.fail(self._explain(ctx.command_path, args, names))
        ctx.args = args
        return args

    def _explain(self, path: str, args: list[str], names: Sequence[str]) -> str:
        """Return the message for a first word that is no command."""
        from pslaunch.runtime.shared.env import find_near

        word, rest = args[0].strip("-").lower(), args[1:]
        if word.endswith(".py") or args[0] == "-m":
            word, rest = "", args
        elif args[0].startswith("-") and (command := next(filter(names.__contains__, rest), "")):
            return f"{args[0]} before the command: options follow it, as in {path} {command} {args[0]}"
        near = self._meant.get(word) or find_near(word, names, 0.5)
        if word in self._meant and "," not in near:
            near = " ".join([near, *rest])
        meant = f"did you mean {near!r}?" if near else f"commands: {', '.join(names)}"
        return f"unknown command {args[0]!r}; {meant}"

    def list_commands(self, _ctx: Any) -> list[str]:
        return [*self._names, *(name for name in self._find_added() if name not in self._names)]

    def get_command(self, _ctx: Any, name: str, words: Sequence[str] = ()) -> Any:
        """Return a command, made for these words. Raises SpecError."""
        return self._find(name).make(words)

    def invoke(self, ctx: Any) -> Any:
        name, *words = ctx.args
        with report_usage_errors(ctx):
            command = self.get_command(ctx, name, words)
        with command.make_context(name, words, parent=ctx) as inner:
            return inner.command.invoke(inner)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        from .completion import find_words

        return find_words(self, ctx, ctx.meta["words"], incomplete)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        with formatter.section("Options"):
            formatter.write_dl([*self.texts.items()])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in self._headings}
        of = {name: heading for heading, names in self._headings.items() for name in names}
        for name in self.list_commands(ctx):
            try:
                text = self._find(name).text
            except SpecError as e:  # of another package
                text = str(e)
            if summary := " ".join(text.strip().partition("\n\n")[0].split()):
                rows[of.get(name, next(iter(rows)))].append((name, summary))
        for heading, listed in rows.items():
            with formatter.section(heading):
                formatter.write_dl(listed)


class PlainCommand(TyperCommand):
    """A command with the names of its arguments unchanged in its usage line, and errors in our words."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().parse_args(ctx, args)
        except UsageError as e:
            ctx.fail(self._explain(ctx, e))

    def _explain(self, ctx: Any, error: Any) -> str:
        """Return an error of click with its remedy."""
        from pslaunch.runtime.shared.env import suggest

        known = {name: p for p in self.params if p.param_type_name == "option" for name in p.opts}
        name, argument = getattr(error, "option_name", None), getattr(error, "param", None)
        if name in known:
            metavar = known[name].metavar
            return f"{name} needs a value: {name}={metavar}" if metavar else f"{name} takes no value"
        if name:
            return f"unknown option {name}{suggest(name, known, '; options: ' + ', '.join(known), 0.7)}"
        usage = f"usage: {ctx.command_path} {' '.join(self.collect_usage_pieces(ctx))}"
        if argument:
            jobs = "; pslaunch jobs lists the jobs" if argument.metavar == "JOB" else ""
            return f"{argument.metavar} is missing; {usage}{jobs}"
        return f"too many words: {error.message.rpartition('(')[2].rstrip(')')}; {usage}"

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        names = [str(p.metavar) for p in self.params if p.param_type_name == "argument"]
        return [self.options_metavar or "", *names]


def make_flag_option(name: str, text: str, *aliases: str) -> Any:
    """Return an option without a value, off unless given."""
    return typer.Option(f"--{name}", *aliases, help=f"{text} [default: off]", show_default=False)


def make_typer_command(
    function: Callable[..., None], parameters: Iterable[inspect.Parameter] = (), **settings: Any
) -> Any:
    """Return the command that typer makes of a function; parameters: of one that takes any, after `ctx`."""
    if given := [*parameters]:
        ctx = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        vars(function)["__signature__"] = inspect.Signature([ctx, *given])
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(cls=PlainCommand, **settings)(function)
    return typer.main.get_command(alone)


def make_text_option(name: str, metavar: str, text: str) -> inspect.Parameter:
    said = typer.Option(f"--{name}", metavar=metavar, help=text, show_default=False)
    return make_parameter(name, str | None, said, None)


def make_parameter(
    name: str, kind: Any, said: Any, default: Any = inspect.Parameter.empty
) -> inspect.Parameter:
    """Return a parameter of a function; said: what typer is told about it."""
    annotation = Annotated[kind, said]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
