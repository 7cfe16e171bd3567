"""One host: how it is started, what can go wrong with it, and what lives on it."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.process import Started, poll_until, started
from testbed.net import HERE, UNUSED, Network
from testbed.sweep import VARIABLE, empty, ip

BOOT = Path(__file__).with_name("boot.sh")
NAMESPACES = ("--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
BOOT_S = 10.0
PLAIN = ("plain", 4711)  # a user without rights: name and id
NOBODY = "02:00:00:00:ff:ff"  # a network card that no host has
# Lines of a shell: other folders in place of those given, without the programs of a pattern.
WITHOUT = """
pattern=$1
shift
for bin; do
    over=/run/over$bin
    mkdir -p $over/up $over/work
    mount -t overlay -o lowerdir=$bin,upperdir=$over/up,workdir=$over/work overlay $bin
    rm -f $bin/$pattern
done
"""
# Folders of this machine that the host has not.
SHOW = """
below=$1
shift
mkdir $below
mount --bind / $below
for path in "$@"; do
    ! mountpoint -q "$path" || umount "$path"
    [ -e "$path" ] || mkdir -p "$path"
    [ "$(ls -A "$path")" ] || mount --bind "$below$path" "$path"
done
"""


@dataclass(frozen=True)
class Site:
    """Properties that the hosts of a set share."""

    set_id: str
    folder: Path  # of all that is theirs
    root: Path  # ROOT_DIR: the same path on all hosts, another folder on each
    user: str
    home: str
    sshd: str
    hidden: tuple[str, ...]  # folders of this machine that hosts don't have
    public_key: str  # of the job
    private_key: str
    environment: str  # NAME=VALUE that every session on a host gets


class Host:
    """A machine of its own, as far as processes, files in the usual places and the network can tell."""

    def __init__(self, site: Site, name: str, number: int, networks: Sequence[Network]) -> None:
        self.site, self.name, self.user = site, name, site.user
        self.address, self.address6 = networks[0].address(number), networks[0].address6(number)
        self.inner_address = networks[-1].address(number)  # of a bastion: as the hosts behind it see it
        self.folder = site.folder / name
        self.home = self.folder / "home"  # as this machine sees it
        self.root = self.folder / "root"  # what the host has as site.root
        self._number, self._networks = number, tuple(networks)
        self._links = [f"{network.bridge}.{number:x}" for network in networks]
        self._chroot = ""
        self._outer: subprocess.Popen[bytes] | None = None
        self._init, self._init_fd = 0, -1  # its first process: the id, and a descriptor of it
        self._changed = False  # it is not as it was made: only a boot makes it so
        self._mending: list[str] = []  # lines of `ip` that let this machine find it again

    # -- files, before its first boot

    def make_files(self, login: str) -> None:
        """Its own folder; the host key is there already. `login` is the line of /etc/passwd."""
        self.root.mkdir(exist_ok=True)
        self.home.mkdir(exist_ok=True)
        (self.folder / "passwd").write_text(f"{login}\nsshd:x:74:74::/run/sshd:/bin/false\n")
        (self.folder / "shadow").write_text(f"{self.user}:*:19000:0:99999:7:::\n")
        (self.folder / "sshd_config").write_text(self._sshd_config())
        self.fill_home()

    def _sshd_config(self) -> str:
        lines = {
            "HostKey": self.folder / "host_key",
            "AuthorizedKeysFile": ".ssh/authorized_keys",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "UsePAM": "no",
            "StrictModes": "no",
            "PidFile": "none",
            "PrintMotd": "no",
            "Subsystem": "sftp internal-sftp",
            "SetEnv": self.site.environment,
            "ChrootDirectory": "/mnt" if self._chroot else "none",
        }
        return "".join(f"{key} {value}\n" for key, value in lines.items())

    def fill_home(self) -> None:
        """Empty home and ROOT_DIR but for the job's key, which leads to all hosts and into this one."""
        for folder in (self.home, self.root):
            empty(folder)
        ssh = self.home / ".ssh"
        ssh.mkdir(mode=0o700)
        (ssh / "authorized_keys").write_text(self.site.public_key)
        (ssh / "id_ed25519").touch(0o600)
        (ssh / "id_ed25519").write_text(self.site.private_key)
        shutil.copy(self.site.folder / "known_hosts", ssh)

    # -- power

    def boot(self) -> None:
        """Switch it on."""
        boot([self])

    def start(self) -> None:
        """The first step of booting: its namespaces, and its files in them."""
        assert self._outer is None, f"{self.name} is on"
        site = self.site
        argv = [self.site.folder, self.name, site.home, site.root, site.sshd, self._chroot, *site.hidden]
        log = self.folder / "sshd.log"
        log.unlink(missing_ok=True)
        with log.open("wb") as said:
            self._outer = subprocess.Popen(
                ["unshare", *NAMESPACES, "sh", str(BOOT), *map(str, argv)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", VARIABLE: site.set_id},
                start_new_session=True,
            )

    def connect(self) -> list[str]:
        """The second step: lines of `ip` that connect it."""
        assert self._outer and self._outer.stdout
        said = self._outer.stdout.readline()
        assert said == b"up\n", f"{self.name} does not boot: {self.log()}"
        pid = self._outer.pid
        self._init = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        self._init_fd = os.pidfd_open(self._init)
        lines = []
        for k, (link, network) in enumerate(zip(self._links, self._networks, strict=True)):
            mac = network.mac(self._number)
            lines.append(f"link add {link} type veth peer name eth{k} address {mac} netns {pid}")
            lines.append(f"link set {link} master {network.bridge} up")
        return lines

    def configure(self) -> None:
        """The third step: addresses, and sshd."""
        assert self._outer and self._outer.stdin and self._outer.stdout
        lines = ["link set lo up"]
        for k, network in enumerate(self._networks):
            lines.append(f"addr add {network.address(self._number)}/24 dev eth{k}")
            lines.append(f"addr add {network.address6(self._number)}/64 dev eth{k} nodad")
            lines.append(f"link set eth{k} up")
        with self._outer.stdin as stdin, self._outer.stdout:
            stdin.write("\n".join(["go", *lines, "", ""]).encode())

    def wait_until_ready(self) -> None:
        """The last step: it listens."""

        def listens() -> bool:
            assert self._outer is not None
            assert self._outer.poll() is None, f"{self.name} has ended: {self.log()}"
            return "Server listening on :: " in self.log()

        poll_until(listens, describe=self.log, timeout_s=BOOT_S, every_s=0.005)
        self._changed = False

    def crash(self) -> None:
        """Power failure: everything on it ends at once, and nobody on the network hears of it."""
        self._changed = True
        ip(*(f"link del {link}" for link in self._links), check=False)
        self.end()

    def end(self) -> None:
        """End what is left of it, and wait for it. May be called twice."""
        if self._outer is not None:
            with self._outer:
                self._outer.kill()
            self._outer = None
        if self._init_fd >= 0:
            # It ends when everything on the host has.
            gone, _, _ = select.select([self._init_fd], [], [], BOOT_S)
            os.close(self._init_fd)
            self._init_fd = -1
            assert gone, f"{self.name} does not end"

    @property
    def as_made(self) -> bool:
        """Return True if the host is on, and no fault has befallen it since it was switched on."""
        return not self._changed and self._outer is not None and self._outer.poll() is None

    def reset(self) -> None:
        """Put the host back as it was made: only sshd runs, and no file of any test is there."""
        if not self.as_made:
            if self._outer is not None:
                self.crash()
            self._restore()
            self.boot()
            poll_until(self._answers, describe=f"{self.name} is not reached", timeout_s=BOOT_S)
            return
        self._end_all()
        self.fill_home()
        for folder in ("tmp", "dev/shm"):
            empty(self.get_folder(folder))

    def get_folder(self, name: str) -> Path:
        """Return a folder of the host that others don't have, as this machine sees it."""
        return Path(f"/proc/{self._init}/root/{name}")

    def _answers(self) -> bool:
        """Return True if this machine reaches it: the address may still be remembered as another host's."""
        with contextlib.suppress(OSError), socket.create_connection((self.address, 22), timeout=1.0):
            return True
        return False

    def _restore(self) -> None:
        self._chroot = ""
        mending, self._mending = self._mending, []
        ip(*mending, check=False)  # with the last link of a bridge they go by themselves
        for file in ("host_key", "passwd", "shadow"):
            if (first := self.folder / f"{file}.first").exists():
                first.replace(self.folder / file)
        for folder in (self.home, self.root):
            os.chown(folder, os.getuid(), os.getgid())
        (self.folder / "sshd_config").write_text(self._sshd_config())
        self.fill_home()

    def _end_all(self) -> None:
        def none_left() -> bool:
            pids = [pid for pid in self._alive() if pid != self._init]
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        poll_until(none_left, describe=lambda: str(self.processes()), every_s=0.005)

    # -- faults; pristine() undoes all of them

    def cut_link(self) -> None:
        """Cut its cable: silence, in both directions."""
        self._changed = True
        ip(*(f"link set {link} down" for link in self._links))

    def restore_link(self) -> None:
        """Mend the cable."""
        ip(*(f"link set {link} up" for link in self._links))

    def limit_link(self, rate: str) -> None:
        """Let so much pass in each direction, as of a network with this rate (`1gbit`)."""
        self._changed = True
        shape = ("root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
        for k, link in enumerate(self._links):
            subprocess.run(["tc", "qdisc", "add", "dev", link, *shape], check=True)
            self.run("tc", "qdisc", "add", "dev", f"eth{k}", *shape)

    def cut_off(self, other: Host | None = None) -> None:
        """Nothing passes any more between it and another host, by default this machine; all else does."""
        self._changed = True
        network = self._networks[0]
        ours = [self.address, self.address6]
        if other is None:
            ip(*(f"neigh replace {a} lladdr {NOBODY} nud permanent dev {network.bridge}" for a in ours))
            self._mending = [f"neigh del {a} dev {network.bridge}" for a in ours]
            self._mislead(network.address(HERE), network.address6(HERE))
        else:
            other._changed = True
            self._mislead(other.address, other.address6)
            other._mislead(*ours)

    def _mislead(self, *addresses: str) -> None:
        """Make everything that it sends to these addresses go nowhere."""
        for address in addresses:
            self.run("ip", "neigh", "replace", address, "lladdr", NOBODY, "nud", "permanent", "dev", "eth0")

    def _add_rule(self, priority: str, *words: str) -> None:
        self._changed = True
        for family in ("-4", "-6"):
            self.run("ip", family, "rule", "add", "priority", priority, "ipproto", "tcp", *words)

    def restrict_ports(self, first: int, last: int) -> None:
        """Nobody gets an answer from it but at these ports and those below 1024."""
        for ports in (f"1024-{first - 1}", f"{last + 1}-65534"):
            self._add_rule("10", "sport", ports, "dport", "32768-65534", "blackhole")

    def block_ports(self, *ports: int) -> None:
        """Nothing that it sends to these ports of others leaves it."""
        for port in ports:
            self._add_rule("10", "dport", str(port), "prohibit")

    def drop_packets(self, first: int, last: int) -> None:
        """What it sends to these ports of others is lost, as by a firewall that drops; but for its sshd."""
        network = self._networks[0]
        for family, nobody in (("-4", network.address(UNUSED)), ("-6", network.address6(UNUSED))):
            self._mislead(nobody)
            self.run("ip", family, "route", "add", "default", "via", nobody, "dev", "eth0", "table", "77")
        self._add_rule("9", "sport", "22", "lookup", "main")
        self._add_rule("10", "dport", f"{first}-{last}", "lookup", "77")

    def hide_port(self, port: int) -> None:
        """Nobody gets an answer from this port of it."""
        self._add_rule("10", "sport", str(port), "blackhole")

    def change_key(self) -> None:
        """It was set up anew: another host key, which known_hosts does not have."""
        self._keep("host_key")
        for name in ("host_key", "host_key.pub"):
            (self.folder / name).unlink(missing_ok=True)
        new = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "host_key")]
        subprocess.run(new, check=True)
        self._reboot()

    def install_old_python(self, system: Path) -> None:
        """Its users see another system, which has an older Python: all of it below this folder."""
        self._chroot = str(system.resolve())
        (self.folder / "sshd_config").write_text(self._sshd_config())
        self._reboot()

    def remove_python(self) -> None:
        """It has no Python, in none of the places where one looks."""
        self.remove_programs("python*", "/usr/bin", "/usr/local/bin")

    def remove_programs(self, pattern: str, *folders: str) -> None:
        """Let it have no program of this pattern in these folders."""
        self._changed = True
        self.run("sh", "-euc", WITHOUT, "sh", pattern, *folders)

    def mount_small_disk(self, size_bytes: int, folder: str = "") -> None:
        """Put a disk of this size at a folder, by default ROOT_DIR; it is empty."""
        self._changed = True
        size = f"size={size_bytes},mode=755"
        self.run("mount", "-t", "tmpfs", "-o", size, "tmpfs", folder or str(self.site.root))

    def show_installation(self) -> None:
        """Have this machine's pslaunch and its Python at the same paths, as on a disk that hosts share."""
        self._changed = True
        below = "/run/below"  # this machine's files, without what a host has in their place
        self.run("sh", "-euc", SHOW, "sh", below, *self.site.hidden)

    def share_root(self, other: Host) -> None:
        """Have another host's ROOT_DIR for its own, as over NFS."""
        self._changed = True
        self.run("mount", "--bind", str(other.root), str(self.site.root))

    def separate_locks(self, path: Path) -> None:
        """Locks of a file that it shares do not reach other hosts, as on an NFS mount with `nolock`."""
        own = self.folder / "own-lock"
        own.write_text("")
        own.chmod(0o666)
        self.run("mount", "--bind", str(own), str(self.site.root / path))

    def set_login_shell(self, shell: str) -> None:
        """Its user logs in with this shell."""
        self._changed = True
        self._keep("passwd")
        first, *rest = (self.folder / "passwd").read_text().splitlines()
        lines = [":".join([*first.split(":")[:6], shell]), *rest, ""]
        (self.folder / "passwd").write_text("\n".join(lines))  # in place: it is mounted

    def add_plain_user(self) -> str:
        """It has a user without rights, whose home and ROOT_DIR these are; the name."""
        self._changed = True
        name, uid = PLAIN
        for file, line in (
            ("passwd", f"{name}:x:{uid}:{uid}::{self.site.home}:/bin/bash"),
            ("shadow", f"{name}:*:19000:0:99999:7:::"),
        ):
            self._keep(file)
            with (self.folder / file).open("a") as f:  # in place: it is mounted
                f.write(f"{line}\n")
        for folder in (self.home, self.root):
            for path in (folder, *folder.rglob("*")):
                os.chown(path, uid, uid)
        return name

    def print_at_login(self, text: str) -> None:
        """Its user's login files print this, also for commands by SSH, whichever of these shells it is."""
        fish = self.home / ".config/fish"
        fish.mkdir(parents=True, exist_ok=True)
        for file in (self.home / ".bashrc", self.home / ".cshrc", fish / "config.fish"):
            file.write_text(f"echo '{text}'\n")

    def freeze(self) -> None:
        """It hangs: its kernel still answers, no process does."""
        self._changed = True
        for pid in self._alive():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        for pid in self._alive():
            os.kill(pid, signal.SIGCONT)

    def _keep(self, file: str) -> None:
        if not (first := self.folder / f"{file}.first").exists():
            shutil.copy(self.folder / file, first)

    def _reboot(self) -> None:
        self.crash()
        self.boot()
        self._changed = True

    # -- what there is on it

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on it as root, without SSH; fails with its words."""
        done = subprocess.run(
            self._entering(argv),
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, f"{self.name}: {argv} gave {done.returncode}: {done.stderr}"
        return done

    def running(self, *argv: str) -> contextlib.AbstractContextManager[Started]:
        """A command that goes on, as root, without SSH."""
        return started(self._entering(argv), env=self._env)

    def _entering(self, argv: Sequence[str]) -> list[str]:
        return ["nsenter", f"--target={self._init}", "--mount", "--uts", "--net", "--pid", "--", *argv]

    @property
    def _env(self) -> dict[str, str]:
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": self.site.home}

    def log(self) -> str:
        """Return the log of its sshd since the host was switched on."""
        return (self.folder / "sshd.log").read_text(errors="replace")

    def processes(self) -> dict[int, str]:
        """Command line by process id (of this machine) of everything on it but its sshd and what that is."""
        found = {}
        for pid in self._alive():
            with contextlib.suppress(OSError):
                program = Path(f"/proc/{pid}/exe").readlink()
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                if pid != self._init and not is_sshd(program):
                    found[pid] = words.decode("utf-8", "replace").strip()
        return found

    def pid(self, on_host: int) -> int:
        """Return this machine's id of the process that has this id on the host."""
        for pid in self._alive():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("NSpid:") and int(line.split()[-1]) == on_host:
                        return pid
        raise ProcessLookupError(f"{self.name} has no process {on_host}")

    def _alive(self) -> Iterator[int]:
        """Every process in its namespace of processes."""
        if self._outer is None:
            return
        with contextlib.suppress(OSError):  # it has ended
            space = Path(f"/proc/{self._init}/ns/pid").readlink()
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    with contextlib.suppress(OSError):
                        if (entry / "ns/pid").readlink() == space:
                            yield int(entry.name)


def is_sshd(program: Path) -> bool:
    """Return True if a file is sshd, or a part of a newer sshd."""
    name = program.name
    return name == "sshd" or name.startswith(("sshd-session", "sshd-auth"))


def boot(hosts: Sequence[Host]) -> None:
    """Switch hosts on, all at once."""
    steps: list[Callable[[Host], None]] = [Host.configure, Host.wait_until_ready]
    for host in hosts:
        host.start()
    ip(*(line for host in hosts for line in host.connect()))
    for step in steps:
        for host in hosts:
            step(host)
