"""Jobs of command lines, as `pslaunch BACKEND` makes them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pslaunch.backends.face import CommandLine
from pslaunch.backends.registry import find_face, gather_given, get_options
from pslaunch.options.args import split_command_line
from pslaunch.options.spec import JobSpec


def make_line(backend: str, words: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> CommandLine:
    """Return a command line, with what files in `cwd` add. Raises PslaunchError."""
    face, rows = find_face(backend), get_options(backend)
    split = split_command_line(
        words,
        {name: row.values for name, row in rows.items()},
        {name for name, row in rows.items() if row.repeatable},
        aliases={alias: name for name, row in rows.items() for alias in row.aliases},
        refused=face.list_refused(),
    )
    return CommandLine("", gather_given(backend, split, cwd), split, cwd, environ, sys.stdout, print)


def make_spec(backend: str, words: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> JobSpec:
    """Return the job of a command line. Raises PslaunchError."""
    return find_face(backend).make_spec(make_line(backend, words, cwd, environ))
