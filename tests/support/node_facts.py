"""Facts of a healthy node as `node/agent/inspect.py` reports them to `pslaunch check`."""

from __future__ import annotations

import copy
from typing import Any

GB = 10**9
FACTS: Any = {
    "host": "a",
    "agent_python": {"executable": "/usr/bin/python3", "version": "3.11.2"},
    "machine": "x86_64",
    "processor": "A CPU",
    "libc": "glibc 2.36",
    "cores": 4,
    "memory": {"total": 8 * GB, "available": 4 * GB},
    "folders": {
        "workspace": {
            "path": "/r/ws", "there": False, "parent": "/r", "error": "", "owner": "me",
            "free_bytes": 10 * GB,
        },
    },
    "used_by": "",
    "files": {},
    "links": {},
    "interface_error": "",
    "addrs": ["10.0.0.1"],
    "ports": {"7164": "", "7165": ""},
    "programs": {
        "executable": "/usr/bin/python3", "version": "3.11.2", "missing": [], "error": "",
        "versions": {"numpy": "2.0.0", "pslaunch": "1.0"}, "unavailable": "",
    },
    "proxies": [],
    "starter": "Open MPI 4.1.4, /usr/bin",
    "resources": {"gpus": ["0", "1"], "gpus_by": "/dev/nvidia[0-9]*", "cores": []},
    "cards": [["550.54", "H100", 80 * GB]] * 2,
}  # fmt: skip


def change_facts(**changes: Any) -> Any:
    """Return the facts with these changes; `programs__missing` is a key of `programs`."""
    made = copy.deepcopy(FACTS)
    for path, value in changes.items():
        place, *names = made, *path.split("__")
        for name in names[:-1]:
            place = place[name]
        place[names[-1]] = value
    return made
