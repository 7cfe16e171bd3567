"""Exit codes of launcher, agents and keepers: one name and one meaning each.

Numbers from 64 to 78 are from sysexits.h, rarely used by programs. A program's own code, or 128+n after
signal n, is passed on unchanged.
"""

from __future__ import annotations

import errno

from pslaunch.runtime.shared.remedies import find_remedy as find_remedy

OK = 0  # every trainer ended with 0
FAILED = 1  # a failure without a code of its own
USAGE = 2  # the command line, a configuration file or a hostfile is wrong
NOT_FINITE = 65  # a gradient is NaN or infinite, with --nan=refuse
HOST = 68  # a host was not reached
SERVICE = 69  # a port or service is not available
IO = 74  # reading or writing failed, or the disk is full
PEER = 75  # a peer vanished: secondary to the failure of that peer
NODE_LOST = 76  # a node was lost: its connection closed or it fell silent
RIGHTS = 77  # rights or keys are missing
PREFLIGHT = 78  # a node lacks something that the job needs
TIMEOUT = 124  # the job took longer than --timeout; as of timeout(1)
SIGNAL_BASE = 128
HUP = 129  # the launcher was ended by HUP
INT = 130  # the launcher was ended by INT (Ctrl+C)
TERM = 143  # the launcher was ended by TERM


class Refusal(Exception):
    """An order that the node can't carry out; text and code go to the head."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def choose_code(e: OSError) -> int:
    return RIGHTS if e.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else IO


def describe_error(e: OSError) -> str:
    """Return an error of the system in words: path, cause and remedy."""
    return (f"can't use {e.filename}: {e.strerror}" if e.filename else e.strerror or str(e)) + find_remedy(e)


def explain_failure(e: Exception) -> tuple[int, str]:
    if isinstance(e, Refusal):
        return e.code, str(e)
    if isinstance(e, OSError):
        return choose_code(e), describe_error(e)
    return IO, f"{type(e).__name__}: {e}"
