"""The hosts of examples/clusters with this machine's sshd: their own files, where a container has them.

No container engine takes part: namespaces, a read-only root and a user without rights do, as compose.yaml and
ssh_servers.yaml ask for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import write_conf

from pslaunch.options.hosts import Host
from pslaunch.ssh.fleet import Fleet
from support.leaks import MARK
from support.process import Started, poll_until
from support.sshd import SSHD, greets, make_key, own_ssh, reaching
from testbed import why_not

FOLDER = Path(__file__).parents[2] / "examples/clusters"
KEEPER = ["keeper", "20", "1"]
NAME = "ssh-servers-0"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
IDS = ["--reuid=1000", "--regid=1000", "--clear-groups"]
RIGHTLESS = ["setpriv", *IDS, "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "env", "-i", PATH]
# $1: a folder with the files of the image and the home volume, which outlives the container.
MOUNTS = """
set -eu
mount -t tmpfs tmpfs /run
cp "$1/start" /run/start
mkdir /run/secrets
mount --bind "$1/secrets" /run/secrets
mount --bind "$1/passwd" /etc/passwd
mount --bind "$1/sshd_config" /etc/ssh/sshd_config
mount --bind "$1/home" /home
mount -o remount,bind,ro /
mount -t tmpfs -o mode=1777 tmpfs /tmp
shift
exec "$@"
"""


@dataclass
class Container:
    """A container that runs `start`, and its output."""

    folder: Path
    port: int
    started: Started

    @property
    def server(self) -> write_conf.Server:
        return write_conf.Server(NAME, "127.0.0.1", tuple(self.enter()), self.port)

    def enter(self) -> list[str]:
        """Return the start of a command line that runs in the container as its user, like `docker exec`."""
        (child,) = Path(f"/proc/{self.started.pid}/task/{self.started.pid}/children").read_text().split()
        mark = f"{MARK}={os.environ[MARK]}"
        return ["nsenter", f"--target={child}", "--mount", "--pid", "--", *RIGHTLESS, mark]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the image, a key that was made for it, and a volume that anyone may write to."""
    if not Path(SSHD).exists() or (why := why_not()):
        pytest.skip(why if Path(SSHD).exists() else "no sshd here; apt-get install openssh-server")
    for name in ("start", "sshd_config", "make_key.sh"):
        shutil.copy(FOLDER / name, tmp_path)
    subprocess.run(
        ["sh", tmp_path / "make_key.sh"], stdin=subprocess.DEVNULL, check=True, capture_output=True
    )
    (tmp_path / "secrets").mkdir()
    shutil.copy(tmp_path / "access/key.pub", tmp_path / "secrets/authorized_keys")
    (tmp_path / "passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\npslaunch:x:1000:1000::/home/pslaunch:/bin/sh\n"
    )
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o777)  # as an emptyDir is
    return tmp_path


@contextlib.contextmanager
def container(folder: Path) -> Iterator[Container]:
    """Start one; it ends with all that runs in it. Its sshd listens if it was given a key."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mark = f"{MARK}={os.environ[MARK]}"
    sshd = ["-p", str(port), "-o", "ListenAddress=127.0.0.1", "-o", f"SetEnv={mark}"]
    spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    argv = [*spaces, "sh", "-c", MOUNTS, "sh", str(folder), *RIGHTLESS, mark, "/run/start", *sshd]
    one = Container(folder, port, Started(argv, env=None, cwd=None))
    try:
        yield one
    finally:
        one.started.kill()


@pytest.fixture
def server(folder: Path) -> Iterator[Container]:
    with container(folder) as one:
        one.started.expect("Server listening")
        yield one


def write(server: Container, *, by_exec: bool = False) -> Path:
    """ssh_config and the rest, as write_conf.py makes them."""
    write_conf.write([server.server], server.folder / "access", by_exec=by_exec)
    return server.folder / "access/ssh_config"


def ssh(*words: str) -> subprocess.CompletedProcess[str]:
    argv = ["ssh", "-T", "-o", "BatchMode=yes", *words]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def test_sshd_takes_its_settings(server: Container) -> None:
    checked = subprocess.run(
        [*server.enter(), SSHD, "-t"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.parametrize("by_exec", [False, True])
def test_ssh_gets_in_with_the_key(server: Container, by_exec: bool) -> None:
    done = ssh(
        "-F",
        str(write(server, by_exec=by_exec)),
        NAME,
        "id -un; umask; grep CapBnd /proc/self/status; touch /x",
    )
    assert done.stdout.split() == ["pslaunch", "0022", "CapBnd:", "0000000000000000"]
    assert "Read-only file system" in done.stderr


@pytest.mark.parametrize("by_exec", [False, True])
def test_pslaunch_connects_to_a_container(
    server: Container, by_exec: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_ssh(server.folder / "bin", write(server, by_exec=by_exec), monkeypatch)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with contextlib.closing(Fleet(reaching(), ask=None)) as fleet:
        (channel,) = fleet.open([Host(NAME)], [KEEPER])
        greets(channel)


def test_by_exec_sshd_keeps_its_outputs_and_says_nothing(server: Container) -> None:
    """containerd ends the input of `kubectl exec` as soon as one of the outputs is closed."""
    argv = [*server.enter(), *write_conf.SSHD]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe) as sshd:
        assert sshd.stdin and sshd.stdout and sshd.stderr
        assert sshd.stdout.readline().startswith(b"SSH-2.0-")
        sshd.stdin.write(b"SSH-2.0-test\r\n")
        sshd.stdin.flush()
        assert sshd.stdout.read(6)[5:] == b"\x14"  # its first message: what was to be closed is closed
        (child,) = Path(f"/proc/{sshd.pid}/task/{sshd.pid}/children").read_text().split()
        assert [str(Path(f"/proc/{child}/fd/{fd}").readlink())[:5] for fd in (0, 2)] == ["/dev/", "pipe:"]
        sshd.stdin.close()
        assert sshd.stderr.read() == b""


def test_nothing_else_gets_in(server: Container) -> None:
    config = write(server)
    other = make_key(server.folder / "other")
    strange = server.folder / "strange"
    strange.write_text(config.read_text().replace(f"{server.folder}/access/key", str(other)))
    for words in (
        ["-F", str(strange)],
        ["-F", str(config), "-o", "User=root"],
        ["-F", str(config), "-o", "PubkeyAuthentication=no"],
    ):
        done = ssh(*words, NAME, "true")
        assert (done.returncode, "Permission denied (publickey)" in done.stderr) == (255, True), done.stderr
    done = ssh("-F", str(config), "-W", "127.0.0.1:1", NAME)
    assert "administratively prohibited" in done.stderr


def test_another_host_key_is_refused(server: Container) -> None:
    config = write(server)
    other = server.folder / "access/key.pub"
    (server.folder / "access/known_hosts").write_text(f"{NAME} {' '.join(other.read_text().split()[:2])}\n")
    assert "Host key verification failed" in ssh("-F", str(config), NAME, "true").stderr


def test_container_is_ready_once_it_listens_and_a_restart_keeps_its_host_key(folder: Path) -> None:
    ready, key = folder / "home/pslaunch/.sshd/pid", folder / "home/pslaunch/.sshd/ssh_host_ed25519_key.pub"
    keys = []
    for _ in range(2):
        with container(folder) as one:
            one.started.expect("Server listening")
            poll_until(ready.exists, describe="its probe does not find it ready")
            keys.append(key.read_text())
    assert keys[0] == keys[1]
    assert ready.exists()  # of a container that was killed
    (folder / "secrets/authorized_keys").write_text("")
    with container(folder) as one:
        assert one.started.wait() == 1
    assert not ready.exists()


@pytest.mark.parametrize("there", [False, True])
def test_without_a_key_it_does_not_start(folder: Path, there: bool) -> None:
    if there:
        (folder / "secrets/authorized_keys").chmod(0o600)
    else:
        (folder / "secrets/authorized_keys").unlink()
    with container(folder) as one:
        assert one.started.wait() == 1
        one.started.expect(
            r"^start: no key may log in: /run/secrets/authorized_keys is not there, empty or not"
        )
