"""Real SSH hosts on one machine: each has a network, processes, mounts and a name of its own. Needs root."""

from __future__ import annotations

from testbed.host import Host
from testbed.hosts import Hosts, why_not

__all__ = ["Host", "Hosts", "why_not"]
