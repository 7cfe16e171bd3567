"""Writes what leads to the hosts of this folder: access/conf.py, and the ssh_config and known_hosts it needs.

    python3 write_conf.py compose [--exec]
    python3 write_conf.py k8s [--exec] [--namespace NAME] [--context NAME]
    python3 write_conf.py mpi [--exec] [--namespace NAME] [--context NAME]

Containers and pods are asked of docker and kubectl, and so are the host keys, so that nothing is trusted for
the mere reason that it answered. Addresses are dialled; with --exec, ssh goes in by `docker exec` or `kubectl
exec`, for a machine that has no route to them. The hosts still reach each other by their addresses. For the
pods of head.yaml and mpi-nodes.yaml, `mpi` also writes access/machines, the nodes' addresses for mpirun.
"""

from __future__ import annotations

import argparse
import functools
import ipaddress
import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
PORT: Final = 2222
HEAD: Final = "mpi-head"
DIAL_S: Final = 5.0
TOOL_S: Final = 60.0
# Speaks SSH on its standard input and output. It keeps its standard error (-e): containerd ends the input of
# `kubectl exec` as soon as one of the outputs is closed.
SSHD: Final = ("/usr/sbin/sshd", "-i", "-e", "-o", "LogLevel=ERROR")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_KEY: Final = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]+={0,2}")
# In double quotes, ssh's own meaning of these would win.
_UNQUOTABLE: Final = re.compile(r'["\\%$\x00-\x1f]')


class ClusterError(Exception):
    """No conf.py can be written; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Account:
    """The user of an image, who alone can log in."""

    name: str

    @property
    def root_dir(self) -> str:
        return f"/home/{self.name}/jobs"

    @property
    def host_key(self) -> str:
        return f"/home/{self.name}/.sshd/ssh_host_ed25519_key.pub"


SSH: Final = Account("pslaunch")
MPI: Final = Account("tutorial")


@dataclass(frozen=True, slots=True)
class Kind:
    """Pods of files in this folder."""

    label: str
    files: tuple[str, ...]
    account: Account


SSH_SERVERS: Final = Kind("app=ssh-servers", ("ssh_servers.yaml",), SSH)
MPI_PODS: Final = Kind(f"app in ({HEAD}, mpi-nodes)", ("head.yaml", "mpi-nodes.yaml"), MPI)


@dataclass(frozen=True, slots=True)
class Server:
    """One container or pod with sshd."""

    name: str
    address: str
    enter: tuple[str, ...]  # runs a command in it
    port: int = PORT
    account: Account = SSH


# --- Who is there. Pure. ---


def read_pods(listing: Mapping[str, Any], kubectl: Sequence[str], kind: Kind = SSH_SERVERS) -> list[Server]:
    """The servers of `kubectl get pods -o json`, in order of their numbers. Raises ClusterError."""
    present = [pod for pod in listing["items"] if "deletionTimestamp" not in pod["metadata"]]
    apply = " ".join(["kubectl apply", *(f"-f {file}" for file in kind.files)])
    if not present:
        raise ClusterError(f"no pod has the label {kind.label}; {apply} makes them")
    waiting = {pod["metadata"]["name"]: why for pod in present if (why := explain_not_ready(pod))}
    if waiting:
        sets = dict.fromkeys(f"statefulset/{name.rpartition('-')[0]}" for name in waiting)
        raise ClusterError(
            f"not ready: {', '.join(f'{name} ({why})' for name, why in waiting.items())}; "
            f"{' and '.join(f'kubectl rollout status {name}' for name in sets)} waits for them, "
            "kubectl describe pod says more"
        )
    servers = sort_servers(
        make_server(
            pod["metadata"]["name"],
            pod["status"].get("podIP", ""),
            (*kubectl, f"--namespace={pod['metadata']['namespace']}", "exec", "-i"),
            ("--container=sshd", "--"),
            kind.account,
        )
        for pod in present
    )
    if not select_nodes(servers):
        raise ClusterError(f"no node beside {servers[0].name}; {apply} makes them")
    return servers


def explain_not_ready(pod: Mapping[str, Any]) -> str:
    """Return the reason why a pod can't be used yet; empty if it can."""
    status = pod.get("status", {})
    conditions = {entry["type"]: entry for entry in status.get("conditions", ())}
    if conditions.get("Ready", {}).get("status") == "True":
        return "" if status.get("podIP") else "it has no address"
    reasons = [
        state["reason"]
        for container in status.get("containerStatuses", ())
        for state in container.get("state", {}).values()
        if "reason" in state
    ]
    unscheduled = conditions.get("PodScheduled", {}).get("message")
    return ", ".join([status.get("phase", "Unknown"), *reasons, *([unscheduled] if unscheduled else [])])


def read_containers(
    listing: str, inspected: Sequence[Mapping[str, Any]], docker: Sequence[str]
) -> list[Server]:
    """The servers of `docker compose ps --all --format json` and `docker inspect`. Raises ClusterError."""
    waiting = [
        f"{entry['Name']} ({entry.get('Health') or entry['State']})"
        for entry in parse_compose_entries(listing)
        if entry["State"] != "running" or entry.get("Health", "") not in ("", "healthy")
    ]
    if waiting:
        raise ClusterError(
            f"not ready: {', '.join(waiting)}; "
            "docker compose up --detach --wait waits for them, docker compose logs says more"
        )
    return sort_servers(
        make_server(
            entry["Name"].removeprefix("/"), get_container_address(entry), (*docker, "exec", "-i"), ()
        )
        for entry in inspected
    )


def parse_compose_entries(listing: str) -> list[dict[str, Any]]:
    """The entries of `docker compose ps --format json`: an array until 2.20, an object a line since."""
    text = listing.strip().removeprefix("null")
    entries = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    if not entries:
        raise ClusterError("no container is there; docker compose up --detach --build --wait makes them")
    return list(entries)


def get_container_address(inspected: Mapping[str, Any]) -> str:
    """Its first address, IPv4 where it has one; empty if it has none."""
    networks = inspected["NetworkSettings"]["Networks"].values()
    addresses = [network.get(key) for key in ("IPAddress", "GlobalIPv6Address") for network in networks]
    return next((address for address in addresses if address), "")


def make_server(
    name: str, address: str, before: Sequence[str], after: Sequence[str], account: Account = SSH
) -> Server:
    """One server; its name and its address go into files, and must be no more than that."""
    if not _NAME.fullmatch(name):
        raise ClusterError(f"{name!r} can't be a host's name in ssh_config")
    try:
        checked = str(ipaddress.ip_address(address))
    except ValueError:
        raise ClusterError(f"{name} has no address: {address!r}") from None
    return Server(name, checked, (*before, name, *after), account=account)


def sort_servers(servers: Iterable[Server]) -> list[Server]:
    """By name, numbers in it by value: ssh-servers-10 comes after ssh-servers-9."""

    def get_key(one: Server) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", one.name)]

    return sorted(servers, key=get_key)


# --- What is written. Pure. ---


def render_conf(servers: Sequence[Server]) -> str:
    hosts = "".join(f'    "{one.name}",\n' for one in select_nodes(servers))
    says = "# Written by write_conf.py: ssh_config beside it says how these are reached."
    return f'{says}\nHOSTS = [\n{hosts}]\nROOT_DIR = "{servers[0].account.root_dir}"\n'


def render_machines(servers: Sequence[Server]) -> str:
    """Return the nodes as a hostfile of mpirun."""
    return "".join(f"{one.address}\n" for one in select_nodes(servers))


def select_nodes(servers: Sequence[Server]) -> list[Server]:
    """Return all but the head of an MPI cluster."""
    return [one for one in servers if not one.name.startswith(HEAD)]


def render_known_hosts(servers: Sequence[Server], keys: Mapping[str, str]) -> str:
    """The hosts' keys, by names for this machine and by addresses for a head. Raises ClusterError."""
    lines = []
    for one in servers:
        key = " ".join(keys[one.name].split()[:2])
        if not _KEY.fullmatch(key):
            raise ClusterError(
                f"{one.name}: {one.account.host_key} is not a public key: {keys[one.name]!r:.80}"
            )
        lines.append(f"{one.name},[{one.address}]:{one.port} {key}\n")
    return "".join(lines)


def render_ssh_config(servers: Sequence[Server], access: Path, *, by_exec: bool) -> str:
    """Return an ssh config by which ssh reaches each server by its name. Raises ClusterError."""
    if _UNQUOTABLE.search(str(access)):
        raise ClusterError(f"ssh_config can't name the folder {str(access)!r}")
    blocks = []
    for one in servers:
        if by_exec:
            command = shlex.join([*one.enter, *SSHD]).replace("%", "%%")
            way = f"    ProxyCommand {command}\n"
        else:
            way = f"    HostName {one.address}\n    Port {one.port}\n"
        blocks.append(
            f"Host {one.name}\n{way}"
            f"    User {one.account.name}\n"
            f"    HostKeyAlias {one.name}\n"
            f'    UserKnownHostsFile "{access}/known_hosts"\n'
            "    StrictHostKeyChecking yes\n"
            f'    IdentityFile "{access}/key"\n'
            "    IdentitiesOnly yes\n"
        )
    return "\n".join(blocks)


# --- Docker, kubectl, the network. ---


def ask(argv: Sequence[str]) -> str:
    """Return the output of a program. Raises ClusterError with its words."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=TOOL_S
        )
    except OSError as e:
        raise ClusterError(f"{argv[0]} can't be started: {e.strerror}; install it") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"no answer within {TOOL_S:g} s: {shlex.join(argv)}") from None
    if done.returncode != 0:
        raise ClusterError(f"{shlex.join(argv)} gave {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def find_kubernetes(chosen: argparse.Namespace, kind: Kind) -> list[Server]:
    context = [f"--context={chosen.context}"] if chosen.context else []
    namespace = [f"--namespace={chosen.namespace}"] if chosen.namespace else []
    kubectl = ["kubectl", *context]
    listing = ask([*kubectl, *namespace, "get", "pods", "-l", kind.label, "-o", "json"])
    return read_pods(json.loads(listing), kubectl, kind)


def find_compose(chosen: argparse.Namespace) -> list[Server]:
    listing = ask(
        ["docker", "compose", "--file", str(HERE / "compose.yaml"), "ps", "--all", "--format", "json"]
    )
    names = [entry["Name"] for entry in parse_compose_entries(listing)]
    return read_containers(listing, json.loads(ask(["docker", "inspect", *names])), ["docker"])


def dial(one: Server) -> None:
    """Connect once. Raises ClusterError."""
    try:
        socket.create_connection((one.address, one.port), DIAL_S).close()
    except OSError as e:
        raise ClusterError(
            f"{one.name}: {one.address} port {one.port} can't be reached from here: {e.strerror or e}; "
            "where this machine has no route to it, --exec goes another way"
        ) from None


def write(servers: Sequence[Server], access: Path, *, by_exec: bool) -> None:
    """Ask each server for its host key, and write the files."""
    config = render_ssh_config(servers, access, by_exec=by_exec)
    keys = {one.name: ask([*one.enter, "cat", one.account.host_key]) for one in servers}
    files = {
        "known_hosts": render_known_hosts(servers, keys),
        "ssh_config": config,
        "conf.py": render_conf(servers),
    }
    if servers[0].account == MPI:
        files["machines"] = render_machines(servers)
    for name, text in files.items():
        (access / name).write_text(text)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Writes access/conf.py, ssh_config and known_hosts, and for mpi also machines."
    )
    ways = parser.add_subparsers(dest="what", required=True)
    finders: dict[str, Callable[[argparse.Namespace], list[Server]]]
    finders = {
        "compose": find_compose,
        "k8s": functools.partial(find_kubernetes, kind=SSH_SERVERS),
        "mpi": functools.partial(find_kubernetes, kind=MPI_PODS),
    }
    for name, find in finders.items():
        way = ways.add_parser(name)
        way.set_defaults(find=find)
        way.add_argument("--exec", dest="by_exec", action="store_true", help="go in by exec, without a route")
        if name != "compose":
            way.add_argument("--namespace", help="of the pods; default: kubectl's own")
            way.add_argument("--context", help="of kubectl; default: its current one")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    chosen = parse(words)
    access = HERE / "access"
    try:
        if not (access / "key").exists():
            raise ClusterError("there is no key yet: sh make_key.sh makes it, before the hosts are started")
        servers = chosen.find(chosen)
        if not chosen.by_exec:
            for one in servers:
                dial(one)
        write(servers, access, by_exec=chosen.by_exec)
    except ClusterError as e:
        sys.exit(f"write_conf.py: {e}")
    print(f"{len(servers)} hosts: {access / 'conf.py'}")
    print("ssh and pslaunch know them by this line, at the top of ~/.ssh/config:")
    print(f'    Include "{access}/ssh_config"')


if __name__ == "__main__":
    main()
