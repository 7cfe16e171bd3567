"""Pages of docs/ in a terminal: `pslaunch help TOPIC`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TextIO


def list_pages() -> dict[str, Path]:
    """Return the pages by name; of the checkout, where the package is not installed from a wheel."""
    package = Path(__file__).resolve().parents[1]
    folder = package / "docs" if (package / "docs").is_dir() else package.parent / "docs"
    return {path.stem: path for path in sorted(folder.glob("*.md"))}


def read_title(page: Path) -> str:
    with page.open(encoding="utf-8") as f:
        return f.readline().lstrip("# ").rstrip()


def show_page(page: Path, out: TextIO) -> None:
    """Print a page: as it is, or in a pager on a terminal."""
    text = page.read_text(encoding="utf-8")
    if not out.isatty():
        out.write(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    os.environ.setdefault("LESS", "-FRX")
    console = Console(file=out)
    with console.pager(styles=True):
        console.print(Markdown(text))
