"""Programs of the nodes: keeper, agent and head. Standard library only, Python 3.9 or later.

Imports itself, the version of `pslaunch` and, of the runtime, `shared`; these travel together as one zipapp.
"""
