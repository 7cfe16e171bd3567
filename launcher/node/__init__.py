"""What runs on nodes: keeper, agent and head. Standard library only, Python 3.9 or later.

Imports only itself, `pslaunch` (the version) and, of the runtime, `env` and `busyport`; these travel
together as one zipapp.
"""

# Objects that are made before Python looks for cycles (its own number is 700). What is imported are tens of
# thousands that stay: to look through them again and again is a tenth of a start.
GC_THRESHOLD = 50_000
