"""pslaunch.toml: the options of the command line as a file, for all backends, or in a section for one.

Every rejected key or value is a SpecError with file, line, key, and the nearest name.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pslaunch.runtime.shared.env import INIT_ARGS, TRAINER_FLAGS, EnvError

from ..errors import SpecError
from .args import nearest
from .kinds import Layer, Value, plain, shown
from .options import OPTIONS, Option, options_of

SECTIONS: Final = ("local", "fabric", "mpi", "k8s")
CHECKED: Final = ("local", "fabric")  # also where another one's job is started
_PLACE: Final = re.compile(r" \(at line (\d+), column \d+\)$")
_HEADER: Final = re.compile(r"\s*\[\s*([^][]+?)\s*\]\s*(?:#.*)?")
_KEY: Final = re.compile(r"\s*([\w.\"' -]+?)\s*=")


def read_settings(path: Path, backend: str) -> tuple[Layer, Layer, Mapping[str, str]]:
    """Values of the backend's section, values for all, and the trainer's flags of both. Raises SpecError,
    also for what is wrong in another backend's section."""
    text, data = _load(path)
    lines = _Lines(text, path.name)
    values, flags = _Reader(lines, ()).read({k: v for k, v in data.items() if k not in SECTIONS}, _all())
    sections = {name: _section(lines, name, data.get(name, {})) for name in sorted({*CHECKED, backend})}
    own, own_flags = sections[backend]
    known = options_of(backend)
    return own, {name: v for name, v in values.items() if name in known}, {**flags, **own_flags}


def _section(lines: _Lines, name: str, table: object) -> tuple[Layer, Mapping[str, str]]:
    """The values of a backend's section, and its trainer's flags."""
    if not isinstance(table, dict):
        raise SpecError(f"{lines.label((name,))} is no section; [{name}] begins one")
    return _Reader(lines, (name,)).read(table, options_of(name))


def _load(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except OSError as e:
        raise SpecError(f"{path.name} can't be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise SpecError(f"{path.name} is not UTF-8: {e.reason} at byte {e.start}") from e
    except (ValueError, RecursionError) as e:  # a number or a nesting that is too long, too
        place = _PLACE.search(str(e))
        where = f"{path.name}:{place[1]}" if place else path.name
        raise SpecError(f"{where}: {_PLACE.sub('', str(e))}") from e


def _all() -> dict[str, Option]:
    return {option.name: option for option in OPTIONS}


class _Lines:
    """On which line of the file a key stands; tomllib does not tell."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._lines: dict[tuple[str, ...], int] = {}
        section: tuple[str, ...] = ()
        for n, line in enumerate(text.splitlines(), 1):
            if header := _HEADER.fullmatch(line):
                section = _parts(header[1])
                self._lines.setdefault(section, n)
            elif key := _KEY.match(line):
                path = (*section, *_parts(key[1]))
                for end in range(len(section) + 1, len(path) + 1):
                    self._lines.setdefault(path[:end], n)

    def label(self, path: tuple[str, ...]) -> str:
        """How a message names a key: `pslaunch.toml:3: port`; the next one outside where it has no line."""
        known = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in self._lines), ())
        line = f":{self._lines[known]}" if known else ""
        return f"{self.file}{line}: {'.'.join(path[-1:])}"


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("."))


class _Reader:
    """Values of one table of the file."""

    def __init__(self, lines: _Lines, section: tuple[str, ...]) -> None:
        self._lines, self._section = lines, section

    def read(
        self, table: Mapping[str, Any], known: Mapping[str, Option]
    ) -> tuple[dict[str, list[Value]], dict[str, str]]:
        values: dict[str, list[Value]] = {}
        flags: dict[str, str] = {}
        for key, value in table.items():
            name, label = key.replace("-", "_"), self._lines.label((*self._section, key))
            if name in values or name in flags:
                raise SpecError(f"{label} is given twice")
            if name in TRAINER_FLAGS:
                flags[name] = trainer_flag(name, value, label)
            elif name in known:
                values[name] = list(self._values(known[name], value, label))
            else:
                raise SpecError(f"{label} {self._unknown(name, known)}")
        return values, flags

    def _values(self, option: Option, value: Any, label: str) -> Iterator[Value]:
        if option.name == "env" and isinstance(value, dict):
            words = [f"{name}={_variable(name, text, label)}" for name, text in value.items()]
        elif option.repeatable and isinstance(value, list):
            words = value
        else:
            words = [value]
        for word in words:
            text = option.kind.to_text(word)
            if text is None:
                raise SpecError(f"{label}={shown(value)}: {option.kind.meant} is meant")
            yield Value(text, label)

    def _unknown(self, name: str, known: Mapping[str, Option]) -> str:
        if self._section and name in _all():
            return f"is no option of pslaunch {self._section[0]}"
        near = nearest(name, [*known, *TRAINER_FLAGS, *(SECTIONS if not self._section else ())])
        return f"is no option; is {near} meant?" if near else "is no option"


def trainer_flag(name: str, value: object, label: str) -> str:
    """The text of a trainer's flag, checked as on a command line."""
    text = plain(value)
    if text is None:
        raise SpecError(f"{label}={shown(value)}: text, a number, or true or false is meant")
    try:
        INIT_ARGS[name].parse(text, label)
    except EnvError as e:
        raise SpecError(str(e)) from e
    return text


def _variable(name: str, value: object, label: str) -> str:
    if (text := plain(value)) is not None:
        return text
    raise SpecError(f"{label} {name}={shown(value)}: text or a number is meant")
