"""examples/clusters: its YAML says what it must, and write_conf.py reads what docker and kubectl answer."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import write_conf
import yaml
from write_conf import MPI_PODS, SSH_SERVERS, ClusterError, Kind, Server

from pslaunch.options.conf_py import read_conf
from pslaunch.options.hosts import parse_hosts
from support.sshd import needs_openssh

FOLDER = Path(__file__).parents[3] / "examples/clusters"
SSHD_CONFIG = (FOLDER / "sshd_config").read_text()
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGxwdGVzdHRlc3R0ZXN0dGVzdHRlc3R0ZXN0dGVzdHRl"
SERVERS = [
    Server(
        "ssh-servers-0", "10.244.1.7", ("kubectl", "--namespace=lab", "exec", "-i", "ssh-servers-0", "--")
    ),
    Server("ssh-servers-1", "fd00:10:244::8", ("kubectl", "exec", "-i", "ssh-servers-1", "--")),
]


def setting(name: str) -> str:
    found = re.findall(rf"^{name} (.*)$", SSHD_CONFIG, re.MULTILINE)
    assert len(found) == 1, name
    return str(found[0])


# --- The files of the folder agree with each other. ---


def kubernetes(kind: str, file: str) -> dict[str, Any]:
    (found,) = (each for each in yaml.safe_load_all((FOLDER / file).read_text()) if each["kind"] == kind)
    assert isinstance(found, dict)
    return found


FILES = [(file, kind) for kind in (SSH_SERVERS, MPI_PODS) for file in kind.files]
each_file = pytest.mark.parametrize(("file", "kind"), FILES, ids=[file for file, _ in FILES])
DOCKERFILE, START = (FOLDER / "Dockerfile").read_text(), (FOLDER / "start").read_text()
MOUNTED = re.findall(r"^mounted=(.*)/(\w+)$", START, re.MULTILINE)
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())


@each_file
def test_the_service_finds_the_pods(file: str, kind: Kind) -> None:
    service, pods = kubernetes("Service", file), kubernetes("StatefulSet", file)
    pod = pods["spec"]["template"]
    assert (service["apiVersion"], pods["apiVersion"]) == ("v1", "apps/v1")
    assert service["spec"]["clusterIP"] == "None"
    assert pods["spec"]["serviceName"] == service["metadata"]["name"]
    assert pod["metadata"]["labels"] == service["spec"]["selector"] == {"app": pods["metadata"]["name"]}
    assert pods["metadata"]["name"] in kind.label
    assert pods["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert [port["port"] for port in service["spec"]["ports"]] == [write_conf.PORT]


@each_file
def test_pods_keep_to_the_restricted_standard(file: str, kind: Kind) -> None:
    spec = kubernetes("StatefulSet", file)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 1000
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {kind for volume in spec["volumes"] for kind in volume} == {"name", "emptyDir", "secret"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert spec["automountServiceAccountToken"] is False


@each_file
def test_image_and_pods_agree(file: str, kind: Kind) -> None:
    pod = kubernetes("StatefulSet", file)["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    user, name = pod["spec"]["securityContext"]["runAsUser"], kind.account.name
    assert f"USER {user}:{user}\n" in DOCKERFILE
    assert f"--uid {user} " in (FOLDER / "account.sh").read_text()
    assert f"EXPOSE {write_conf.PORT}\n" in DOCKERFILE
    assert container["ports"][0]["containerPort"] == write_conf.PORT == int(setting("Port"))
    probe = ["test", "-f", setting("PidFile").replace("pslaunch", name)]
    assert container["readinessProbe"]["exec"]["command"] == probe
    assert setting("AllowUsers").replace("pslaunch", name) == name
    assert setting("HostKey").replace("pslaunch", name) + ".pub" == kind.account.host_key
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert [mounts["authorized-keys"]] == [folder for folder, _ in MOUNTED]
    assert set(mounts) == {volume["name"] for volume in pod["spec"]["volumes"]}
    assert kind.account.root_dir.startswith(mounts["home"] + "/")


def test_image_and_containers_agree() -> None:
    service = COMPOSE["services"]["host"]
    (container,) = kubernetes("StatefulSet", "ssh_servers.yaml")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == service["image"]
    assert service["healthcheck"]["test"] == ["CMD", "test", "-f", setting("PidFile")]
    assert [service["secrets"][0]] == [name for _, name in MOUNTED]


def test_only_the_head_has_the_key_that_leads_to_the_nodes() -> None:
    given = {}
    for file in MPI_PODS.files:
        (secret, *_) = kubernetes("StatefulSet", file)["spec"]["template"]["spec"]["volumes"]
        given[file] = [item["key"] for item in secret["secret"].get("items", ())]
    assert given == {"head.yaml": [], "mpi-nodes.yaml": ["authorized_keys"]}  # none listed: all of them


def test_only_a_public_key_is_mounted_and_no_key_is_in_an_image_or_the_repository() -> None:
    assert COMPOSE["secrets"] == {"authorized_keys": {"file": "access/key.pub"}}
    lines = (FOLDER / ".dockerignore").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "*",
        "!account.sh",
        "!sshd_config",
        "!start",
    ]
    assert (FOLDER / ".gitignore").read_text().splitlines() == ["/access/", "/ws/"]
    assert "rm -f /etc/ssh/ssh_host_*\n" in (FOLDER / "account.sh").read_text()
    # In the layer that would keep them, too.
    (installing,) = (layer for layer in DOCKERFILE.split("\nRUN ") if "apt-get install" in layer)
    assert re.search(r"rm .*/etc/ssh/ssh_host_\*$", installing, re.MULTILINE)


@needs_openssh
def test_the_key_is_made_once(tmp_path: Path) -> None:
    script = shutil.copy(FOLDER / "make_key.sh", tmp_path)
    argv = ["sh", "-c", f"umask 077; . '{script}'", str(script)]
    first = subprocess.run(argv, stdin=subprocess.DEVNULL, check=True, capture_output=True, text=True).stdout
    assert "ED25519" in first
    assert (tmp_path / "access/key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "access").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "access/key.pub").stat().st_mode & 0o777 == 0o644
    again = subprocess.run(argv, stdin=subprocess.DEVNULL, check=True, capture_output=True, text=True).stdout
    assert again == first


def test_the_commands_for_ssh_config_leave_it_as_it_was(tmp_path: Path) -> None:
    blocks = (FOLDER / "README.md").read_text().split("```")[1::2]
    (adding,) = (block for block in blocks if "echo" in block)
    (removing,) = (block for block in blocks if "grep" in block)
    removing = "\n".join(line for line in removing.splitlines() if ".ssh/config" in line)
    config = tmp_path / ".ssh/config"
    for before in ("", "Host a\n    User b\n"):
        config.parent.mkdir(exist_ok=True)
        config.write_text(before)
        for script, after in (
            (adding, f'Include "{tmp_path}/access/ssh_config"\n{before}'),
            (removing, before),
        ):
            argv = ["sh", "-c", script]
            subprocess.run(argv, env={**os.environ, "HOME": str(tmp_path)}, cwd=tmp_path, check=True)
            assert config.read_text() == after
            assert config.stat().st_mode & 0o777 == 0o600


# --- Pods. ---


def pod(number: int, ip: str = "", ready: bool = True, **status: Any) -> dict[str, Any]:
    """Return a pod in the form of `kubectl get pods -o json`, shortened."""
    container = {"name": "sshd", "ready": ready, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    return {
        "metadata": {"name": f"ssh-servers-{number}", "namespace": "lab", "labels": {"app": "ssh-servers"}},
        "status": {
            "phase": "Running",
            "podIP": ip or f"10.244.1.{number}",
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": str(ready)},
            ],
            "containerStatuses": [container],
            **status,
        },
    }


def listing(*pods: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": list(pods)}


def test_pods_come_in_order_of_their_numbers() -> None:
    found = write_conf.read_pods(
        listing(pod(10), pod(9), pod(0, "fd00:10:244::8")), ["kubectl", "--context=c"]
    )
    assert [one.name for one in found] == ["ssh-servers-0", "ssh-servers-9", "ssh-servers-10"]
    assert [one.address for one in found] == ["fd00:10:244::8", "10.244.1.9", "10.244.1.10"]
    enter = "kubectl --context=c --namespace=lab exec -i ssh-servers-0 --container=sshd --"
    assert found[0].enter == tuple(enter.split())


def test_a_pod_that_is_going_is_none() -> None:
    going = pod(1, ready=False)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert [one.name for one in write_conf.read_pods(listing(pod(0), going), ["kubectl"])] == [
        "ssh-servers-0"
    ]
    with pytest.raises(ClusterError, match=r"no pod has the label app=ssh-servers; kubectl apply -f"):
        write_conf.read_pods(listing(going), ["kubectl"])


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ({}, "ssh-servers-1 (Running)"),
        (
            {
                "phase": "Pending",
                "containerStatuses": [{"name": "sshd", "state": {"waiting": {"reason": "ImagePullBackOff"}}}],
            },
            "ssh-servers-1 (Pending, ImagePullBackOff)",
        ),
        (
            {
                "phase": "Pending",
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: Insufficient cpu."}
                ],
                "containerStatuses": [],
            },
            "ssh-servers-1 (Pending, 0/3 nodes: Insufficient cpu.)",
        ),
    ],
)
def test_pods_that_are_not_ready_are_named_with_their_reasons(status: dict[str, Any], says: str) -> None:
    with pytest.raises(ClusterError) as e:
        write_conf.read_pods(listing(pod(0), pod(1, ready=False, **status)), ["kubectl"])
    assert str(e.value).startswith(f"not ready: {says}; kubectl rollout status statefulset/ssh-servers")


def test_rollout_to_wait_for_is_that_of_the_pods_that_are_not_ready() -> None:
    def waiting(name: str) -> dict[str, Any]:
        found = pod(0, ready=False)
        found["metadata"]["name"] = name
        return found

    head, node = waiting("mpi-head-0"), waiting("mpi-nodes-1")
    with pytest.raises(ClusterError, match=r"; kubectl rollout status statefulset/mpi-head waits"):
        write_conf.read_pods(listing(head), ["kubectl"], MPI_PODS)
    with pytest.raises(ClusterError, match=r"/mpi-head and kubectl rollout status statefulset/mpi-nodes"):
        write_conf.read_pods(listing(head, node), ["kubectl"], MPI_PODS)


def test_head_without_nodes_is_refused() -> None:
    head = pod(0)
    head["metadata"]["name"] = "mpi-head-0"
    with pytest.raises(ClusterError, match=r"no node beside mpi-head-0; kubectl apply -f head\.yaml -f mpi"):
        write_conf.read_pods(listing(head), ["kubectl"], MPI_PODS)


def test_an_address_is_checked() -> None:
    with pytest.raises(ClusterError, match=r"ssh-servers-0 has no address: '10.1.1.1\\n  User root'"):
        write_conf.read_pods(listing(pod(0, "10.1.1.1\n  User root")), ["kubectl"])
    with pytest.raises(ClusterError, match=r"not ready: ssh-servers-0 \(it has no address\)"):
        write_conf.read_pods(listing(pod(0, podIP="")), ["kubectl"])


# --- Containers. ---


def entry(number: int, **more: str) -> dict[str, str]:
    return {"Name": f"pslaunch-hosts-host-{number}", "State": "running", "Health": "healthy", **more}


def inspected(number: int, **network: str) -> dict[str, Any]:
    """Return a container in the form of `docker inspect`, shortened: names begin with a slash there."""
    return {
        "Name": f"/pslaunch-hosts-host-{number}",
        "NetworkSettings": {"Networks": {"pslaunch-hosts_default": network}},
    }


@pytest.mark.parametrize("lines", [True, False])
def test_containers_of_both_forms_of_compose(lines: bool) -> None:
    entries = [entry(2), entry(1)]
    text = "\n".join(map(json.dumps, entries)) + "\n" if lines else json.dumps(entries)
    told = [
        inspected(2, IPAddress="", GlobalIPv6Address="fd00::2"),
        inspected(1, IPAddress="172.18.0.3", GlobalIPv6Address=""),
    ]
    found = write_conf.read_containers(text, told, ["docker"])
    assert found == [
        Server("pslaunch-hosts-host-1", "172.18.0.3", ("docker", "exec", "-i", "pslaunch-hosts-host-1")),
        Server("pslaunch-hosts-host-2", "fd00::2", ("docker", "exec", "-i", "pslaunch-hosts-host-2")),
    ]


@pytest.mark.parametrize("text", ["", "\n", "[]", "null\n"])
def test_missing_containers_are_reported(text: str) -> None:
    with pytest.raises(ClusterError, match="no container is there; docker compose up"):
        write_conf.read_containers(text, [], ["docker"])


def test_containers_that_are_not_ready() -> None:
    entries = [entry(1, Health="starting"), entry(2), entry(3, State="exited", Health="")]
    with pytest.raises(
        ClusterError, match=r"not ready: \S+-1 \(starting\), \S+-3 \(exited\); docker compose"
    ):
        write_conf.read_containers(json.dumps(entries), [], ["docker"])


# --- What is written. ---


def test_conf_py_is_read(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text(write_conf.render_conf(SERVERS))
    layer = read_conf(tmp_path / "conf.py", "conf.py")
    assert [value.text for value in layer["root_dir"]] == [write_conf.SSH.root_dir]
    hosts = parse_hosts([value.text for value in layer["hosts"]], "conf.py")
    assert [host.name for host in hosts] == ["ssh-servers-0", "ssh-servers-1"]
    assert set(layer) == {"root_dir", "hosts"}


def test_machines_are_the_nodes_without_their_head() -> None:
    pods = [
        Server("mpi-head-0", "10.244.1.7", ()),
        *(Server(f"mpi-nodes-{i}", f"10.244.2.{i}", ()) for i in (0, 1)),
    ]
    assert write_conf.render_machines(pods) == "10.244.2.0\n10.244.2.1\n"
    assert "head" not in write_conf.render_conf(pods)


def test_known_hosts_has_keys_by_name_and_address() -> None:
    keys = {one.name: f"{KEY} {one.name}\n" for one in SERVERS}
    text = write_conf.render_known_hosts(SERVERS, keys)
    assert text == f"ssh-servers-0,[10.244.1.7]:2222 {KEY}\nssh-servers-1,[fd00:10:244::8]:2222 {KEY}\n"


@pytest.mark.parametrize(
    "text", ["", "cat: not there", f"{KEY[:-4]}\x00== x", KEY.replace("ed25519", "rsa", 1)]
)
def test_invalid_key_is_refused(text: str) -> None:
    with pytest.raises(ClusterError, match=r"ssh-servers-0: .* is no public key"):
        write_conf.render_known_hosts(SERVERS, {one.name: text for one in SERVERS})


def effective(config: Path, name: str) -> dict[str, str]:
    """Return the settings that ssh itself reads for a host."""
    done = subprocess.run(
        ["ssh", "-G", "-F", str(config), name],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


@needs_openssh
@pytest.mark.parametrize("by_exec", [False, True])
def test_ssh_reads_ssh_config(tmp_path: Path, by_exec: bool) -> None:
    access = tmp_path / "a folder"
    access.mkdir()
    (access / "ssh_config").write_text(write_conf.render_ssh_config(SERVERS, access, by_exec=by_exec))
    for one in SERVERS:
        found = effective(access / "ssh_config", one.name)
        assert (found["user"], found["hostkeyalias"]) == ("pslaunch", one.name)
        assert found["userknownhostsfile"].strip('"') == f"{access}/known_hosts"
        assert found["identityfile"].strip('"') == f"{access}/key"
        assert found["stricthostkeychecking"] in ("yes", "true")
        if by_exec:
            assert found["proxycommand"] == " ".join([*one.enter, *write_conf.SSHD])
        else:
            assert (found["hostname"], found["port"]) == (one.address, "2222")
            assert "proxycommand" not in found


def test_a_folder_that_ssh_config_cannot_name() -> None:
    with pytest.raises(ClusterError, match="ssh_config can't name the folder"):
        write_conf.render_ssh_config(SERVERS, Path('/tmp/a"b'), by_exec=False)


def test_a_per_cent_sign_is_no_token() -> None:
    one = Server("ssh-servers-0", "10.0.0.1", ("kubectl", "--context=a%h"))
    assert "ProxyCommand kubectl --context=a%%h " in write_conf.render_ssh_config(
        [one], Path("/a"), by_exec=True
    )


# --- The whole program, as far as it goes without docker and kubectl. ---


def test_without_a_key_it_names_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_conf, "HERE", tmp_path)
    with pytest.raises(SystemExit, match=r"write_conf.py: there is no key yet: sh make_key.sh"):
        write_conf.main(["compose"])


@pytest.mark.parametrize(("what", "program"), [("compose", "docker"), ("k8s", "kubectl")])
def test_a_program_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, program: str
) -> None:
    (tmp_path / "access").mkdir()
    (tmp_path / "access/key").touch()
    monkeypatch.setattr(write_conf, "HERE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SystemExit, match=f"{program} can't be started: No such file or directory; install it"
    ):
        write_conf.main([what])


def test_the_words_of_a_program_that_fails() -> None:
    with pytest.raises(ClusterError, match=r"ls /nowhere gave 2: .*No such file or directory"):
        write_conf.ask(["ls", "/nowhere"])


def test_a_server_that_cannot_be_reached() -> None:
    with pytest.raises(
        ClusterError, match=r"h: 127.0.0.1 port 1 can't be reached .* --exec goes another way"
    ):
        write_conf.dial(Server("h", "127.0.0.1", (), 1))
