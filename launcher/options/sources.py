"""Values of options from several sources, merged: the first one wins. backends/gather.py reads them."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..errors import SpecError
from .kinds import SourceValues, Value
from .options import TRAINER, Option

# Of these one source gives only one, and lower sources no other.
EITHER: Final = (("job_workspace", "job_dispatch_package"), ("hosts", "hostfile"))


@dataclass
class Given:
    """All values given for one job, as text."""

    options: Mapping[str, Option]
    values: SourceValues
    files: tuple[str, ...] = ()  # that were read
    left_out: tuple[str, ...] = ()  # of these, as lines for the user

    def __contains__(self, name: str) -> bool:
        return bool(self.values.get(name))

    def get(self, name: str) -> Value | None:
        return self.values[name][0] if name in self else None

    def get_all(self, name: str) -> Sequence[Value]:
        """Return the values of a repeatable option."""
        return self.values.get(name, ())

    def read(self, name: str) -> Any:
        """Return the value of an option, checked, else its default. Raises SpecError."""
        option, value = self.options[name], self.get(name)
        return option.default if value is None else option.kind.read(value.text, value.label)

    def read_all(self, name: str) -> list[Any]:
        """Return the values of a repeatable option, checked; none if this backend has no such option."""
        return [self.options[name].kind.read(value.text, value.label) for value in self.get_all(name)]

    @property
    def trainer_flags(self) -> dict[str, str]:
        """Return the values of the trainer's flags. Raises SpecError."""
        given = {name: value for name in TRAINER if (value := self.get(name))}
        return {name: str(TRAINER[name].kind.read(one.text, one.label)) for name, one in given.items()}

    def is_set(self, name: str) -> bool:
        return bool(self.read(name))


def refuse_foreign_file(path: Path, name: str, named: str) -> None:
    """Raise SpecError for a file to be executed that another user owns or can write, root excepted."""
    with contextlib.suppress(OSError):  # its reader says so
        state, private = path.stat(), False
        with contextlib.suppress(KeyError):  # a group of its owner alone
            user, group = pwd.getpwuid(state.st_uid), grp.getgrgid(state.st_gid)
            private = group.gr_name == user.pw_name and not group.gr_mem
        if state.st_uid not in (0, os.geteuid()) or state.st_mode & (0o002 if private else 0o022):
            why = f"{name} would be executed, but another user owns it or can write it"
            raise SpecError(f"{why}; change that (chown, chmod go-w), or if you trust it, give {named}")


def merge_layers(layers: Iterable[SourceValues]) -> dict[str, Sequence[Value]]:
    """Merge layers, the highest first; variables are merged by name. Raises SpecError."""
    merged: dict[str, Sequence[Value]] = {}
    for layer in layers:
        settled = {name for pair in EITHER if merged.keys() & pair for name in pair}
        known = {get_variable(value) for value in merged.get("env", ())}
        for name, values in layer.items():
            if name == "env":
                merged[name] = [*merged.get(name, ()), *(v for v in values if get_variable(v) not in known)]
            elif name not in merged and name not in settled:
                merged[name] = values
        for one, other in EITHER:
            if one in merged and other in merged:
                both = " and ".join(f"{v.label}={v.text}" for v in (merged[one][0], merged[other][0]))
                raise SpecError(f"{both} are both given: give only one")
    return merged


def get_variable(value: Value) -> str:
    return value.text.partition("=")[0]
