"""Packages of an exact size, and jobs that send one."""

from __future__ import annotations

import os
import random
from pathlib import Path

from pslaunch.node import job
from pslaunch.node.dispatch.archive import pack_archive
from pslaunch.node.dispatch.manifest import Hashes, add_hashes, walk_folder
from pslaunch.node.dispatch.sender import Source
from pslaunch.node.job import Count, Limits, Node, Package, Plan, Role
from pslaunch.ship.package import list_package

TRIES = 200


def fill_package(folder: Path, packed_bytes: int) -> None:
    """Write a file of random bytes, so that the folder is a package of this size once it is packed."""
    package = Package(str(folder))
    size = packed_bytes
    for number in range(TRIES):  # a hash in the manifest may take a byte more or less
        (folder / "data").write_bytes(random.Random(number).randbytes(size))
        missing = packed_bytes - len(pack_archive(list_package(package, {})))
        if not missing:
            return
        size += missing
    raise AssertionError(f"no package of {packed_bytes} bytes")


def list_source(folder: Path) -> Source:
    """Return a folder as the source of a dispatch, with no cache of hashes."""
    return Source(str(folder), add_hashes(walk_folder(str(folder)), Hashes(os.devnull)))


def job_on(folder: Path, nodes: int, *shards: str) -> job.Placed:
    """Return a job that sends a folder to its nodes."""
    places = tuple(
        Node(i, f"n{i}", "127.0.0.1", f"/ws{i}", f"/ws{i}/log", f"/ws{i}/output", f"/ws{i}/.pslaunch",
             dispatched=True)
        for i in range(nodes)
    )  # fmt: skip
    plan = Plan(
        job_id="demo-1", name="demo", epoch=0, backend="local", server="bundled", why="given",
        roles=(Role("trainer", Count("per_node", 1), ("python", "train.py")),),
        port=None, ports_num=1, ports_num_for_sparse=0, trainer_count=1, use_gpu=False, added_env={},
        flags={}, limits=Limits(5.0, 30.0, 60.0, None, 60.0), nodes=places,
        package=Package(str(folder), data_shards=shards),
    )  # fmt: skip
    return job.place(plan, places)
