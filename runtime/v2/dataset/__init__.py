"""Data sets by their v2 names, read from local files and never downloaded: `imikolov`."""

from __future__ import annotations

from . import imikolov

__all__ = ["imikolov"]
