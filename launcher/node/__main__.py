"""Entry on a node: `python -m pslaunch.node keeper …`; the zipapp and the boot over SSH call it too."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pslaunch.node import keeper


def main(argv: Sequence[str]) -> int | str:
    """What `sys.exit` takes."""
    return keeper.main(argv[1:]) if argv[:1] == ["keeper"] else f"unknown: {argv}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
