"""Options in pslaunch.toml, for all commands or in a section for one backend, and in variables."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pslaunch.runtime.shared.env import OPTION_PREFIX, suggest

from ..errors import SpecError
from ..options.args import NEAR
from ..options.foreign import explain_foreign
from ..options.kinds import SourceValues, Value, format_value, to_plain_text, to_text
from ..options.options import TRAINER, Option
from . import registry


def read_settings(path: Path, backend: str) -> tuple[SourceValues, SourceValues]:
    """Return the values of the backend's section, and the values for all.

    Raises SpecError, also for errors in another backend's section.
    """
    data = _load(path)
    names = list(dict.fromkeys([*registry.OWN, backend]))
    if any(isinstance(value, dict) and key not in (*names, "env") for key, value in data.items()):
        names += [name for name in registry.find_added() if name not in names]
    of = {name: _list_known(name) for name in names if name in registry.OWN or name in data}
    everywhere = {key: option for options in reversed(of.values()) for key, option in options.items()}
    top = {key: value for key, value in data.items() if key not in names}
    values = _read_table(top, everywhere, f"{path.name}: ", [*everywhere, *names])
    sections: dict[str, SourceValues] = {}
    for name, known in sorted(of.items()):
        if not isinstance(table := data.get(name, {}), dict):
            raise SpecError(f"{path.name}: {name} is not a section; begin it with [{name}]")
        sections[name] = _read_table(table, known, f"{path.name}: [{name}].", [*known])
    return sections[backend], {name: v for name, v in values.items() if name in of[backend]}


def _list_known(backend: str) -> Mapping[str, Option]:
    return {**registry.get_options(backend), **TRAINER}


def read_variables(environ: Mapping[str, str], backend: str) -> SourceValues:
    """Return the values of PSLAUNCH_OPT_<NAME> for the backend.

    Lists are written as in pslaunch.toml. Raises SpecError.
    """
    own, values = _list_known(backend), dict[str, Sequence[Value]]()
    known = {key for name in registry.OWN for key in registry.get_options(name)} | own.keys()
    for variable in [name for name in environ if name.startswith(OPTION_PREFIX)]:
        name, text = variable.removeprefix(OPTION_PREFIX).lower(), environ[variable]
        if variable != OPTION_PREFIX + name.upper() or name not in known:
            names = [OPTION_PREFIX + key.upper() for key in known]
            near = f"{variable}: no option of this name{suggest(variable.upper(), names, cutoff=0.85)}"
            raise SpecError(explain_foreign(variable, name, known, lambda _name: ()) or near)
        if name in own:
            is_list = own[name].kind.repeatable and text.startswith(("[", "{"))
            values[name] = _read_list(own[name], text, variable) if is_list else [Value(text, variable)]
    return values


def _read_list(option: Option, text: str, label: str) -> list[Value]:
    try:
        return list(_read_values(option, tomllib.loads(f"value = {text}")["value"], label))
    except ValueError:  # such as a host with ranges or an address of IPv6
        return [Value(text, label)]


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise SpecError(f"{path.name} can't be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:  # also no UTF-8, numbers too long and nesting too deep
        raise SpecError(f"{path.name}: {e}") from e


def _read_table(
    table: Mapping[str, Any], known: Mapping[str, Option], place: str, names: Sequence[str]
) -> SourceValues:
    """Return the values of one table. place: beginning of labels; names: all names allowed there."""
    values: dict[str, list[Value]] = {}
    for key, value in table.items():
        name, label = key.replace("-", "_"), f"{place}{key}"
        if name in values:
            raise SpecError(f"{label} is given twice")
        if name in known:
            values[name] = list(_read_values(known[name], value, label))
        else:
            foreign = explain_foreign(label, name, known, lambda _name: ())
            raise SpecError(foreign or f"{label}: unknown option{suggest(name, names, ' here', NEAR)}")
    return values


def _read_values(option: Option, value: Any, label: str) -> Iterator[Value]:
    if option.name == "env" and isinstance(value, dict):
        words = [f"{name}={_read_plain(text, f'{label} {name}')}" for name, text in value.items()]
    elif option.kind.repeatable and isinstance(value, list):
        words = value
    else:
        words = [value]
    for word in words:
        yield Value(to_text(option.kind, word, label), label)


def _read_plain(value: object, label: str) -> str:
    if (text := to_plain_text(value)) is not None:
        return text
    raise SpecError(f"{label}={format_value(value)}: expected text or a number")
