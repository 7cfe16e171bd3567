"""pslaunch: a cluster job launcher for parameter-server training.

Version and import guard, nothing else: every pserver and every node imports this file. The Python API
(docs/api.md) is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Job, launch
    from .errors import JobError, PslaunchError

if __name__ != "pslaunch":  # run from a checkout, `import launcher` would make second copies of every class
    raise ImportError(
        "this folder is imported as 'pslaunch'; install the project (make dev), then import pslaunch"
    )

__version__ = "0.1.0"
__all__ = ["Job", "JobError", "PslaunchError", "__version__", "launch"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import api

    return getattr(api, name)
