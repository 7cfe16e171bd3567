"""Jobs of command lines, as `pslaunch BACKEND` makes them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pslaunch.backends.face import CommandLine
from pslaunch.backends.gather import gather_given
from pslaunch.backends.registry import find_face, get_options
from pslaunch.options.args import split_command_line
from pslaunch.options.spec import JobSpec


def make_line(backend: str, words: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> CommandLine:
    """Return a command line, with what files in `cwd` add. Raises PslaunchError."""
    split = split_command_line(words, get_options(backend), refused=find_face(backend).list_refused())
    return CommandLine("", gather_given(backend, split, cwd, environ), split, cwd, environ, sys.stdout, print)


def make_spec(backend: str, words: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> JobSpec:
    """Return the job of a command line. Raises PslaunchError."""
    return find_face(backend).make_spec(make_line(backend, words, cwd, environ))
