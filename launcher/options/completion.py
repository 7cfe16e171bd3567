"""Completion of words in shells, by the scripts that typer has for them."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import SpecError
from ..node.later.record import POINTER, get_folder


class Completion(NamedTuple):
    """A word, as typer takes it; for its help typer would import rich, which takes 0.1 s."""

    value: str
    help: str = ""


def offer_script(ctx: Any, name: str, shell: str = "") -> None:
    """Install or show the script of a shell, that of this terminal unless given, and exit."""
    completion: Any = importlib.import_module("typer.completion")
    act = completion.install_callback if name == "--install-completion" else completion.show_callback
    act(ctx, None, shell or True)


def answer_shell(app: Any, asked: str) -> int:
    """Print the words for a shell that completes one. asked: by its script."""
    completion: Any = importlib.import_module("typer.completion")
    completion.completion_init()
    return int(completion.shell_complete(app, {}, app.name, "_PSLAUNCH_COMPLETE", asked))


def find_words(command: Any, words: Sequence[str], incomplete: str) -> list[Completion]:
    """Return what may follow the words of a command line, where `incomplete` is the beginning of a word."""
    with contextlib.suppress(SpecError):
        while words and hasattr(command, "texts"):  # a group
            command, words = command.get_command(words[0]), words[1:]
        found = _list_words(command, words, "" if incomplete == "=" else incomplete)
        return [Completion(word) for word in found if word.startswith(incomplete.removeprefix("="))]
    return []


def _list_words(command: Any, words: Sequence[str], incomplete: str) -> Iterable[str]:
    if hasattr(command, "texts"):
        options = [shown.removeprefix("-h, ").partition(" ")[0] for shown in command.texts]
        return [] if words else [*command.list_commands(), *options]
    known: dict[str, Sequence[str] | None] = {}  # by option, words for its value, if it has one
    for row in command.options.values():
        known |= dict.fromkeys(row.names, row.kind.words if row.kind.values else None)
    place, awaiting = 0, ""
    for word in (w for w in words if w != "="):  # bash makes three words of --name=value
        if awaiting:
            awaiting = ""
        elif not word.startswith("-"):
            place += 1
        elif known.get(word) is not None:
            awaiting = word
    name = awaiting or incomplete.partition("=")[0]
    if place and not any(command.words.values()):  # they are a program's
        return []
    if awaiting or "=" in incomplete:
        return [f"{'' if awaiting else f'{name}='}{value}" for value in known.get(name) or ()]
    if incomplete.startswith("-"):
        return known
    return _list_jobs() if [*command.words][:1] == ["JOB"] and not place else []


def _list_jobs() -> Iterable[str]:
    """Return the jobs that have a record here, by the names of its files: nothing is read."""
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(get_folder()) if name.endswith(".json")]  # noqa: PTH208
        return {name.removesuffix(POINTER).removesuffix(".json") for name in names}
    return []
