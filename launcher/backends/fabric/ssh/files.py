"""The ssh configuration as read by Fabric, for machines without OpenSSH; finds lines of directives."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ....errors import HostError

_FILES = ("~/.ssh/config", "/etc/ssh/ssh_config")
MAX_DEPTH = 8


def look_up(name: str) -> dict[str, Sequence[str]]:
    """Return the settings of a host like `ssh -G`. Raises HostError, step "resolve"."""
    import paramiko

    config = paramiko.SSHConfig()
    try:
        for path in _FILES:
            config.parse(line for _, _, line in _read_lines(Path(path).expanduser()))
        found = config.lookup(name)
    except (paramiko.SSHException, OSError) as e:
        raise HostError(name, "resolve", f"{' or '.join(_FILES)}: {e}") from None
    return {key: [value] if isinstance(value, str) else value for key, value in found.items()}


def find_directive(directive: str) -> str:
    """Return file and line of the first directive of this name."""
    for path in _FILES:
        for place, found, _ in _read_lines(Path(path).expanduser()):
            if found == directive:
                return place
    return " or ".join(_FILES)


def _read_lines(path: Path, depth: int = 0) -> Iterator[tuple[str, str, str]]:
    """Return place, directive and text of the lines of a file and its includes.

    After an Include, the current Host line is repeated.
    """
    if depth > MAX_DEPTH:
        raise OSError(f"{path}: Include is nested more than {MAX_DEPTH} deep, or circular")
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    block = "Host *"
    for number, line in enumerate(lines, 1):
        place, text = f"{path}:{number}", line.strip()
        first, *rest = re.split(r"\s*=\s*|\s+", text, maxsplit=1)
        directive = first.lower()
        if not directive or directive.startswith("#"):
            continue
        if directive in ("host", "match"):
            block = text
        if directive != "include":
            yield place, directive, text
            continue
        for file in _find_included(path, " ".join(rest).split()):
            yield from _read_lines(file, depth + 1)
            yield place, "host", block


def _find_included(path: Path, patterns: Sequence[str]) -> list[Path]:
    found = [path.parent / Path(pattern.strip('"')).expanduser() for pattern in patterns]
    return [Path(file) for p in found for file in sorted(glob.glob(str(p)))]  # noqa: PTH207 - absolute
