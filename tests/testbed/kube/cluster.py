"""The cluster: API server, controllers, scheduler, kubelets, containerd, CoreDNS and kube-proxy, all real."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from testbed import hosts, net, sweep
from testbed.kube.node import Node

ROOT = Path(__file__).parents[3]
BUILT = ROOT / ".cache/kube"  # as .ci/kube makes it
STATE = Path("/var/tmp")
NAMESPACE, USER, ADMIN = "team", "developer", "admin"
PAUSE, PYTHON, MPI = (f"pslaunch.test/{name}:1" for name in ("pause", "python", "mpi"))
ROLE = ROOT / "templates/k8s/role.yaml"
SERVICES = "10.200.0"
READY_S = 120.0
# All pods together get the processor time of so many programs outside, not of one.
POD_SHARES = 8
PROGRAMS = {
    "containerd": "containerd", "runc": "runc", "etcd": "etcd-server", "iptables": "iptables",
    "conntrack": "conntrack", "nsenter": "util-linux", "openssl": "openssl",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
}  # fmt: skip
BUILDERS = {
    "debootstrap": "debootstrap", "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
    "umoci": "umoci", "gcc": "gcc", "/usr/include/stdlib.h": "libc6-dev",
}  # fmt: skip
# The highest level: a pod that is not restricted is refused.
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
# No score below our own, which takes a capability that root in a container may lack.
CONTAINERD = """version = 2
root = "{folder}/containerd"
state = "/run/containerd"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
"""
# Each pod has a link of its own: traffic between two pods of a node passes its rules for services too.
NETWORK = {
    "cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": False}],
}  # fmt: skip
COREFILE = """. {{
    bind {address}
    errors
    ready 127.0.0.1:8181
    cache 30
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
        ttl 30
    }}
}}
"""


def make_binding(role: str) -> dict[str, Any]:
    """Return the object that gives the user the rights of a Role in its namespace."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": {"name": role},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": USER}],
    }  # fmt: skip


def find_built(name: str) -> Path:
    """Return the file of a program or an image to use, in the folder of all of them."""
    path = (BUILT / name).resolve()
    os.utime(path)  # .ci/kube removes what is not used any more
    return path


def make_import(image: str, archive: Path | None = None) -> list[str | Path]:
    """Return the command by which a node takes an image: one of `.ci/kube`, unless `archive` has it."""
    name = image.partition(":")[0]
    archive = archive or find_built(Path(name).name)
    return ["ctr", "-n", "k8s.io", "images", "import", "--base-name", name, archive]


def why_not() -> str:
    """Return the reason why no cluster can be made here; empty if one can."""
    if reason := hosts.why_not(PROGRAMS):
        return reason
    missing = [
        name
        for name in ("kubernetes", "kubectl", "coredns", "pause", "python", "mpi")
        if not (BUILT / name).exists()
    ]
    return f"no {', '.join(missing)} in {BUILT}: .ci/kube makes them" if missing else ""


class Cluster:
    """Two nodes.

    `kubeconfig` is for a user with the documented rights in NAMESPACE, `admin_config` for its administrator.
    """

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex[: sweep.ID_DIGITS]
        self.folder = Path(tempfile.mkdtemp(prefix=f"pslt-{self.id}-", dir=STATE))
        self.folder.chmod(0o755)
        self.kubeconfig, self.admin_config = self.folder / "kubeconfig", self.folder / "admin.kubeconfig"
        self._tokens = {ADMIN: secrets.token_hex(16), USER: secrets.token_hex(16)}
        self._network = net.claim(sweep.LINK + self.id)
        self._guard = sweep.start_guard(self.id, self.folder, [self._network.claim])
        programs = find_built("kubernetes").parent
        self.nodes = [Node(self.id, self.folder, number, self._network, programs) for number in (1, 2)]
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        net.make(self._network, reachable=True)
        for node in self.nodes:
            node.boot(self.nodes)
        first = self.nodes[0]
        self._write_keys()
        self.start_api()
        loading = [threading.Thread(target=self._start_containerd, args=[node]) for node in self.nodes]
        for thread in loading:
            thread.start()
        first.start("etcd", ["etcd", "--data-dir", first.folder / "etcd", "--unsafe-no-fsync",
                             "--log-level=error"])  # fmt: skip
        self.wait("the API server", lambda: self.ask("/readyz") == "ok")
        self._start_control()
        _favour_pods()
        for node in self.nodes:
            self._start_kubelet(node)
        for thread in loading:
            thread.join()
        self.wait("the nodes", lambda: self._count_ready() == len(self.nodes))
        self._grant_rights()

    # -- files

    def _write_keys(self) -> None:
        ca = self.nodes[0].folder / "certs/apiserver.crt"
        key = self.folder / "service.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        rows = [f'{token},{name},{name},"{"system:masters" if name == ADMIN else "people"}"\n'
                for name, token in self._tokens.items()]  # fmt: skip
        (self.folder / "tokens.csv").write_text("".join(rows))
        for path, user in ((self.admin_config, ADMIN), (self.kubeconfig, USER)):
            config = {
                "apiVersion": "v1", "kind": "Config", "current-context": "test",
                "clusters": [
                    {"name": "test", "cluster": {"server": self.url, "certificate-authority": str(ca)}}
                ],
                "users": [{"name": user, "user": {"token": self._tokens[user]}}],
                "contexts": [
                    {"name": "test", "context": {"cluster": "test", "user": user, "namespace": NAMESPACE}}
                ],
            }  # fmt: skip
            path.touch(0o600)
            path.write_text(yaml.safe_dump(config))

    # -- programs

    @property
    def url(self) -> str:
        return f"https://{self.nodes[0].address}:6443"

    def start_api(self) -> None:
        """Start the API server, for the first time or again."""
        first, key = self.nodes[0], self.folder / "service.key"
        first.start("api", [
            find_built("kubernetes"), "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379",
            "--secure-port=6443",
            f"--advertise-address={first.address}", f"--cert-dir={first.folder}/certs",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://pslaunch.test", f"--token-auth-file={self.folder}/tokens.csv",
            "--authorization-mode=RBAC", f"--service-cluster-ip-range={SERVICES}.0/24",
            "--kubelet-preferred-address-types=InternalIP", "--profiling=false",
        ])  # fmt: skip

    def stop_api(self) -> None:
        """Kill the API server; pods go on."""
        self.nodes[0].stop("api")

    def _start_control(self) -> None:
        first, config, key = self.nodes[0], self.admin_config, self.folder / "service.key"
        kubernetes = find_built("kubernetes")
        first.start("controllers", [
            kubernetes, "kube-controller-manager", f"--kubeconfig={config}", "--leader-elect=false",
            f"--service-account-private-key-file={key}", f"--root-ca-file={first.folder}/certs/apiserver.crt",
            "--use-service-account-credentials",
            "--controllers=*,-node-ipam-controller,-node-route-controller,-service-lb-controller",
        ])  # fmt: skip
        first.start("scheduler", [
            kubernetes, "kube-scheduler", f"--kubeconfig={config}", "--leader-elect=false",
        ])  # fmt: skip
        corefile = first.folder / "Corefile"
        corefile.write_text(COREFILE.format(address=first.address, kubeconfig=config))
        first.start("coredns", [find_built("coredns"), "-conf", corefile])

    def _start_containerd(self, node: Node) -> None:
        folder, config = node.folder, node.folder / "containerd.toml"
        config.write_text(CONTAINERD.format(folder=folder, pause=PAUSE))
        (folder / "cni").mkdir()
        plugin: dict[str, Any] = NETWORK["plugins"][0]  # type: ignore[assignment]  # of JSON
        ipam = {
            "type": "host-local", "dataDir": str(folder / "addresses"),
            "ranges": [[{"subnet": f"{node.pods}.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}],
        }  # fmt: skip
        text = json.dumps({**NETWORK, "plugins": [{**plugin, "ipam": ipam}]})
        (folder / "cni/pods.conflist").write_text(text)
        node.start("containerd", ["containerd", "--config", config, "--log-level=warn"])
        self.wait("containerd", lambda: node.run("ctr", "version"))
        for image in (PAUSE, PYTHON):
            node.run(*make_import(image))

    def _start_kubelet(self, node: Node) -> None:
        folder = node.folder
        (folder / "resolv.conf").touch()
        (folder / "kubelet.yaml").write_text(yaml.safe_dump({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{self.cgroup}",
            "cgroupsPerQOS": False, "enforceNodeAllocatable": [], "failCgroupV1": False, "failSwapOn": False,
            "localStorageCapacityIsolation": False, "evictionHard": {"memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100, "clusterDNS": [self.nodes[0].address],
            "clusterDomain": "cluster.local", "resolvConf": str(folder / "resolv.conf"),
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "podLogsDir": str(folder / "pods"), "nodeStatusUpdateFrequency": "2s",
        }))  # fmt: skip
        node.start("kubelet", [
            find_built("kubernetes"), "kubelet", f"--kubeconfig={self.admin_config}",
            f"--config={folder}/kubelet.yaml", f"--root-dir={folder}/kubelet",
            f"--cert-dir={folder}/kubelet-certs", f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
        ])  # fmt: skip
        (folder / "proxy.yaml").write_text(yaml.safe_dump({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.admin_config)}, "mode": "iptables",
            "hostnameOverride": node.name, "conntrack": {"maxPerCore": 0, "min": 0}, "healthzBindAddress": "",
            "iptables": {"minSyncPeriod": "0s", "localhostNodePorts": False},
        }))  # fmt: skip
        node.start("proxy", [find_built("kubernetes"), "kube-proxy", f"--config={folder}/proxy.yaml"])

    @property
    def cgroup(self) -> str:
        """The name of its links and its kubelets' cgroup; those of containers are in `k8s.io` (sweep.py)."""
        return sweep.LINK + self.id

    # -- the API, before any client library is loaded

    def ask(self, path: str, body: object = None, user: str = ADMIN) -> Any:
        """Return the API's answer to a GET, or to the POST of `body`."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._tokens[user]}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers)
        ca = ssl.create_default_context(cafile=self.nodes[0].folder / "certs/apiserver.crt")
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=ca)
        )
        with opener.open(request, timeout=10.0) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def _count_ready(self) -> int:
        """Return how many nodes are ready."""
        found = [c for n in self.ask("/api/v1/nodes")["items"] for c in n["status"].get("conditions", ())]
        return sum(c["type"] == "Ready" and c["status"] == "True" for c in found)

    def _grant_rights(self) -> None:
        """Make NAMESPACE, and the user's rights in it as they are documented."""
        labelled = {"name": NAMESPACE, "labels": RESTRICTED}
        self.ask("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": labelled})
        roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        role = yaml.safe_load(ROLE.read_text())
        self.ask(f"{roles}/roles", role)
        self.ask(f"{roles}/rolebindings", make_binding(role["metadata"]["name"]))
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"  # without it no pod is admitted
        self.wait("the namespace", lambda: self.ask(account))

    def wait(self, for_what: str, probe: Callable[[], object]) -> None:
        """Wait for a true answer of `probe`, which may fail until then."""
        end_s = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(OSError, RuntimeError):  # an HTTPError is one, too
                if probe():
                    return
            ended = [words for node in self.nodes for words in node.ended_programs()]
            if ended or time.monotonic() > end_s:
                said = "; ".join(ended) or f"not within {READY_S:g} s"
                raise RuntimeError(f"no cluster: {for_what}: {said}")
            time.sleep(0.1)  # nothing of it can be waited on

    # -- its end

    def close(self) -> None:
        """Remove all of it. May be called twice."""
        if self._guard.stdin and not self._guard.stdin.closed:
            self._guard.stdin.close()
            failed = self._guard.wait()
            for node in self.nodes:
                node.crash()
            self._network.claim.close()
            if failed:
                sweep.sweep(self.id, str(self.folder))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _favour_pods() -> None:
    """Let pods be about as quick as programs outside on a busy machine, as on machines of their own.

    The cgroup of all pods goes with the last of them (sweep.py). If it is there already, it is left as it is.
    """
    groups = Path("/sys/fs/cgroup")
    first, shares = ("cpu", "cpu.shares") if (groups / "cpu").exists() else ("", "cpu.weight")
    group = groups / first / sweep.NAMESPACE
    usual = {"cpu.shares": 1024, "cpu.weight": 100}[shares]
    with contextlib.suppress(OSError):  # it is there, or has not this controller
        group.mkdir()
        (group / shares).write_text(str(POD_SHARES * usual))
