"""Split a command line into our options, with the trainer's flags, and the program's words. Pure.

`pslaunch local --server_num 2 --num_passes=3 --lr=0.1 train.py --server_num 9` gives pslaunch its
`--server_num=2`, the runtime `num_passes=3`, and the program `--lr=0.1 --server_num 9`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pslaunch.runtime.shared.env import find_near, suggest

from ..errors import SpecError
from .foreign import explain_foreign
from .kinds import SourceValues, Text, Value
from .options import TRAINER, Option

DEFAULT_PROGRAM: Final = "train.py"
NEAR: Final = 0.7  # difflib's ratio from which a foreign option is a near miss: --workers, --worker_number
NEVER_NEAR: Final = frozenset({"config"})  # v1's own option, no near miss of --conf


class Split(NamedTuple):
    """A command line by owner, in the order of the line."""

    ours: Mapping[str, Sequence[Value]] = {}  # the trainer's flags too
    forwarded: tuple[str, ...] = ()  # the program's options that stood before it, as they were
    program: str | None = None
    program_args: tuple[str, ...] = ()  # what followed the program, or `--`
    is_module: bool = False  # the program is a module's name, after -m

    @property
    def chosen_program(self) -> str:
        return DEFAULT_PROGRAM if self.program is None else self.program


def split_command_line(
    words: Sequence[str],
    options: Mapping[str, Option],
    find_others: Callable[[str], Sequence[str]] = lambda _name: (),
    refused: Mapping[str, str] = {},
) -> Split:
    """Split `words` by our options.

    find_others: returns the names of our other commands that have an option. refused: names of options not
    to be taken, with reasons.

    Names may be written with dashes or underscores. Raises SpecError naming a word without a clear owner:
    a near miss of ours, a single dash, a value missing or too many, an option twice.
    """
    return _Splitter(words, {**options, **TRAINER}, find_others, refused).split()


def split_plain_line(
    words: Sequence[str], options: Mapping[str, Option], find_more: Callable[[], None]
) -> tuple[SourceValues, list[str]]:
    """Split the line of a command without a program into options and other words, in any order.

    find_more: adds further options to these, if one is unknown. Raises SpecError.
    """
    splitter = _Splitter(words, options)
    return splitter.ours, splitter.split_plain(find_more)


@dataclass
class _Splitter:
    """One walk over the words; its later fields collect the results."""

    words: Sequence[str]
    options: Mapping[str, Option]
    find_others: Callable[[str], Sequence[str]] = lambda _name: ()
    refused: Mapping[str, str] = field(default_factory=dict)
    at: int = 0
    ours: dict[str, list[Value]] = field(default_factory=dict)
    forwarded: list[str] = field(default_factory=list)

    @property
    def aliases(self) -> Mapping[str, str]:
        """The options' names by their aliases, which have their dashes (`-n`)."""
        return {alias: name for name, option in self.options.items() for alias in option.aliases}

    def split(self) -> Split:
        while self.at < len(self.words) and (word := self.words[self.at]).startswith("-"):
            if word in ("--", "-m"):
                break
            self.at += 1
            if not self._take_ours(word):
                self._take_foreign(word)
        rest = [*self.words[self.at :]]
        is_module = rest[:1] == ["-m"]
        if rest[:1] == ["--"] or is_module:
            del rest[0]
        elif rest:
            self._refuse_value(rest[0])
        program = rest.pop(0) if rest and not rest[0].startswith("-") else None
        if is_module and not program:
            raise SpecError("-m needs a module's name: -m MODULE")
        return Split(self.ours, tuple(self.forwarded), program, tuple(rest), is_module)

    def split_plain(self, find_more: Callable[[], None]) -> list[str]:
        """Take all options and return the other words."""
        others: list[str] = []
        while self.at < len(self.words) and (word := self.words[self.at]) != "--":
            self.at += 1
            if word in ("", "-") or not word.startswith("-"):
                others.append(word)
            elif not self._take_ours(word):
                find_more()
                if not self._take_ours(word):
                    known = [name for option in self.options.values() for name in option.names]
                    name = word.partition("=")[0]
                    near = suggest(name, known, f"; options: {', '.join(known)}", NEAR)
                    raise SpecError(f"unknown option {name}{near}")
        return [*others, *self.words[self.at + 1 :]]

    def _take_foreign(self, word: str) -> None:
        """Forward an option that is not ours to the program, unless it may be meant for us."""
        shown = word.partition("=")[0]
        name, has_dashes = shown.lstrip("-").replace("-", "_"), re.match("--[^-]", shown)
        remedy = f"To pass {shown} to the program, put it after the program's name"
        if name in self.refused:
            raise SpecError(f"{shown} is not supported: {self.refused[name].format(shown)}")
        if has_dashes and (others := self.find_others(name)):
            raise SpecError(
                f"this command has no option --{name}; commands that have it: {', '.join(others)}"
            )
        if said := explain_foreign(shown, name, self.options, self.find_others):
            raise SpecError(f"{said}. {remedy}")
        if not has_dashes:
            self._refuse_near_alias(shown)
            raise SpecError(
                f"{word}: options begin with two dashes and a name; "
                "put options of the program after the program's name"
            )
        if near := "" if name in NEVER_NEAR else find_near(name, self.options, NEAR):
            off = "=false" if not self.options[near].kind.values and name == f"no_{near}" else ""
            raise SpecError(f"unknown option {shown}; did you mean --{near}{off}? {remedy}")
        self.forwarded.append(word)

    def _take_ours(self, word: str) -> bool:
        """Take an option with its values, unless it is none of ours."""
        shown, has_value, value = word.partition("=")
        name = self.aliases.get(shown, "")
        if not name and shown.startswith("--"):
            name = shown[2:].replace("-", "_")
            shown = f"--{name}"  # as it was written, with underscores
        if name not in self.options:
            return False
        option = self.options[name]
        if name in self.ours and not option.kind.repeatable:
            others = ", ".join(one for one in option.names if one != shown)
            raise SpecError(f"{shown} is given twice" + (f"; the same option: {others}" if others else ""))
        if option.kind.values:
            value = self._take_values(option, [value] if has_value else [], shown)
        elif isinstance(option.kind, Text):
            value = value if has_value else "1"
        else:
            value = str(not has_value or option.kind.read(value, shown))
        self.ours.setdefault(name, []).append(Value(value, shown))
        return True

    def _take_values(self, option: Option, found: list[str], shown: str) -> str:
        dashed, count = option.kind.dashed, option.kind.values
        while len(found) < count:
            rest = self.words[self.at : self.at + 1]
            if not rest or (not dashed and (rest[0].startswith("--") or rest[0] in self.aliases)):
                hint = f" ({rest[0]} is an option)" if rest else ""
                what = "a value" if count == 1 else f"{count} values"
                form = f"{shown}{'=' if count == 1 and shown[:2] == '--' else ' '}{option.metavar or 'VALUE'}"
                raise SpecError(f"{shown} needs {what}: {form}{hint}")
            found += rest
            self.at += 1
        if any(" " in value for value in found[:-1]):
            raise SpecError(f"{shown} {shlex.join(found)}: only its last value may contain a blank")
        return " ".join(found)

    def _refuse_value(self, word: str) -> None:
        """Raise SpecError for a word in the program's place that is a value of the last option.

        After `--` any word is the program.
        """
        if word[0:1] in ("\N{EN DASH}", "\N{EM DASH}"):
            raise SpecError(f"{word} begins with a long dash; write --{word[1:]}")
        option = self.words[self.at - 1] if self.at else ""
        if self.forwarded[-1:] == [option] and "=" not in option and not word.endswith((".py", ".sh")):
            shown = shlex.quote(word)
            raise SpecError(
                f"unknown option {option}. If {shown} is its value for the program, write {option}={shown}; "
                f"if it is the program itself, write -- before it"
            )
        name, is_variable, _ = word.partition("=")
        if is_variable and name.isidentifier() and "env" in self.ours:
            shown = self.ours["env"][-1].label
            raise SpecError(f"{word} is not a program; each variable needs its {shown} before it")

    def _refuse_near_alias(self, written: str) -> None:
        """Raise SpecError for an option with one dash that is nearly one of ours."""
        short, rest = written[:2], written[2:]
        if short in self.aliases and rest.isdigit():
            raise SpecError(f"{written}: write {short} {rest}")
        near = find_near(written, [*self.aliases, *(f"--{name}" for name in self.options)], NEAR)
        if near:
            raise SpecError(f"unknown option {written}; did you mean {near}?")
