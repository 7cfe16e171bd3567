"""A set of hosts: made in a moment, reached by an ssh config of their own, gone without a trace."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from testbed import net, sweep
from testbed.host import Host, Site, boot

ROOT = Path(__file__).parents[2]
STATE = Path("/var/tmp")  # hosts have /tmp and the home folder for themselves
PROGRAMS = {"unshare": "util-linux", "ip": "iproute2", "ssh": "openssh-client", "sshd": "openssh-server"}
BASTION = "bastion"


def why_not(more: Mapping[str, str] = {}) -> str:
    """Return the reason why no hosts can be made here; empty if they can.

    more: further programs and files that are needed, and their packages.
    """
    needed = {**PROGRAMS, **more}
    lacking = [one for one in needed if not (shutil.which(one, path=sweep.PATH) or Path("/", one).exists())]
    if lacking:
        packages = sorted({needed[one] for one in lacking})
        return f"no {', '.join(lacking)}: apt-get install {' '.join(packages)}"
    if os.geteuid() != 0:
        return "hosts in namespaces of their own need root"
    probe = ["unshare", "--net", "--mount", "--pid", "--fork", "ip", "link", "add", "pt", "type", "bridge"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return f"no network namespaces and bridges here: {done.stderr.strip()}" if done.returncode else ""


class Hosts:
    """Hosts node1, node2, … of the current user; with a `bastion`, they can be reached through it alone.

    They know each other by name, and the job's key leads from each to each. `run_id`: with it the ids of the
    sets of one run begin; `environment`: NAME=VALUE for every session on them; `state`: where all files are.
    """

    def __init__(
        self,
        count: int,
        *,
        bastion: bool = False,
        run_id: str = "",
        environment: str = "",
        state: Path = STATE,
    ) -> None:
        self.id = ((run_id or uuid.uuid4().hex)[: sweep.RUN_DIGITS] + uuid.uuid4().hex)[: sweep.ID_DIGITS]
        self.folder = Path(tempfile.mkdtemp(prefix=f"pslt-{self.id}-", dir=state))
        self.folder.chmod(0o755)
        self.config, self.known_hosts = self.folder / "ssh_config", self.folder / "known_hosts"
        self.key = self.folder / "key"
        self.root_dir = self.folder / "root"  # on every host: a folder of its own
        self._nodes: list[Host] = []
        self._all: list[Host] = []  # the bastion too
        self._claims: list[net.Network] = []
        self._guard: subprocess.Popen[bytes] | None = None
        try:
            self._make(count, bastion, environment)
        except BaseException:
            self.close()
            raise

    def _make(self, count: int, bastion: bool, environment: str) -> None:
        link = sweep.LINK + self.id
        self._claims = [net.claim(link), *([net.claim(f"{link}i")] if bastion else [])]
        self._guard = sweep.start_guard(self.id, self.folder, [network.claim for network in self._claims])
        outside, inside = self._claims[0], self._claims[-1]
        names = [f"node{k}" for k in range(1, count + 1)]
        self._make_keys([*names, *([BASTION] if bastion else [])])
        site = self._site(environment)
        nodes = [Host(site, name, k, [inside]) for k, name in enumerate(names, 1)]
        doors = [Host(site, BASTION, 253, [outside, inside])] if bastion else []
        self._nodes, self._all = nodes, [*doors, *nodes]
        self._write_names(doors)
        user = pwd.getpwnam(site.user)
        for host in self._all:
            host.make_files(f"{user.pw_name}:x:{user.pw_uid}:{user.pw_gid}::{site.home}:/bin/bash")
        net.make(outside, reachable=True)
        if bastion:
            net.make(inside, reachable=False)
        boot(self._all)

    def _make_keys(self, names: Sequence[str]) -> None:
        """The job's key, and one of each host."""
        self.root_dir.mkdir()
        paths = [self.key]
        for name in names:
            (self.folder / name).mkdir()
            paths.append(self.folder / name / "host_key")
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.id, "-f"]
        makers = [subprocess.Popen([*argv, str(path)]) for path in paths]
        codes = [maker.wait() for maker in makers]
        assert not any(codes), codes

    def _site(self, environment: str) -> Site:
        user = pwd.getpwuid(os.getuid())
        ours = {str(ROOT), sys.prefix, sys.base_prefix} - {"/usr", "/usr/local", "/"}
        hidden = {*ours, "/etc/ssh/ssh_config.d"}  # what ssh knows here, also of other hosts
        return Site(
            set_id=self.id,
            folder=self.folder,
            root=self.root_dir,
            user=user.pw_name,
            home=user.pw_dir,
            sshd=str(shutil.which("sshd", path=sweep.PATH)),
            hidden=tuple(sorted(hidden)),
            public_key=self.key.with_suffix(".pub").read_text(),
            private_key=self.key.read_text(),
            environment=environment or f"PSLAUNCH_TESTBED_SET={self.id}",
        )

    def _write_names(self, doors: Sequence[Host]) -> None:
        """known_hosts, /etc/hosts of all, and how this machine reaches them."""
        known, names, config = [], ["127.0.0.1 localhost", "::1 localhost"], []
        for host in self._all:
            key = " ".join((host.folder / "host_key.pub").read_text().split()[:2])
            addresses = dict.fromkeys([host.inner_address, host.address, host.address6])
            known.append(f"{','.join([host.name, *addresses])} {key}")
            names += [f"{address} {host.name}" for address in addresses]
            config += [f"Host {host.name}", f"    HostName {host.address}"]
        if doors:
            config += [f"Match host {every(self._nodes)}", f"    ProxyJump {BASTION}"]
        config += [f"Match host {every(self._all)}", *(f"    {line}" for line in self._settings())]
        for path, lines in ((self.known_hosts, known), (self.folder / "hosts", names), (self.config, config)):
            path.write_text("\n".join([*lines, ""]))

    def _settings(self) -> list[str]:
        return [
            f"User {pwd.getpwuid(os.getuid()).pw_name}",
            f"IdentityFile {self.key}",
            "IdentitiesOnly yes",
            f"UserKnownHostsFile {self.known_hosts}",
            "GlobalKnownHostsFile none",
            "StrictHostKeyChecking yes",
            "BatchMode yes",
        ]

    # -- the set

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, which: int) -> Host:
        return self._nodes[which]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._nodes)

    @property
    def bastion(self) -> Host:
        """The only way in."""
        return next(host for host in self._all if host.name == BASTION)

    @property
    def subnet(self) -> str:
        """Of the nodes."""
        return self._claims[-1].subnet

    def ssh(self, host: str, *argv: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run `ssh HOST argv…` from this machine."""
        line = ["ssh", "-F", str(self.config), host, *argv]
        return subprocess.run(
            line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def sent_bytes(self) -> int:
        """Return the bytes that this machine has sent to the hosts so far, without those between hosts."""
        bridge = self._claims[0].bridge
        return int(Path(f"/sys/class/net/{bridge}/statistics/tx_bytes").read_text())

    def as_user(self, argv: Sequence[str]) -> list[str]:
        """A command line that runs `argv` where ssh knows the hosts without being told (`-F`)."""
        bind = f'mount --bind {self.config} /etc/ssh/ssh_config && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", bind, "sh", *argv]

    def reset(self) -> None:
        """Put all hosts back as they were made."""
        for host in self._all:
            host.reset()

    def close(self) -> None:
        """Remove all of it. May be called twice."""
        if self._guard is not None:
            assert self._guard.stdin
            self._guard.stdin.close()
            failed = self._guard.wait()
            self._guard = None
        else:
            failed = 1
        if failed:
            sweep.sweep(self.id, str(self.folder))
        for host in self._all:
            host.end()
        for network in self._claims:
            network.claim.close()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def every(hosts: Sequence[Host]) -> str:
    """Their addresses as a pattern of ssh's config; a name in it stands for its address by then."""
    return ",".join(address for host in hosts for address in (host.address, host.address6))
