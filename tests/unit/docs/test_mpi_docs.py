"""docs/mpi.md: its failures are those of the code, and it names all options of mpirun's jobs."""

from __future__ import annotations

from pslaunch.backends.mpi.mpirun import PATTERNS
from pslaunch.backends.registry import get_options
from support.pages import DOCS, rows

PARTS = {
    "hosts": "HOST", "host": "HOST", "daemon": "prted", "version": "VERSION", "ranks": "N", "last": "…",
    "near": "", "network": "prte_if_include",
}  # fmt: skip


def test_page_has_the_message_of_every_failure() -> None:
    messages = [(str(int(p.code)), p.text.format("…", "…", **PARTS)) for p in PATTERNS]
    assert [(code, message) for _, code, message in rows("mpi.md", "Failures")] == [*dict.fromkeys(messages)]


def test_page_names_the_options_that_only_hosts_have() -> None:
    page = (DOCS / "mpi.md").read_text()
    names = get_options("mpi").keys() - get_options("local")
    missing = [
        n for n in names if f"--{n}" not in page and f"-{n.replace('_', '-')}" not in page and n != "host"
    ]
    assert missing == [] and "`-H " in page
