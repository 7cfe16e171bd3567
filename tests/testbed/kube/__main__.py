"""A cluster for trying things out: `python -m testbed.kube up FOLDER`, `python -m testbed.kube down FOLDER`.

`needs FOLDER` says what this machine lacks for it, before anything is built. The cluster stays until `down`,
held by a process in the background; FOLDER gets the kubeconfigs that lead to it.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import sys
from pathlib import Path

from testbed import hosts
from testbed.__main__ import began, close_output, holder, start_holder
from testbed.kube import kueue
from testbed.kube.cluster import BUILDERS, BUILT, NAMESPACE, PROGRAMS, PYTHON, USER, Cluster, why_not

ENDS_S = 150.0  # nobody hears while the cluster is made


def main() -> None:
    parser = argparse.ArgumentParser(prog="make")
    parser.add_argument("what", choices=["needs", "up", "hold", "down"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("owner", nargs="?", type=int, default=0)
    chosen = parser.parse_args()
    folder = chosen.folder.absolute()
    if chosen.what == "needs":
        refuse(hosts.why_not({**PROGRAMS, **BUILDERS}))
    elif chosen.what == "up":
        print(up(folder))
    elif chosen.what == "hold":
        hold(folder, chosen.owner)
    else:
        print(down(folder))


def refuse(reason: str) -> None:
    """Raise SystemExit with the reason, if there is one."""
    if reason:
        sys.exit(f"kube: {reason}" + ("" if os.geteuid() == 0 else ": sudo make kube"))


def up(folder: Path, owner: int = 0) -> str:
    """Start a holder in the background; return how to go on. It ends with the process `owner`, if given.

    Raises SystemExit with the reason where no cluster can be made.
    """
    refuse(why_not())
    if holder(folder) is not None:
        sys.exit(f"kube: the cluster of {folder} is up: make kube-down")
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "EXTRAS") if name in os.environ}
    environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    return start_holder(folder, "kube", ["testbed.kube", "hold", str(folder), str(owner)], environ)


def hold(folder: Path, owner: int) -> None:
    """Make the cluster, tell about it on standard output and close it; remove it when told to end."""
    ends = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    owned = os.pidfd_open(owner) if owner else -1
    (folder / "holder").write_text(f"{os.getpid()} {began(os.getpid())}\n")
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    signal.set_wakeup_fd(wake_w)
    for number in ends:
        signal.signal(number, lambda _number, _frame: None)
    with Cluster() as cluster:
        if os.environ.get("EXTRAS"):
            kueue.start(cluster)
            kueue.make_queue(cluster, NAMESPACE, NAMESPACE, {"cpu": "2", "memory": "4Gi"})
        for path in (cluster.kubeconfig, cluster.admin_config):
            shutil.copy(path, folder / path.name)
        (folder / "nodes").write_text("".join(f"{node.init}\n" for node in cluster.nodes))
        print(describe(folder), flush=True)
        close_output()
        gone, _, _ = select.select([wake_r] if owned < 0 else [wake_r, owned], [], [])
    if owned in gone:  # nobody else removes it
        shutil.rmtree(folder, ignore_errors=True)


def describe(folder: Path) -> str:
    where, kubectl = (os.path.relpath(path) for path in (folder, BUILT / "kubectl"))
    return (
        f"A Kubernetes cluster of two nodes is up. For its user {USER}, with the rights of "
        f"templates/k8s/role.yaml in the namespace {NAMESPACE}:\n"
        f"    export KUBECONFIG=$PWD/{where}/kubeconfig\n"
        f"{where}/admin.kubeconfig is for its administrator. A kubectl for it is {kubectl}.\n"
        f"Its nodes have the image {PYTHON}, made by templates/k8s/image.sh.\n"
        "To remove all of it: make kube-down"
    )


def down(folder: Path) -> str:
    """End the holder, which removes the cluster, and remove the folder. Return what was removed, in words."""
    removed = [str(folder)] if folder.exists() else []
    if (fd := holder(folder)) is not None:
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        gone, _, _ = select.select([fd], [], [], ENDS_S)
        os.close(fd)
        if not gone:
            sys.exit(f"kube: the holder of the cluster does not end within {ENDS_S:g} s: {folder}/holder")
        removed.insert(0, "the cluster")
    shutil.rmtree(folder, ignore_errors=True)
    return f"removed {', '.join(removed)}" if removed else f"nothing to remove: no cluster in {folder}"


if __name__ == "__main__":
    main()
