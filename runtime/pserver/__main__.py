"""`python -m pslaunch.runtime.pserver`: the pserver program."""

import sys

from .pserver import main

sys.exit(main())
