"""Values as users give them: kinds of options, and the labels of messages. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from pslaunch.runtime.shared.env import EnvError, parse_bool, parse_int

from ..errors import SpecError

T = TypeVar("T")


class Value(NamedTuple):
    """One value of an option, as text."""

    text: str
    label: str  # "--port", "-n", "pslaunch.toml: [local].port", "conf.py:12: PADDLE_PORT"

    @property
    def shown(self) -> str:
        """Return the beginning of messages about it."""
        return f"{self.label}={self.text!r}"

    @property
    def on_line(self) -> bool:
        """Return True for a value of the command line."""
        return self.label.startswith("-")


SourceValues = Mapping[str, Sequence[Value]]  # from one place: the values of each option


def format_value(value: object) -> str:
    """Return a file's value for a message, cut if long."""
    try:
        text = repr(value)
    except Exception:  # a number too long to be written, or the value's own code
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else f"{text[:57]}..."


def refuse_unprintable(*names: str | None) -> None:
    """Raise SpecError for names for a script or manifest that would begin a line there, or look alike."""
    for name in names:
        if name and not name.isprintable():
            raise SpecError(f"{name!r} has characters that can't be printed: give it another name")


def to_plain_text(value: object) -> str | None:
    """Return the text of a string, number or bool; None for all others, and for numbers too long to write."""
    if not isinstance(value, (str, int, float)):
        return None
    try:
        return str(value)
    except ValueError:  # more digits than Python writes
        return None


def parse_argument(parse: Callable[[str, str], T], text: str, label: str) -> T:
    """Return the value that `parse`, of an argument of init(), reads. Raises SpecError."""
    try:
        return parse(text, label)
    except EnvError as e:
        raise SpecError(str(e)) from e


# --- Kinds of options. ---


class OptionKind:
    """Kind of an option: it reads and checks text."""

    what = "true or false"  # is expected, in messages
    words: Sequence[str] = ()  # that its value may be; none: any
    values = 1  # words after it on a command line
    repeatable = dashed = False  # as in Text

    def read(self, text: str, label: str) -> Any:
        """Return the value, checked. label: as in Value. Raises SpecError."""
        raise NotImplementedError


@dataclass(frozen=True)
class Number(OptionKind):
    """A whole number."""

    low: int
    high: int
    what = "a whole number"

    def read(self, text: str, label: str) -> int:
        return parse_argument(functools.partial(parse_int, low=self.low, high=self.high), text, label)


@dataclass(frozen=True)
class Seconds(OptionKind):
    """A duration."""

    low_s: float
    what = "a number of seconds"

    def read(self, text: str, label: str) -> float:
        try:
            value_s = float(text)
        except ValueError:
            raise SpecError(f"{label}={text!r}: expected {self.what}") from None
        if not self.low_s <= value_s < float("inf"):
            raise SpecError(f"{label}={value_s:g}: expected at least {self.low_s:g} seconds")
        return value_s


@dataclass(frozen=True)
class Choice(OptionKind):
    """One of some words."""

    words: Sequence[str]

    @property
    def what(self) -> str:  # type: ignore[override] # an attribute there
        return f"one of {', '.join(self.words)}"

    def read(self, text: str, label: str) -> str:
        word = text.replace("-", "_")
        if word not in self.words:
            raise SpecError(f"{label}={word!r}: expected {self.what}")
        return word


class Truth(OptionKind):
    """True or false, with a value, as in v2."""

    def read(self, text: str, label: str) -> bool:
        return parse_argument(parse_bool, text, label)


class Flag(Truth):
    """An option without a value on a command line, true if given."""

    values = 0


@dataclass(frozen=True)
class Text(OptionKind):
    """Text: a name, a path, a command; or several separated by a blank."""

    repeatable: bool = False
    values: int = 1  # all but the last without a blank in it; 0: none, or one after =
    dashed: bool = False  # words for another program, which may begin with dashes

    @property
    def what(self) -> str:  # type: ignore[override]
        one = "text" if self.values < 2 else f"a list of {self.values} texts"
        return f"{one}, or several in a list" if self.repeatable else one

    def read(self, text: str, label: str) -> str:
        if not text or "\0" in text:
            raise SpecError(f"{label}={text!r} is {'empty' if not text else 'no text'}")
        if len(text.split(" ", self.values - 1)) < self.values:
            raise SpecError(f"{label}={text!r}: expected {self.values} values")
        return text


def to_text(kind: OptionKind, value: object, label: str) -> str:
    """Return the text of a file's value, which may have the option's type. Raises SpecError for another's."""
    text = to_plain_text(value)
    if kind.values > 1 and isinstance(value, list):
        whole = len(value) == kind.values and all(isinstance(part, str) for part in value)
        text = " ".join(value) if whole and not any(" " in part for part in value[:-1]) else None
    if text is None:
        raise SpecError(f"{label}={format_value(value)}: expected {kind.what}")
    return text
