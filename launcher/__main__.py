"""The command `pslaunch`, and `python -m pslaunch`."""

from __future__ import annotations

import gc

from .node import GC_THRESHOLD


def main() -> None:
    """As `cli.main`, whose imports are half of what a user waits for."""
    gc.set_threshold(GC_THRESHOLD)
    from . import cli

    cli.main()


if __name__ == "__main__":
    main()
