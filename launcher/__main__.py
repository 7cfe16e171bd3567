"""The command `pslaunch`, and `python -m pslaunch`."""

from __future__ import annotations

import gc

# Objects that are made before Python looks for cycles (its own number is 700): what is imported are tens of
# thousands that stay, and to look through them again and again takes 5 to 10 ms of a start.
GC_THRESHOLD = 50_000


def main() -> None:
    """Run `cli.main`; its imports take half of the time of a start."""
    gc.set_threshold(GC_THRESHOLD)
    from . import cli

    cli.main()


if __name__ == "__main__":
    main()
