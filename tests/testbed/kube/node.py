"""One machine of the cluster: its namespaces and its network; programs are started on it by name."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from testbed.net import HERE, Network
from testbed.sweep import VARIABLE, ip

BOOT = Path(__file__).with_name("node.sh")
NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
ENDS_S = 60.0


def make_entry(init: int, argv: Sequence[str | Path]) -> list[str]:
    """Return the command line of this machine that runs `argv` on the node with this first process."""
    spaces = ("--net", "--uts", "--ipc", "--mount", "--pid")
    return ["nsenter", f"--target={init}", *spaces, "--wdns=/", *map(str, argv)]


class Node:
    """A machine whose processes, mounts and network end with one process of this machine."""

    def __init__(self, set_id: str, folder: Path, number: int, network: Network, programs: Path) -> None:
        """`programs`: folder of what is started; it may be below /tmp, though a node's /tmp is its own."""
        self.name, self.address = f"node{number}", network.address(number)
        self.folder = folder / self.name
        self.folder.mkdir(exist_ok=True)
        self.pods = f"10.244.{number}"  # the first three parts of its pods' addresses
        self._environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", VARIABLE: set_id}
        self._number, self._network, self._of_programs = number, network, programs
        self._link = f"{network.bridge}.{number:x}"
        self._outer: subprocess.Popen[bytes] | None = None
        self.init, self._init_fd = 0, -1
        self._programs: dict[str, subprocess.Popen[bytes]] = {}

    def boot(self, others: Sequence[Node]) -> None:
        """Switch it on, with routes to the pods of the others."""
        self._outer = subprocess.Popen(
            ["unshare", *NAMESPACES, "sh", str(BOOT), self.name, str(self._of_programs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=self._environ,
            start_new_session=True,
        )
        assert self._outer.stdin and self._outer.stdout
        with self._outer.stdin as stdin, self._outer.stdout as said:
            self._expect(said.readline(), b"up\n")
            pid = self._outer.pid
            self.init = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
            self._init_fd = os.pidfd_open(self.init)
            mac = self._network.mac(self._number)
            ip(
                f"link add {self._link} type veth peer name eth0 address {mac} netns {pid}",
                f"link set {self._link} master {self._network.bridge} up",
            )
            lines = ["link set lo up", f"addr add {self.address}/24 dev eth0", "link set eth0 up"]
            lines += [f"route add default via {self._network.address(HERE)}"]
            lines += [
                f"route add {other.pods}.0/24 via {other.address}" for other in others if other is not self
            ]
            stdin.write("\n".join(["go", *lines, "", ""]).encode())
            stdin.flush()
            self._expect(said.readline(), b"connected\n")

    def _expect(self, said: bytes, wanted: bytes) -> None:
        assert said == wanted, f"{self.name} does not boot: {said.decode()}"

    def start(self, name: str, argv: Sequence[str | Path]) -> None:
        """Start a program; its output is in FOLDER/NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._programs[name] = subprocess.Popen(
                make_entry(self.init, argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        """Kill a program that `start` started."""
        program = self._programs.pop(name)
        for child in Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), 9)  # nsenter forks; it ends with its child
        program.wait()

    def ended_programs(self) -> list[str]:
        """Name the programs that have ended by themselves, with the end of their logs."""
        return [
            f"{self.name}: {name} ended with {program.returncode}: {self.read_log(name)[-2000:]}"
            for name, program in [*self._programs.items()]  # threads start others meanwhile
            if program.poll() is not None
        ]

    def read_log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def run(self, *argv: str | Path, timeout_s: float = 120.0) -> str:
        """Run a command to its end; return its output, raise RuntimeError with it if it fails."""
        done = subprocess.run(
            make_entry(self.init, argv),
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{self.name}: {argv}: {done.stdout}{done.stderr}")
        return done.stdout

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        """Take its network away for a while; all on it goes on."""
        ip(f"link set {self._link} down")
        try:
            yield
        finally:
            ip(f"link set {self._link} up")

    def crash(self) -> None:
        """Power failure: everything on it ends at once."""
        ip(f"link del {self._link}", check=False)
        if self._outer is not None:
            with self._outer:
                self._outer.kill()
            self._outer = None
        for program in self._programs.values():
            program.wait()
        self._programs.clear()
        if self._init_fd >= 0:
            gone, _, _ = select.select([self._init_fd], [], [], ENDS_S)
            os.close(self._init_fd)
            self._init_fd = -1
            assert gone, f"{self.name} does not end"
