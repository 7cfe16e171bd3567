"""What a user can do about errors of the system."""

from __future__ import annotations

import errno
import resource


def find_remedy(e: OSError) -> str:
    """Return a remedy as the end of a message; "" where the system's own words suffice."""
    if e.errno in (errno.EMFILE, errno.ENFILE):
        limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit < hard:
            return f" (of {limit}; raise the limit: ulimit -n {hard})"
        return f" (of {limit}; raise the hard limit: ulimit -Hn, limits.conf, LimitNOFILE= of a service)"
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return "; free some space there"
    if e.errno == errno.ELOOP:
        return "; a link there is not followed: remove it"
    return ""
