"""The job of `pslaunch mpi`: the hosts on which mpirun starts it, and the words for mpirun."""

from __future__ import annotations

from typing import NamedTuple

from ..node.job import Node
from .options import DEFAULT


class MpiHost(NamedTuple):
    """A host as mpirun gets it."""

    name: str
    user: str | None
    slots: int


class MpiReach(NamedTuple):
    """The call of mpirun, and what its agents need to begin."""

    mpirun: str  # path or name
    version: tuple[int, ...]  # as found by `mpirun --version`
    ranks: int
    hosts: tuple[MpiHost, ...]  # empty in an allocation, or where mpirun places by itself
    args: tuple[str, ...]  # passed to mpirun unchanged
    node: Node  # template of all nodes: folders on them, `dispatched`
    nic: str = ""  # of the launcher and the nodes, as in Site
    port: int = 0  # at which the launcher listens for agents, past the pservers' ports; 0: any
    agent_python: str | None = None  # path of the agents' Python; None: search
    connect_timeout_s: float = DEFAULT["connect_timeout"]
