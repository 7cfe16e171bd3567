"""Data sets by their v2 names, read from local files and never downloaded."""

from __future__ import annotations

from . import imdb, imikolov, movielens, uci_housing

__all__ = ["imdb", "imikolov", "movielens", "uci_housing"]
