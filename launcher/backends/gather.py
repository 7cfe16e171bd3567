"""The command line of a job with what variables, pslaunch.toml and conf.py add; the first source wins."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from pslaunch.runtime.shared.env import OPTION_PREFIX, get_init_var

from ..errors import SpecError
from ..options.args import Split
from ..options.detect import check_needs, check_syntax
from ..options.sources import Given, get_variable, merge_layers, refuse_foreign_file
from ..options.spec import JobSpec, list_notes
from .face import CommandLine, Face
from .registry import OWN, find_face, get_options

SETTINGS = "pslaunch.toml"


def gather_given(name: str, split: Split, cwd: Path, environ: Mapping[str, str] = {}) -> Given:
    """Return all values for a job of this backend, with those of variables and of files in `cwd`.

    Raises SpecError.
    """
    layers, files, left_out = [split.ours], list[str](), list[str]()
    known = get_options(name)
    # Readers of what most jobs lack take 5 ms to import.
    if any(variable.startswith(OPTION_PREFIX) for variable in environ):
        from .toml_file import read_variables

        of_shell = read_variables(environ, name)
        layers.append(of_shell)
        files += [OPTION_PREFIX + option.upper() for option in of_shell]
    if (cwd / SETTINGS).exists():
        from .toml_file import read_settings

        layers += read_settings(cwd / SETTINGS, name)
        files.append(SETTINGS)
    for face in {face.file: face for face in map(find_face, (*OWN, name))}.values():
        if not (option := known.get(face.file)):
            continue
        named, unnamed = merge_layers(layers).get(face.file), str(option.default or "")
        if named or (unnamed and (cwd / unnamed).exists()):
            file = named[0].text if named else unnamed
            if not (named and named[0].on_line):
                refuse_foreign_file(cwd / file, file, f"--{face.file}={file}")
            found = face.read_file(cwd / file, file, left_out.append)
            layers.append({key: values for key, values in found.items() if key in known})
            files.append(file)
    values = merge_layers(layers)
    given = Given(known, values, tuple(files), tuple(left_out))
    # A flag of the trainer overrules variables of files.
    said = {get_init_var(flag) for flag in given.trainer_flags}
    values["env"] = [v for v in values.get("env", ()) if v.on_line or get_variable(v) not in said]
    return given


def read_command(
    face: Face, command: str, split: Split, tell: Callable[[str], None]
) -> tuple[CommandLine, JobSpec]:
    """Return a command line with what files add, and its job; `tell` takes notes. Raises PslaunchError."""
    cwd = Path.cwd()
    if split.program in OWN and not (cwd / split.program).exists():
        raise SpecError(f"pslaunch {face.name} and {split.program} are two commands; give one of them")
    given = gather_given(face.name, split, cwd, os.environ)
    line = CommandLine(command, given, split, cwd, os.environ, sys.stdout, tell)
    spec = face.make_spec(line)
    if spec.is_here:
        check_needs(spec.workspace, spec.program, spec.site.package)
        check_syntax(spec.workspace / spec.program, spec.python, is_remote=spec.site.remote)
    for text in list_notes(spec, given, split):
        tell(text)
    return line, spec
