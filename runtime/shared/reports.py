"""Reports of a program's progress: datagrams to PSLAUNCH_PROGRESS, written by the runtime, read by agents.

docs/environment.md documents their form. Python 3.9, standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Callable


def quote(text: str, limit_bytes: int) -> str:
    """Encode text as one word: space, `%` and unprintable bytes as `%XX`; cut to whole characters."""
    pieces, size = [], 0
    for char in text:
        raw = char.encode("utf-8", "replace")
        plain = char.isprintable() and char not in " %"
        size += len(raw) if plain else 3 * len(raw)
        if size > limit_bytes:
            break
        pieces.append(char if plain else "".join(f"%{byte:02X}" for byte in raw))
    return "".join(pieces)


def unquote(word: str) -> str:
    """Decode a word in which `%20` stands for a space; unprintable characters become spaces."""
    from urllib.parse import unquote as decode  # rarely needed

    return "".join(c if c.isprintable() else " " for c in decode(word))


PROGRESS_FIELDS: Mapping[str, Callable[[str], int | float | str]] = {
    "pass": int,
    "passes": int,
    "batch": int,
    "batches": int,
    "cost": float,
    "samples_per_s": float,
    "dropped": int,
    "waited_s": float,
    "in_bytes": int,
    "out_bytes": int,
    "cut": int,  # step of the newest snapshot that is whole, 0 before the first
    "metric": float,  # and metric.NAME
    "state": str,  # trainer: connected, finished; pserver: connected (its first trainer), finished (all)
    "blames": str,  # the process that `why` is about
    "why": unquote,  # just before a process of ours decides to end without success
}
WANTED_CUT = ".cut"  # after PSLAUNCH_PROGRESS: the file by which an agent asks a trainer for a snapshot
MAX_WHY_BYTES = 600
MAX_PROGRESS_BYTES = 1024  # a datagram to PSLAUNCH_PROGRESS; a longer one is dropped


def format_progress(**fields: int | float | str) -> bytes:
    """Return one datagram for PSLAUNCH_PROGRESS: `pass=0 batch=10 cost=5.31 samples_per_s=5320.5`.

    Numbers that are not finite are left out: JSON has none.
    """
    words = []
    for name, value in fields.items():
        if isinstance(value, float) and not isfinite(value):
            continue
        text = f"{value:.7g}" if isinstance(value, float) else str(value)
        if PROGRESS_FIELDS.get(name) is unquote:
            text = quote(text, MAX_WHY_BYTES)
        words.append(f"{name}={text}".replace(" ", "_").replace("\n", "_"))
    return " ".join(words).encode("utf-8", "replace")[:MAX_PROGRESS_BYTES]


def parse_progress(datagram: bytes) -> list[dict[str, int | float | str]]:
    """Return the reports in a datagram, one per line, without unknown words and invalid values."""
    reports = []
    for line in datagram[:MAX_PROGRESS_BYTES].decode("utf-8", "replace").splitlines():
        report: dict[str, int | float | str] = {}
        for word in line.split():
            name, _, text = word.partition("=")
            read = PROGRESS_FIELDS.get("metric" if name.startswith("metric.") else name)
            if read is None:
                continue
            try:
                value = read(text)
            except ValueError:
                continue
            if not isinstance(value, float) or isfinite(value):
                report[name] = value
        if report:
            reports.append(report)
    return reports
