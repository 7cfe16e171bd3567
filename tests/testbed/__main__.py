"""Hosts for trying things out: `python -m testbed up COUNT FOLDER`, `python -m testbed down FOLDER`.

They stay until `down`, held by a process in the background; FOLDER gets what leads to them: conf.py and
machines for the launchers, ssh_config for ssh. Nothing of the user's is changed; where the system's ssh reads
a folder of configs, `up` puts a link there, which `down` removes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed import Hosts, sweep, why_not

CONFIGS = Path("/etc/ssh/ssh_config.d")
EXAMPLE = Path("examples/word2vec")
LINK = CONFIGS / "pslaunch-hosts.conf"
ENDS_S = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="make")
    parser.add_argument("what", choices=["up", "hold", "down"])
    parser.add_argument("count", nargs="?", default="")
    parser.add_argument("folder", type=Path)
    chosen = parser.parse_args()
    folder = chosen.folder.absolute()
    if chosen.what == "up":
        up(chosen.count, folder)
    elif chosen.what == "hold":
        hold(int(chosen.count), folder)
    else:
        try:
            print(down(folder))
        except PermissionError:
            sys.exit(f"hosts: those of {folder} are another user's: sudo make hosts-down")


def up(text: str, folder: Path) -> None:
    """Start a holder in the background, and say how to go on. `text`: how many hosts."""
    count = int(text) if re.fullmatch(r"\d{1,3}", text, re.ASCII) else 0
    if not 1 <= count <= 200:
        sys.exit(f"hosts: from 1 to 200, not {text!r}: make hosts N=3")
    if reason := why_not():
        sys.exit(f"hosts: {reason}" + ("" if os.geteuid() == 0 else ": sudo make hosts"))
    if holder(folder) is not None:
        sys.exit(f"hosts: those of {folder} are up: make hosts-down")
    print(start_holder(folder, "hosts", ["testbed", "hold", str(count), str(folder)], os.environ))


def start_holder(folder: Path, name: str, words: Sequence[str], environ: Mapping[str, str]) -> str:
    """Start the module `words[0]` in the background, and return what it prints until it closes its output.

    Raises SystemExit with its log if it ends before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("wb") as log:
        background = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True, env=environ,
        )  # fmt: skip
    assert background.stdout
    with background.stdout as output:
        text = output.read().decode()
    background.returncode = 0  # not waited for here
    if not text:
        sys.exit(f"{name}: {(folder / 'log').read_text()}")
    return text


def close_output() -> None:
    """Let the reader of standard output know that all is said."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def hold(count: int, folder: Path) -> None:
    """Make the hosts, tell about them on standard output and close it; remove them when told to end."""
    ends = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with Hosts(count) as hosts:
        (folder / "holder").write_text(f"{os.getpid()} {began(os.getpid())} {hosts.id}\n")
        write(hosts, folder)
        tell(hosts, folder)
        close_output()
        signal.sigwait(ends)


def write(hosts: Hosts, folder: Path) -> None:
    """Write the files that lead to the hosts, for the user who called sudo too."""
    from support.wheelhouse import make_wheelhouse  # `down` runs without the package

    user = hosts[0].user
    names = ", ".join(f'"{user}@{host.name}"' for host in hosts)
    (folder / "conf.py").write_text(f'HOSTS = [{names}]\nROOT_DIR = "{hosts.root_dir}"\n')
    (folder / "machines").write_text("".join(f"{host.name}\n" for host in hosts))
    (folder / "ssh_config").write_text(hosts.config.read_text())
    shutil.rmtree(folder / "wheelhouse", ignore_errors=True)
    make_wheelhouse(folder / "wheelhouse")  # these hosts reach no index
    if (other := linked()) is not None and (other.parent == folder or not other.exists()):
        LINK.unlink()
    if CONFIGS.is_dir() and not LINK.is_symlink():  # else other hosts are up, which ssh knows already
        LINK.symlink_to(folder / "ssh_config")
    if sudo := os.environ.get("SUDO_UID"):
        owner = pwd.getpwuid(int(sudo))
        for path in (hosts.key, folder, *folder.iterdir()):
            os.chown(path, owner.pw_uid, owner.pw_gid)


def tell(hosts: Hosts, folder: Path) -> None:
    """The commands to paste."""
    first = hosts[0]
    where = Path(os.path.relpath(folder))
    known = linked() == folder / "ssh_config"
    ssh = "ssh" if known else f"ssh -F {where}/ssh_config"
    print(f"{len(hosts)} hosts are up, each an sshd with a network, processes and files of its own:")
    print(f"    {ssh} {first.name} hostname")
    if known:
        print(f"ssh and pslaunch know them by {LINK}, a link to {where}/ssh_config.")
    else:
        print("For pslaunch, put this line at the top of ~/.ssh/config:")
        print(f"    Include {folder}/ssh_config")
    print("They run as user", first.user, "and have nothing of this checkout. A job:")
    if not (EXAMPLE / "ws").exists():
        print(f"    python {EXAMPLE}/prepare.py {EXAMPLE}/ws")
    root = " --allow-run-as-root" if first.user == "root" else ""
    lines = {"fabric": f"--conf {where}/conf.py", "mpi": f"-hostfile {where}/machines -n {len(hosts)}{root}"}
    for backend, options in lines.items():
        if backend == "mpi" and not shutil.which("mpirun"):
            print("For pslaunch mpi, install Open MPI: apt-get install openmpi-bin")
            continue
        for what in (f"check {backend}", backend):
            print(f"    pslaunch {what} {options} --job_dispatch_package {EXAMPLE}/ws \\")
            print(f"        --install --wheelhouse {where}/wheelhouse train.py")
    print("To remove all of it: make hosts-down", flush=True)


def down(folder: Path) -> str:
    """End the holder, which removes the hosts, and remove the files. Return what was removed, in words."""
    removed = [str(folder)] if folder.exists() else []
    if (fd := holder(folder)) is not None:
        end_holder(fd, (folder / "holder").read_text().split()[-1])
        machines = folder / "machines"
        names = machines.read_text().split() if machines.exists() else []
        removed.insert(0, f"{len(names)} hosts ({', '.join(names)})")
    if (other := linked()) is not None and other.parent == folder:
        LINK.unlink()
        removed.append(str(LINK))
    shutil.rmtree(folder, ignore_errors=True)
    return f"removed {', '.join(removed)}" if removed else f"nothing to remove: no hosts in {folder}"


def end_holder(fd: int, set_id: str) -> None:
    """End the process that holds a set of hosts, and wait until the set is gone; each wait has a limit."""
    for number in (signal.SIGTERM, signal.SIGKILL):  # of a killed holder its guard removes the hosts
        signal.pidfd_send_signal(fd, number)
        if select.select([fd], [], [], ENDS_S)[0]:
            break
        print(
            f"hosts: their holder has not ended after {ENDS_S:g} s; waiting for {list_left(set_id)}",
            flush=True,
        )
    end_s = time.monotonic() + ENDS_S
    while list_left(set_id):
        if time.monotonic() > end_s:
            sys.exit(f"hosts: still there after {ENDS_S:g} s: {list_left(set_id)}; make hosts-down again")
        time.sleep(0.05)


def list_left(set_id: str) -> str:
    """What is there of a set, in words: its processes and links."""
    pids = sweep.outer_processes(set_id)
    return ", ".join([*(f"process {pid}" for pid in pids), *sweep.links(set_id)])


def holder(folder: Path) -> int | None:
    """A descriptor of the process that holds the folder's hosts; None if there is none."""
    with contextlib.suppress(OSError, ValueError):
        pid, start = map(int, (folder / "holder").read_text().split()[:2])
        fd = os.pidfd_open(pid)
        if began(pid) == start and not select.select([fd], [], [], 0)[0]:
            return fd
        os.close(fd)
    return None


def began(pid: int) -> int:
    """Return the start time of a process in ticks: its id alone may be another's by now."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def linked() -> Path | None:
    """The config that the link names."""
    return LINK.readlink() if LINK.is_symlink() else None


if __name__ == "__main__":
    main()
