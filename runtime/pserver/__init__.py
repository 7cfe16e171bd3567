"""The pserver program: `python -m pslaunch.runtime.pserver`."""
