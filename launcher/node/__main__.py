"""Entry on a node: `python -m pslaunch.node keeper …`, also as the zipapp's own main."""

import sys

from pslaunch.node import keeper

if __name__ == "__main__":
    sys.exit(keeper.main(sys.argv[2:]) if sys.argv[1:2] == ["keeper"] else f"unknown: {sys.argv[1:]}")
