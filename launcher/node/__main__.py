"""Entry on a node: `python -m pslaunch.node keeper …`; the zipapp and the boot over SSH call it too."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence


def main(argv: Sequence[str]) -> int | str:
    """Run the program named by the first word; return the value for `sys.exit`."""
    gc.set_threshold(50_000)  # as in launcher/__main__.py
    mode, *words = argv or [""]
    if mode == "keeper":
        from .agent import keeper

        return keeper.main(words)
    if mode in ("relay", "records", "read", "pack", "results"):
        from .later import relay

        return relay.main(mode, words)
    if mode == "rank":
        from .agent import rank

        return rank.main(words)
    if mode == "task":
        from .agent import brought

        return brought.main(words)
    if mode == "furnish":
        from .agent import install

        return install.main(words[0])
    return f"unknown: {argv}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
