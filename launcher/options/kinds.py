"""Values as users give them: kinds of options, and the labels of messages. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from pslaunch.runtime.shared.env import EnvError, parse_bool

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


def to_plain_text(value: object) -> str | None:
    """Return the text of a string, number or bool; None for all others, and for numbers too long to write."""
    if not isinstance(value, (str, int, float)):
        return None
    try:
        return str(value)
    except ValueError:  # more digits than Python writes
        return None


# --- Kinds of options; `label`: as in Value. ---


class OptionKind(Protocol):
    """Conversion and check of an option's values, from text or from a typed file."""

    @property
    def meant(self) -> str:
        """Return the expected value in words."""
        ...

    def read(self, text: str, label: str) -> Any:
        """Return the value, checked. Raises SpecError."""
        ...

    def check(self, value: Any, label: str) -> None:
        """Raise SpecError if the value is not allowed."""
        ...

    def to_text(self, value: object) -> str | None:
        """Return the text of a file's value; None if its type is wrong."""
        ...


class Number(NamedTuple):
    """A whole number."""

    low: int
    high: int

    @property
    def meant(self) -> str:
        return "a whole number"

    def read(self, text: str, label: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise SpecError(f"{label}={text!r}: expected a whole number from {self.low} to {self.high}")
        self.check(int(text), label)
        return int(text)

    def check(self, value: int, label: str) -> None:
        if not self.low <= value <= self.high:
            raise SpecError(f"{label}={value}: expected a whole number from {self.low} to {self.high}")

    def to_text(self, value: object) -> str | None:
        if not isinstance(value, int) or isinstance(value, bool):
            return None
        return str(value) if abs(value) < 10**18 else None


class Seconds(NamedTuple):
    """A duration."""

    low_s: float

    @property
    def meant(self) -> str:
        return "a number of seconds"

    def read(self, text: str, label: str) -> float:
        try:
            value_s = float(text)
        except ValueError:
            raise SpecError(f"{label}={text!r}: expected a number of seconds") from None
        self.check(value_s, label)
        return value_s

    def check(self, value: float, label: str) -> None:
        if not self.low_s <= value < float("inf"):
            raise SpecError(f"{label}={value:g}: expected at least {self.low_s:g} seconds")

    def to_text(self, value: object) -> str | None:
        return to_plain_text(value) if not isinstance(value, (bool, str)) else None


class Choice(NamedTuple):
    """One of some words."""

    words: Sequence[str]

    @property
    def meant(self) -> str:
        return f"one of {', '.join(self.words)}"

    def read(self, text: str, label: str) -> str:
        self.check(text.replace("-", "_"), label)
        return text.replace("-", "_")

    def check(self, value: str, label: str) -> None:
        if value not in self.words:
            raise SpecError(f"{label}={value!r}: expected {self.meant}")

    def to_text(self, value: object) -> str | None:
        return value if isinstance(value, str) else None


def parse_argument(parse: Callable[[str, str], T], text: str, label: str) -> T:
    """Return the value that `parse`, of an argument of init(), reads. Raises SpecError."""
    try:
        return parse(text, label)
    except EnvError as e:
        raise SpecError(str(e)) from e


class Truth:
    """True or false, with a value, as in v2."""

    meant = "true or false"

    def read(self, text: str, label: str) -> bool:
        return parse_argument(parse_bool, text, label)

    def check(self, value: bool, label: str) -> None:
        pass

    def to_text(self, value: object) -> str | None:
        return to_plain_text(value) if not isinstance(value, float) else None


class Flag:
    """An option without a value, true if given."""

    meant = "true or false"

    def read(self, text: str, label: str) -> bool:
        return text == "True"

    def check(self, value: bool, label: str) -> None:
        pass

    def to_text(self, value: object) -> str | None:
        text = to_plain_text(value)
        try:
            return None if text is None else str(parse_bool(text, ""))
        except EnvError:
            return None


class Text(NamedTuple):
    """Text: a name, a path, a command; or several separated by a blank."""

    repeatable: bool = False
    values: int = 1  # all but the last without a blank in it

    @property
    def meant(self) -> str:
        one, many = (
            ("text", "texts") if self.values == 1 else (f"a list of {self.values} texts", "such lists")
        )
        return f"{one}, or a list of {many}" if self.repeatable else one

    def read(self, text: str, label: str) -> str:
        self.check(text, label)
        return text

    def check(self, value: str, label: str) -> None:
        if not value or "\0" in value:
            raise SpecError(f"{label}={value!r} is {'empty' if not value else 'no text'}")
        if len(value.split(" ", self.values - 1)) < self.values:
            raise SpecError(f"{label}={value!r}: expected {self.values} values")

    def to_text(self, value: object) -> str | None:
        if self.values > 1 and isinstance(value, list):
            whole = len(value) == self.values and all(isinstance(part, str) for part in value)
            return " ".join(value) if whole and not any(" " in part for part in value[:-1]) else None
        return value if isinstance(value, str) else None
