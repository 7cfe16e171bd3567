"""The ssh configuration as read by Fabric, for machines without OpenSSH; finds lines of directives."""

from __future__ import annotations

import glob
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ....errors import HostError

SYSTEM = "/etc/ssh/ssh_config"
USER = "~/.ssh/config"
MAX_DEPTH = 8
ConfigLine = tuple[str, str, list[str]]  # file:line, text, words with the directive in lower case


def look_up(name: str) -> dict[str, Sequence[str]]:
    """Return the settings of a host like `ssh -G`. Raises HostError, step "resolve"."""
    import paramiko

    config = paramiko.SSHConfig()
    try:
        for path in (USER, SYSTEM):
            config.parse(io.StringIO("\n".join(line for _, line, _ in _read_lines(Path(path).expanduser()))))
        found = config.lookup(name)
    except (paramiko.SSHException, OSError) as e:
        raise HostError(name, "resolve", f"{USER} or {SYSTEM}: {e}") from None
    return {key: [value] if isinstance(value, str) else list(value) for key, value in found.items()}


def find(directive: str) -> str:
    """Return file and line of the first directive of this name."""
    for path in (USER, SYSTEM):
        for place, _, words in _read_lines(Path(path).expanduser()):
            if words[0] == directive:
                return place
    return f"{USER} or {SYSTEM}"


def _read_lines(path: Path, depth: int = 0) -> Iterator[ConfigLine]:
    """Return the lines of a file and its includes; after an Include, repeat the current Host line."""
    if depth > MAX_DEPTH:
        raise OSError(f"{path}: Include is nested more than {MAX_DEPTH} deep, or circular")
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    block = "Host *"
    for number, line in enumerate(lines, 1):
        text = line.strip()
        first, *rest = re.split(r"\s*=\s*|\s+", text, maxsplit=1)
        if not first or first.startswith("#"):
            continue
        words = [first.lower(), *" ".join(rest).split()]
        if words[0] in ("host", "match"):
            block = text
        if words[0] != "include":
            yield f"{path}:{number}", text, words
            continue
        for file in _find_included(path, words[1:]):
            yield from _read_lines(file, depth + 1)
            yield f"{path}:{number}", block, block.lower().split()


def _find_included(path: Path, patterns: Sequence[str]) -> list[Path]:
    found = [path.parent / Path(pattern.strip('"')).expanduser() for pattern in patterns]
    return [Path(file) for p in found for file in sorted(glob.glob(str(p)))]  # noqa: PTH207 - absolute
