"""Extensions of typer: groups of commands, and commands whose options are rows of options.py.

The list of commands needs nothing else of this folder: for its speed the rest is imported where it is used.
Typer's own options would need pydantic, which takes longer to import than a job to start.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import typer
from typer.core import TyperCommand

from .. import __version__
from ..errors import SpecError

if TYPE_CHECKING:
    from .options import Option

PROGRAM_OPTIONS: Final[Mapping[str, str]] = {
    "--version": "Print the version.",
    "--install-completion [SHELL]": "Let bash, zsh or fish complete words; this terminal's unless named.",
    "--show-completion [SHELL]": "Print the script for that.",
}

# Typer carries its own copy of click in some versions and depends on it in others.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Completion(NamedTuple):
    """A word, as typer takes it; for its help typer would import rich, which takes 0.1 s."""

    value: str
    help: str = ""


def print_help(ctx: Any) -> int:
    typer.echo(ctx.get_help())
    return 0


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
        try:
            raise typer.Exit(self.act(ctx, ctx.args) or 0)
        except SpecError as e:
            ctx.fail(str(e))

    def list_headings(self) -> Mapping[str, Collection[str]]:
        """Return the headings of its help, with the names of the options below each."""
        return {"Options": self.options}

    def list_sections(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        """Return the rows of its help by headings."""
        sections = {"Arguments": [(name, text) for name, text in self.words.items() if text]}
        for heading, names in self.list_headings().items():
            rows = sections[heading] = []
            for option in [option for name, option in self.options.items() if name in names]:
                shown = ", ".join(sorted(option.names, key=lambda each: each.startswith("--")))
                rows.append((f"{shown} {option.metavar}" if option.kind.values else shown, option.text))
        return sections

    def format_options(self, _ctx: Any, formatter: Any) -> None:
        for heading, rows in self.list_sections().items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def complete(self, words: Sequence[str], incomplete: str) -> Iterable[str]:
        """Return what may follow these words of it; some may not begin as `incomplete` does."""
        # By option, words for its value, if it has one.
        known = {name: row.kind.words if row.kind.values else None
                 for row in self.options.values() for name in row.names}  # fmt: skip
        place, awaiting = 0, ""
        for word in (w for w in words if w != "="):  # bash makes three words of --name=value
            if awaiting:
                awaiting = ""
            elif not word.startswith("-"):
                place += 1
            elif known.get(word) is not None:
                awaiting = word
        name = awaiting or incomplete.partition("=")[0]
        if place and not any(self.words.values()):  # they are a program's
            return []
        if awaiting or "=" in incomplete:
            return [f"{'' if awaiting else f'{name}='}{value}" for value in known.get(name) or ()]
        if incomplete.startswith("-"):
            return known
        return _list_jobs() if [*self.words][:1] == ["JOB"] and not place else []


class Commands(RowCommand):
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
        super().__init__(name, text, {"COMMAND [ARGS]...": ""})
        self._headings, self.get_command, self._find_added, self._meant = names, find, find_added, meant
        self._names = [name for names in self._headings.values() for name in names]
        self.texts = {"-h, --help": "Print this text.", **(PROGRAM_OPTIONS if name == "pslaunch" else {})}

    def act(self, ctx: Any, words: Sequence[str]) -> int:
        if not words or words[0] in ("--help", "-h"):
            return print_help(ctx)
        if words[0] in ("--install-completion", "--show-completion"):
            completion: Any = importlib.import_module("typer.completion")
            offer = getattr(completion, f"{words[0][2:].partition('-')[0]}_callback")
            offer(ctx, None, (*words[1:2], True)[0])  # it exits
        if words[0] == "--version":
            typer.echo(f"pslaunch {__version__}")
            return 0
        if words[0] not in self._names and words[0] not in self.list_commands():
            raise SpecError(self._explain(ctx.command_path, *words))
        command = self.get_command(words[0])
        with command.make_context(words[0], [*words[1:]], parent=ctx) as inner:
            command.invoke(inner)
        return 0

    def _explain(self, path: str, first: str, *rest: str) -> str:
        """Return the message for a first word that is no command."""
        from pslaunch.runtime.shared.env import find_near

        word, names = first.strip("-").lower(), self.list_commands()
        if word.endswith(".py") or first == "-m":
            word, rest = "", (first, *rest)
        elif first.startswith("-") and (command := next(filter(names.__contains__, rest), "")):
            return f"{first} before the command: options follow it, as in {path} {command} {first}"
        near = self._meant.get(word) or find_near(word, names, 0.5)
        if word in self._meant and "," not in near:
            near = " ".join([near, *rest])
        meant = f"did you mean {near!r}?" if near else f"commands: {', '.join(names)}"
        return f"unknown command {first!r}; {meant}"

    def list_commands(self) -> list[str]:
        return [*self._names, *(name for name in self._find_added() if name not in self._names)]

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        begin = incomplete.removeprefix("=")
        with contextlib.suppress(SpecError):
            found = self.complete(ctx.args, "" if incomplete == "=" else incomplete)
            return [Completion(word) for word in found if word.startswith(begin)]
        return []

    def complete(self, words: Sequence[str], incomplete: str) -> Iterable[str]:
        if words:
            return cast("Iterable[str]", self.get_command(words[0]).complete(words[1:], incomplete))
        options = [shown.removeprefix("-h, ").partition(" ")[0] for shown in self.texts]
        return [*self.list_commands(), *options]

    def list_sections(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        added = self.list_commands()[len(self._names) :]
        sections = {heading: [*map(self._summarize, names)] for heading, names in self._headings.items()}
        next(iter(sections.values())).extend(map(self._summarize, added))
        shown = {heading: [row for row in rows if row[1]] for heading, rows in sections.items()}
        return {**shown, "Options": [*self.texts.items()]}

    def _summarize(self, name: str) -> tuple[str, str]:
        try:
            text = self.get_command(name).help
        except SpecError as e:  # of another package
            text = str(e)
        return name, " ".join(text.strip().partition("\n\n")[0].split())


def answer_shell(app: Commands, asked: str) -> int:
    """Print the words for a shell that completes one. asked: by its script."""
    completion: Any = importlib.import_module("typer.completion")
    completion.completion_init()
    return int(completion.shell_complete(app, {}, app.name, "_PSLAUNCH_COMPLETE", asked))


def _list_jobs() -> Iterable[str]:
    """Return the jobs that have a record here, by the names of its files: nothing is read."""
    from ..node.later.record import POINTER, get_folder

    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(get_folder()) if name.endswith(".json")]  # noqa: PTH208
        return {name.removesuffix(POINTER).removesuffix(".json") for name in names}
    return []
