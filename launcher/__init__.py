"""pslaunch: a cluster job launcher for parameter-server training.

Version and import guard, nothing else: every pserver and every node imports this file.
"""

if __name__ != "pslaunch":  # run from a checkout, `import launcher` would make second copies of every class
    raise ImportError(
        "this folder is imported as 'pslaunch'; install the project (make dev), then import pslaunch"
    )

__version__ = "0.1.0"
