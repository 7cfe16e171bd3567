"""The command `pslaunch`, and `python -m pslaunch`."""

from __future__ import annotations

import gc
import signal
import sys

# Objects that are made before Python looks for cycles (its own number is 700): what is imported are tens of
# thousands that stay, and to look through them again and again takes 5 to 10 ms of a start.
GC_THRESHOLD = 50_000


def main() -> None:
    """Run `cli.main`; its imports take half of the time of a start."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _exit)
    gc.set_threshold(GC_THRESHOLD)
    from . import cli

    cli.main()


def _exit(number: int, _frame: object) -> None:
    sys.exit(128 + number)  # as `node.codes` has it, which is not imported yet


if __name__ == "__main__":
    main()
