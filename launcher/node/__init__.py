"""What runs on nodes: keeper, agent and head. Standard library only, Python 3.9 or later.

Imports only itself, `pslaunch` (the version) and, of the runtime, `env` and `busyport`; these travel
together as one zipapp.
"""
