"""Pages of docs/ in a terminal: `pslaunch help TOPIC`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from pslaunch.runtime.shared.env import find_near

from ..errors import SpecError


def _list_pages() -> dict[str, Path]:
    """Return the pages by name; of the checkout, where the package is not installed from a wheel."""
    package = Path(__file__).resolve().parents[1]
    folder = package / "docs" if (package / "docs").is_dir() else package.parent / "docs"
    return {path.stem: path for path in sorted(folder.glob("*.md"))}


def list_topics() -> str:
    """Return a line for each page, and one about commands."""
    pages = _list_pages()
    width = max(map(len, pages), default=0)
    lines = []
    for name, path in pages.items():
        with path.open(encoding="utf-8") as f:
            lines.append(f"  {name:{width}}  {f.readline().lstrip('# ').rstrip()}")
    return "\n".join(["pslaunch help TOPIC shows one of these pages, or the help of a command:", *lines])


def find_topic(words: Sequence[str], commands: Sequence[str]) -> Path | None:
    """Return the page of a topic; None for a command. Raises SpecError."""
    pages, word = _list_pages(), words[0].removesuffix(".md")
    if len(words) == 1 and word in pages:
        return pages[word]
    if words[0] in commands:
        return None
    near = find_near(word, [*pages, *commands], 0.5)
    meant = f"did you mean {near!r}?" if near else "pslaunch help lists them"
    raise SpecError(f"no topic {words[0]!r}; {meant}")


def show_page(path: Path, out: TextIO) -> None:
    """Print a page: as it is, or in a pager on a terminal."""
    text = path.read_text(encoding="utf-8")
    if not out.isatty():
        out.write(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    os.environ.setdefault("LESS", "-FRX")
    console = Console(file=out)
    with console.pager(styles=True):
        console.print(Markdown(text))
