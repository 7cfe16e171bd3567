"""Programs in bare pods, whose variables a platform sets: Python, our wheel, and no launcher."""

from __future__ import annotations

import base64
import contextlib
import gzip
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from integration.test_kube_testbed import NON_ROOT, SECURE
from pslaunch.ship.wheel import make_wheel, make_wheel_name
from support.fleet import find_results, write_quick_start
from support.jobs import LocalPlace, finished
from support.kube import Kube
from support.process import poll_until
from testbed.kube import why_not
from testbed.kube.cluster import BUILT, PYTHON

FILES = "bare-files"
PORT = 7164
TRAINERS = 2
MOST_BYTES = 200 * 10**6  # of the image's files, and our wheel
MANIFEST_BYTES = 10**5  # more than any file in an image but its layers
TRAIN = """
import hashlib, io
import numpy as np
import pslaunch.runtime as paddle

def read():
    inputs = np.random.default_rng(1).normal(size=(256, 13)).astype("float32")
    for row in inputs:
        yield row, [row.sum()]

paddle.init(use_gpu=False, trainer_count=1)
x = paddle.layer.data(name="x", type=paddle.data_type.dense_vector(13))
y = paddle.layer.data(name="y", type=paddle.data_type.dense_vector(1))
guess = paddle.layer.fc(input=x, size=1, act=paddle.activation.Linear())
cost = paddle.layer.square_error_cost(input=guess, label=y)
parameters = paddle.parameters.create(cost)
optimizer = paddle.optimizer.Momentum(learning_rate=1e-3)
trainer = paddle.trainer.SGD(cost, parameters, optimizer, is_local=False)
trainer.train(paddle.batch(read, 32), 2)
file = io.BytesIO()
parameters.to_tar(file)
print("digest", hashlib.sha256(file.getvalue()).hexdigest())
"""
# The wheel is unpacked: its core can't be loaded from a zip file.
RUN = (
    f"python -m zipfile -e /files/{make_wheel_name()} /tmp/lib && cd /tmp && cp /files/*.py . && exec python "
)


class Pods:
    """Bare pods with a workspace and the wheel, removed at the end."""

    def __init__(self, cluster: Kube) -> None:
        self._core, self._namespace = cluster.admin, cluster.namespace
        self._names: list[str] = []

    def bring(self, workspace: Path) -> None:
        files = {path.name: path.read_bytes() for path in workspace.glob("*.py")}
        files[make_wheel_name()] = make_wheel()
        encoded = {name: base64.b64encode(data).decode() for name, data in files.items()}
        self._core.create_namespaced_config_map(
            self._namespace, {"metadata": {"name": FILES}, "binaryData": encoded}
        )

    def start(self, name: str, program: str, environ: Mapping[str, str]) -> None:
        """Start a program of the workspace in a pod. `$(POD_IP)` in a value is the pod's address."""
        address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        given = {"PYTHONPATH": "/tmp/lib", "HOME": "/tmp", **environ}
        container = {
            "name": "main", "image": PYTHON, "imagePullPolicy": "Never", "securityContext": SECURE,
            "command": ["sh", "-c", RUN + program],
            "env": [address, *({"name": key, "value": value} for key, value in given.items())],
            "volumeMounts": [{"name": "files", "mountPath": "/files"}, {"name": "tmp", "mountPath": "/tmp"}],
        }  # fmt: skip
        volumes = [{"name": "files", "configMap": {"name": FILES}}, {"name": "tmp", "emptyDir": {}}]
        spec = {
            "restartPolicy": "Never", "securityContext": NON_ROOT, "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes,
        }  # fmt: skip
        self._names.append(name)
        self._core.create_namespaced_pod(self._namespace, {"metadata": {"name": name}, "spec": spec})

    def find_address(self, name: str) -> str:
        """Wait until a pod has an address; return it."""
        poll_until(
            lambda: bool(self._read(name).pod_ip),
            describe=f"{name} has no address",
            timeout_s=60.0,
            every_s=0.1,
        )
        return str(self._read(name).pod_ip)

    def finish(self) -> dict[str, str]:
        """Wait until all pods have ended, with 0; return their output."""
        poll_until(
            lambda: all(self._read(name).phase in ("Succeeded", "Failed") for name in self._names),
            describe=lambda: f"they do not end: {self._read_logs()}", timeout_s=90.0, every_s=0.2,
        )  # fmt: skip
        phases = [self._read(name).phase for name in self._names]
        assert phases == ["Succeeded"] * len(phases), self._read_logs()
        return self._read_logs()

    def _read(self, name: str) -> Any:
        return self._core.read_namespaced_pod(name, self._namespace).status

    def _read_logs(self) -> dict[str, str]:
        return {name: str(self._core.read_namespaced_pod_log(name, self._namespace)) for name in self._names}

    def remove(self) -> None:
        deletions = [
            *((self._core.delete_namespaced_pod, name) for name in self._names),
            (self._core.delete_namespaced_config_map, FILES),
        ]
        for delete, name in deletions:
            with contextlib.suppress(client.ApiException):  # its creation failed
                delete(name, self._namespace, grace_period_seconds=1)


@pytest.fixture
def pods(cluster: Kube) -> Iterator[Pods]:
    found = Pods(cluster)
    try:
        yield found
    finally:
        found.remove()


def test_v2_program_trains_as_in_a_job(pods: Pods, workspace: Path) -> None:
    (workspace / "train.py").write_text(TRAIN)
    pods.bring(workspace)
    common = {
        "PADDLE_INIT_PORT": str(PORT), "PADDLE_INIT_PORTS_NUM": "1",
        "PADDLE_INIT_PORTS_NUM_FOR_SPARSE": "1", "PADDLE_INIT_NUM_GRADIENT_SERVERS": str(TRAINERS),
    }  # fmt: skip
    pods.start("server", "train.py", {**common, "TRAINING_ROLE": "PSERVER"})
    common["PADDLE_INIT_PSERVERS"] = pods.find_address("server")
    for i in range(TRAINERS):
        pods.start(f"trainer-{i}", "train.py", {**common, "PADDLE_INIT_TRAINER_ID": str(i)})
    said = pods.finish()

    code, job = finished(LocalPlace(1), workspace, f"--worker_num={TRAINERS}")
    assert code == 0, job.launcher.output()
    for i in range(TRAINERS):
        (digest,) = [line for line in job.lines(f"trainer/{i}") if line.startswith("digest")]
        assert digest in said[f"trainer-{i}"]


def test_fleet_program_trains(pods: Pods, workspace: Path) -> None:
    write_quick_start(workspace)
    pods.bring(workspace)
    common = {"PADDLE_TRAINERS_NUM": str(TRAINERS), "PADDLE_PORT": str(PORT)}
    own = {"TRAINING_ROLE": "PSERVER", "PADDLE_PSERVERS_IP_PORT_LIST": f"$(POD_IP):{PORT}"}
    pods.start("server", "train.py sync model", {**common, **own})
    common["PADDLE_PSERVERS_IP_PORT_LIST"] = f"{pods.find_address('server')}:{PORT}"
    for i in range(TRAINERS):
        own = {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(i)}
        pods.start(f"trainer-{i}", "train.py sync model", {**common, **own})
    said = pods.finish()
    assert all(find_results(said[f"trainer-{i}"])[2] > 0.65 for i in range(TRAINERS))


def test_image_of_our_steps_is_small() -> None:
    if reason := why_not():
        pytest.skip(reason)
    size = 0
    with tarfile.open(BUILT / Path(PYTHON.partition(":")[0]).name) as image:
        for layer in (image.extractfile(member) for member in image if member.size > MANIFEST_BYTES):
            assert layer
            with gzip.open(layer) as files:
                while piece := files.read(1 << 20):
                    size += len(piece)
    assert MANIFEST_BYTES < size + len(make_wheel()) < MOST_BYTES
