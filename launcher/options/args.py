"""Split a command line into our options, with the trainer's flags, and the program's words. Pure.

`pslaunch local --server_num 2 --num_passes=3 --lr=0.1 train.py --server_num 9` gives pslaunch its
`--server_num=2`, the runtime `num_passes=3`, and the program `--lr=0.1 --server_num 9`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pslaunch.runtime.shared.env import find_near, parse_bool

from ..errors import SpecError
from .foreign import explain_foreign
from .kinds import Text, Value, parse_argument
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
    aliases = {alias: name for name, option in options.items() for alias in option.aliases}
    return _Splitter(words, {**options, **TRAINER}, aliases, find_others, refused).split()


@dataclass
class _Splitter:
    """One walk over the words; its later fields collect the results."""

    words: Sequence[str]
    options: Mapping[str, Option]
    aliases: Mapping[str, str]  # with their dashes (`-n`), and the option's name
    find_others: Callable[[str], Sequence[str]]
    refused: Mapping[str, str]
    at: int = 0
    ours: dict[str, list[Value]] = field(default_factory=dict)
    forwarded: list[str] = field(default_factory=list)

    def split(self) -> Split:
        while self.at < len(self.words) and (word := self.words[self.at]).startswith("-"):
            if word in ("--", "-m"):
                break
            self.at += 1
            self._take_option(word)
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

    def _take_option(self, word: str) -> None:
        word = "--help" if word == "-h" and "help" in self.options else word
        written, has_value, text = word.partition("=")
        value = text if has_value else None
        if written in self.aliases:
            self._take_ours(self.aliases[written], value, written)
            return
        name = written[2:]
        if (bare := written.lstrip("-").replace("-", "_")) in self.refused:
            raise SpecError(f"{written} is not supported: {self.refused[bare].format(written)}")
        if not written.startswith("--") or not name or name.startswith("-"):
            self._refuse_foreign(written)
            self._refuse_near_alias(written)
            raise SpecError(
                f"{word}: options begin with two dashes and a name; "
                "put options of the program after the program's name"
            )
        key = name.replace("-", "_")
        if key in self.options:
            self._take_ours(key, value, f"--{key}")
        else:
            if others := self.find_others(key):
                raise SpecError(
                    f"this command has no option --{key}; commands that have it: {', '.join(others)}"
                )
            self._refuse_foreign(f"--{name}")
            self._refuse_near_miss(name, key)
            self.forwarded.append(word)

    def _take_ours(self, name: str, value: str | None, shown: str) -> None:
        """Take an option. value: after `=`; shown: the option as it was written, with underscores."""
        option = self.options[name]
        if name in self.ours and not option.repeatable:
            others = ", ".join(one for one in option.names if one != shown)
            raise SpecError(f"{shown} is given twice" + (f"; the same option: {others}" if others else ""))
        if option.valued:
            text = self._take_values(option, [] if value is None else [value], shown)
        elif isinstance(option.kind, Text):
            text = "1" if value is None else value
        else:
            text = str(value is None or parse_argument(parse_bool, value, shown))
        self.ours.setdefault(name, []).append(Value(text, shown))

    def _take_values(self, option: Option, found: list[str], shown: str) -> str:
        dashed, count = isinstance(option.kind, Text) and option.kind.dashed, option.values
        while len(found) < count:
            rest = self.words[self.at : self.at + 1]
            if not rest or (not dashed and (rest[0].startswith("--") or rest[0] in self.aliases)):
                hint = f" ({rest[0]} is an option)" if rest else ""
                if count > 1:
                    raise SpecError(f"{shown} needs {count} values: {shown}{' VALUE' * count}{hint}")
                form = f"{shown}=VALUE" if shown.startswith("--") else f"{shown} VALUE"
                raise SpecError(f"{shown} needs a value: {form}{hint}")
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

    def _refuse_foreign(self, shown: str) -> None:
        if said := explain_foreign(shown, shown.lstrip("-"), self.options, self.find_others):
            raise SpecError(f"{said}. To pass {shown} to the program, put it after the program's name")

    def _refuse_near_alias(self, written: str) -> None:
        """Raise SpecError for an option with one dash that is nearly one of ours."""
        short, rest = written[:2], written[2:]
        if short in self.aliases and rest.isdigit():
            raise SpecError(f"{written}: write {short} {rest}")
        near = find_near(written, [*self.aliases, *(f"--{name}" for name in self.options)], NEAR)
        if near:
            raise SpecError(f"unknown option {written}; did you mean {near}?")

    def _refuse_near_miss(self, name: str, key: str) -> None:
        near = "" if key in NEVER_NEAR else find_near(key, self.options, NEAR)
        if near:
            off = "=false" if not self.options[near].valued and key == f"no_{near}" else ""
            raise SpecError(
                f"unknown option --{name}; did you mean --{near}{off}? "
                f"To pass --{name} to the program, put it after the program's name"
            )
