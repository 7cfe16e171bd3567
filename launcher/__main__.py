"""`python -m pslaunch`: the command of the same name."""

from pslaunch.cli import main

main()
