"""Shell words that find a Python 3.9 or later on a node and pass it a program; the same on every backend."""

from __future__ import annotations

import shlex

PYTHONS = (
    "python3",
    *(f"python3.{minor}" for minor in range(14, 8, -1)),
    *("/usr/bin/python3", "/usr/local/bin/python3"),
)

_VERSION = "import sys; print('%d.%d.%d' % sys.version_info[:3]); sys.exit(sys.version_info < (3, 9))"
# A version in the file name is trusted: running Python to ask takes as long as the boot.
_SEARCH = (
    "f=; for p in {pythons}; do q=$(command -v \"$p\") || continue;"
    " case $(readlink -f \"$q\" 2>/dev/null) in */python3.9|*/python3.[1-9][0-9]) ;; *)"
    " v=$(\"$q\" -I -S -c {version} 2>&1 </dev/null) || {{ f=\"$f${{f:+, }}$q ($v)\"; continue; }};; esac;"
    " exec \"$q\" -I -S -c {program} pslaunch; done;"
    " read -r h </proc/sys/kernel/hostname; echo \"pslaunch boot: no Python 3.9 or later on $h:\""
    " \"${{f:-none}} found; looked for\" {looked} >&2; exit 127"
)  # fmt: skip


def make_search(program: str, agent_python: str | None) -> str:
    """Return a command for sh: the first suitable Python executes `program`; without one, 127."""
    return _SEARCH.format(
        pythons=" ".join([_quote_path(agent_python)] if agent_python else PYTHONS),
        version=shlex.quote(_VERSION),
        looked=shlex.quote(
            agent_python or f"python3 and {PYTHONS[-3]} to {PYTHONS[1]} in PATH, /usr/bin, /usr/local/bin"
        ),
        program=shlex.quote(program),
    )


def _quote_path(path: str) -> str:
    """Quote a path for the remote shell, which expands a leading `~/`."""
    return f'"$HOME"{shlex.quote(path[1:])}' if path.startswith("~/") else shlex.quote(path)
