"""Test hosts that mpirun reaches: with Open MPI 4 of the system, or a copy of Open MPI 5."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from support import others
from support.furnished import need_same_python
from support.jobs import PSLAUNCH, FabricPlace, has
from testbed import Host, Hosts


def make_options(hosts: Hosts, major: int) -> tuple[str, ...]:
    """Return options of `pslaunch mpi` for these hosts, and copy Open MPI 5 to them if it is wanted."""
    mpirun, network = str(others.mpirun(major)), ("btl_tcp_if_include", "oob_tcp_if_include")
    mca = tuple(word for name in network for word in ("--mca", name, hosts.subnet))
    # A host that was booted anew is sometimes late to find others by IPv6, for which Open MPI waits.
    ipv4 = ("--prtemca" if major == 5 else "--mca", "oob_tcp_disable_ipv6_family", "1")
    own = (*mca, *ipv4, "--allow-run-as-root", f"--root_dir={hosts.root_dir}")
    if major == 4:
        return own
    prefix = get_prefix(hosts)
    if not prefix.exists():
        shutil.copytree(Path(mpirun).parents[1], prefix)
    return (*own, f"--mpirun={mpirun}", f"--prefix={prefix}")


def get_prefix(hosts: Hosts) -> Path:
    """Return the folder of Open MPI 5 on all hosts."""
    return hosts.folder / "openmpi"


def share_mpi4py(hosts: Hosts) -> str:
    """Put mpi4py where all hosts see it; return the option by which programs have it."""
    import mpi4py  # most tests need none

    need_same_python()
    packages = hosts.folder / "packages"
    shutil.copytree(Path(mpi4py.__file__).parent, packages / "mpi4py", dirs_exist_ok=True)
    return f"--env=PYTHONPATH={packages}"


class MpiPlace(FabricPlace):
    """Hosts that mpirun reaches, with one process of each role unless a test says otherwise."""

    def __init__(self, hosts: Hosts, major: int, *options: str, on: Sequence[Host] = ()) -> None:
        super().__init__(hosts, *make_options(hosts, major), *options, on=on)
        self.name = "mpi"

    def command(self, workspace: Path, options: Sequence[str], program: Sequence[str]) -> list[str]:
        own = ["--json", f"--job_dispatch_package={workspace}", *self._options]
        if not {"-hostfile", "-H"} & {*options}:
            own += ["-H", ",".join(host.name for host in self._on)]
        own += [f"{name}=1" for name in ("--server_num", "--worker_num") if not has(options, name)]
        return self._hosts.as_user([*PSLAUNCH, "mpi", *own, *options, *program])
