"""The ssh configuration as Fabric reads it, for a machine without OpenSSH; says where a directive stands."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pslaunch.errors import HostError

SYSTEM = "/etc/ssh/ssh_config"
USER = "~/.ssh/config"


def look_up(name: str) -> dict[str, Sequence[str]]:
    """What the files say of a host, as `ssh -G` would say it. Raises HostError, step "resolve"."""
    import fabric
    import paramiko

    for path, number, words in _directives():
        if words[0].lower() == "include" and _included(path, words[1:]):
            raise HostError(
                name, "resolve", f"{path}:{number}: Include: this needs OpenSSH's ssh, which is not here"
            )
    try:
        found = fabric.Config().base_ssh_config.lookup(name)
    except paramiko.SSHException as e:
        raise HostError(name, "resolve", f"{USER} or {SYSTEM}: {e}") from None
    return {key: [value] if isinstance(value, str) else list(value) for key, value in found.items()}


def where(directive: str) -> str:
    """File and line of the first directive of this name."""
    for path, number, words in _directives():
        if words[0].lower() == directive:
            return f"{path}:{number}"
    return f"{USER} or {SYSTEM}"


def _directives() -> Iterator[tuple[Path, int, list[str]]]:
    for path in (Path(USER).expanduser(), Path(SYSTEM)):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for number, line in enumerate(lines, 1):
            words = re.split(r"\s*=\s*|\s+", line.strip(), maxsplit=1)
            if words[0] and not words[0].startswith("#"):
                yield path, number, [words[0], *" ".join(words[1:]).split()]


def _included(path: Path, patterns: Sequence[str]) -> list[str]:
    found = [path.parent / Path(pattern.strip('"')).expanduser() for pattern in patterns]
    return [file for p in found for file in glob.glob(str(p))]  # noqa: PTH207 - Path.glob takes no absolute one
