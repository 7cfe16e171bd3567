"""Programs in pods: the limit of a connection to the API."""

from __future__ import annotations

import socket

import pytest
from kubernetes import client

from pslaunch.backends.k8s import pod_exec
from pslaunch.backends.k8s.api import Cluster
from pslaunch.backends.k8s.api_errors import Place
from pslaunch.backends.k8s.spec import Access
from pslaunch.errors import ClusterError


def test_silent_api_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_exec, "LIMIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"http://127.0.0.1:{silent.getsockname()[1]}"
        api = client.ApiClient(client.Configuration(host=host))
        cluster = Cluster(api, Place(host, "test", "team"), Access())
        with pytest.raises(ClusterError, match=r"no answer within 0\.2 s"):
            pod_exec.PodExec(cluster, "pod-0", ["true"])
