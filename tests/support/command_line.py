"""Jobs of command lines, as `pslaunch BACKEND` makes them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pslaunch.backends.face import CommandLine
from pslaunch.backends.registry import find_face, gather_given, get_options
from pslaunch.options.args import Split, split_command_line
from pslaunch.options.sources import Given
from pslaunch.options.spec import JobSpec


def gather_line(backend: str, words: Sequence[str], cwd: Path) -> tuple[Given, Split]:
    """Return the options of a command line with those of files in `cwd`, and the line by owner."""
    split = split_command_line(words, get_options(backend), refused=find_face(backend).list_refused())
    return gather_given(backend, split, cwd), split


def make_spec(backend: str, words: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> JobSpec:
    """Return the job of a command line. Raises PslaunchError."""
    given, split = gather_line(backend, words, cwd)
    return find_face(backend).make_spec(CommandLine("", given, split, cwd, environ, sys.stdout, print))
