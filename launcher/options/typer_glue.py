"""Extensions of typer: groups of commands, and commands whose options are rows of options.py.

The list of commands needs nothing else of this folder: for its speed the rest is imported where it is used.
Typer's own options would need pydantic, which takes longer to import than a job to start.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from .. import __version__
from ..errors import SpecError

if TYPE_CHECKING:
    from .options import Option

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


class Commands(TyperGroup):
    """A group of commands: help without arguments, and the nearest command for an unknown one."""

    def __init__(
        self,
        name: str,
        text: str,
        names: Mapping[str, Sequence[str]],
        find: Callable[[str], Any],
        find_added: Callable[[], Iterable[str]] = tuple,
        meant: Mapping[str, str] = {},
    ) -> None:
        """names: of its commands, by headings. find: returns a command; raises SpecError.

        find_added: returns names of further commands, for the first heading; slow.
        meant: command lines, by words for them that are no commands of this group; "" is for a program.
        """
        settings = {"help_option_names": list(HELP_NAMES)}
        super().__init__(name=name, help=text, rich_markup_mode=None, context_settings=settings)
        self._headings, self._find, self._find_added, self._meant = names, find, find_added, meant
        self._names = [name for names in self._headings.values() for name in names]
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

    def get_command(self, _ctx: Any, name: str) -> Any:
        """Return a command. Raises SpecError."""
        return self._find(name)

    def invoke(self, ctx: Any) -> Any:
        name, *words = ctx.args
        with report_usage_errors(ctx):
            command = self._find(name)
        with command.make_context(name, words, parent=ctx) as inner:
            return inner.command.invoke(inner)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        from .completion import find_words

        return find_words(self, ctx, ctx.meta["words"], incomplete)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        added = self.list_commands(ctx)[len(self._names) :]
        for heading, names in self._headings.items():
            with formatter.section(heading):
                formatter.write_dl([row for name in (*names, *added) if (row := self._summarize(name))[1]])
            added = []
        with formatter.section("Options"):
            formatter.write_dl([*self.texts.items()])

    def _summarize(self, name: str) -> tuple[str, str]:
        try:
            text = self._find(name).help
        except SpecError as e:  # of another package
            text = str(e)
        return name, " ".join(text.strip().partition("\n\n")[0].split())


class RowCommand(TyperCommand):
    """A command whose options are rows of options.py, which parse, list and complete its words."""

    def __init__(self, name: str, text: str, words: Mapping[str, str]) -> None:
        """words: beside options, with their texts, which may be "": those in brackets may be left out."""
        usage = " ".join(["[OPTIONS]", *words])
        super().__init__(name, help=inspect.cleandoc(text), options_metavar=usage, rich_markup_mode=None)
        self.words = words

    def act(self, ctx: Any, words: Sequence[str]) -> int | None:
        """Do what the words say; return the exit code. Raises PslaunchError."""
        raise NotImplementedError

    def list_options(self) -> Iterable[Option]:
        return ()

    @functools.cached_property
    def options(self) -> dict[str, Option]:
        from .kinds import Flag
        from .options import Option

        shown = Option("help", Flag(), "Show this message and exit.", aliases=("-h",))
        return {option.name: option for option in (*self.list_options(), shown)}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = args
        return args

    def invoke(self, ctx: Any) -> None:
        with report_usage_errors(ctx):
            raise typer.Exit(self.act(ctx, ctx.args) or 0)

    def list_headings(self) -> Mapping[str, Collection[str]]:
        """Return the headings of its help, with the names of the options below each."""
        return {"Options": self.options}

    def format_options(self, _ctx: Any, formatter: Any) -> None:
        sections = {"Arguments": [(name, text) for name, text in self.words.items() if text]}
        for heading, names in self.list_headings().items():
            rows = sections[heading] = []
            for option in [option for name, option in self.options.items() if name in names]:
                shown = ", ".join(sorted(option.names, key=lambda each: each.startswith("--")))
                rows.append((f"{shown} {option.metavar}" if option.kind.values else shown, option.text))
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
