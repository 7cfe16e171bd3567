"""Manifests of `pslaunch k8s render`: golden files, size, order, and nothing secret in them."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pslaunch.backends.k8s import manifests
from pslaunch.backends.k8s.spec import K8sReach, make_nodes
from pslaunch.errors import FileError, SpecError
from pslaunch.node import beginning
from pslaunch.node.job import Count, Package, Plan, Role
from support.packages import fill_package

GOLDEN = Path(__file__).parents[3] / "golden"
MOST_BYTES = 1024 * 1024  # of a ConfigMap
REACH = K8sReach("word2vec", "example/image:1")
FULL = REACH._replace(
    cpu="2", memory="4Gi", gpu=1, node_selector={"disk": "ssd"}, claims=(("data", "/data"),),
    image_pull_secret="pull", service_account="runner", queue="team", network_policy=True, deadline_s=3600.0,
)  # fmt: skip
SEPARATE = REACH._replace(server_pods=1, cpu="2", server_cpu="1", server_memory="8Gi")

# Fields that are stable in Kubernetes 1.28, as far as we use them: look a new one up before it is added.
POD = ("Job", "spec", "template", "spec")
STABLE = {
    ("Job", "spec"): "activeDeadlineSeconds backoffLimit completionMode completions parallelism suspend "
    "template ttlSecondsAfterFinished",
    POD: "automountServiceAccountToken containers enableServiceLinks imagePullSecrets nodeSelector "
    "restartPolicy securityContext serviceAccountName subdomain terminationGracePeriodSeconds tolerations "
    "volumes",
    (*POD, "containers"): "command env image name resources securityContext terminationMessagePolicy "
    "volumeMounts workingDir",
    (*POD, "securityContext"): "fsGroup fsGroupChangePolicy runAsGroup runAsNonRoot runAsUser seccompProfile",
    (*POD, "volumes"): "configMap emptyDir name persistentVolumeClaim projected secret",
    ("Service", "spec"): "clusterIP ports publishNotReadyAddresses selector",
    ("NetworkPolicy", "spec"): "ingress podSelector policyTypes",
}


def make_plan(nodes: int, folder: str = "/ws", servers: int = 0) -> Plan:
    one, named = Count("per_node", 1), make_nodes("word2vec", nodes - servers, servers, "")
    roles = (Role("pserver", one, ("{python}", "-m", "x")), Role("trainer", one, ("{python}", "train.py")))
    plan = Plan("word2vec", "word2vec", backend="k8s", server="bundled", roles=roles, port=7164)
    return plan._replace(nodes=tuple(named), package=Package(folder))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    return folder


def render(plan: Plan, reach: K8sReach, tmp_path: Path) -> dict[str, str]:
    return manifests.render_manifests(plan, reach, pack_package(plan, tmp_path))


def pack_package(plan: Plan, tmp_path: Path) -> bytes:
    return manifests.pack_package(plan, {"XDG_CACHE_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("name", "reach"), [("k8s-default", REACH), ("k8s-full", FULL), ("k8s-separate", SEPARATE)]
)
def test_job_services_and_policy_equal_their_golden_files(
    name: str, reach: K8sReach, package: Path, tmp_path: Path
) -> None:
    """With REGOLD=1 in the environment, the files are written anew."""
    rendered = render(make_plan(2, str(package), reach.server_pods), reach, tmp_path)
    text = "---\n".join(rendered[n] for n in ("services.yaml", "policy.yaml", "job.yaml") if n in rendered)
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("REGOLD"):
        golden.write_text(text)
    assert text == golden.read_text()


def read_begun(rendered: dict[str, str], tmp_path: Path) -> beginning.Beginning:
    """Return the plan as a pod reads it."""
    data = yaml.safe_load(rendered["plan.yaml"])["binaryData"]["job.json.gz"]
    (tmp_path / "job").mkdir()
    (tmp_path / beginning.JOB_FILE).write_bytes(base64.b64decode(data))
    return beginning.read_beginning(str(tmp_path))


def list_fields(thing: Any, path: tuple[str, ...]) -> set[str]:
    """Return the fields that an object has at a path; in lists, those of all items."""
    items = thing if isinstance(thing, list) else [thing]
    if path:
        return set().union(*(list_fields(item[path[0]], path[1:]) for item in items if path[0] in item))
    return set().union(*items)


@pytest.mark.parametrize("golden", ["default", "full", "separate"])
def test_only_fields_that_are_stable_in_1_28_are_used(golden: str) -> None:
    things = list(yaml.safe_load_all((GOLDEN / f"k8s-{golden}.yaml").read_text()))
    versions = {"Job": "batch/v1", "Service": "v1", "NetworkPolicy": "networking.k8s.io/v1"}
    assert {(thing["kind"], thing["apiVersion"]) for thing in things} <= versions.items()
    for (kind, *path), allowed in STABLE.items():
        for thing in things:
            if thing["kind"] == kind:
                assert list_fields(thing, tuple(path)) <= set(allowed.split()), (kind, path)


def test_pods_of_both_jobs_begin_as_the_nodes_of_the_plan(package: Path, tmp_path: Path) -> None:
    plan = make_plan(5, str(package), servers=2)
    package_bytes = pack_package(plan, tmp_path)
    objects = manifests.make_objects(plan, SEPARATE._replace(server_pods=2), package_bytes)
    servers, trainers = (thing for thing in objects if thing["kind"] == "Job")
    for thing, first, pods in ((trainers, 0, 3), (servers, 3, 2)):
        container = thing["spec"]["template"]["spec"]["containers"][0]
        assert f"str({first} + int(os.environ" in container["command"][2]
        assert thing["spec"]["completions"] == pods
        names = [f"{thing['metadata']['name']}-{i}" for i in range(pods)]
        assert names == [node.name for node in plan.nodes[first : first + pods]]
    assert objects[-1] is trainers and trainers["metadata"]["name"] == SEPARATE.name


def test_queue_releases_the_job(package: Path, tmp_path: Path) -> None:
    rendered = render(make_plan(2, str(package), 1), SEPARATE._replace(queue="q"), tmp_path)
    for thing in yaml.safe_load_all(rendered["job.yaml"]):
        assert thing["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
        assert thing["spec"]["suspend"] is True


def test_way_of_the_package_is_said(package: Path, tmp_path: Path) -> None:
    plan, reach = make_plan(1, str(package)), REACH._replace(claims=(("home", "/home"), ("data", "/data")))
    packed = pack_package(plan, tmp_path)
    says = manifests.describe_package
    assert says(plan, reach, packed).startswith("the package goes into a ConfigMap: ")
    assert says(plan, reach, b"").startswith("the package goes over the line to pod 0")
    (node,) = plan.nodes
    places = {"/data/ws": "in the volume claim data", "/database": f"in the image {REACH.image}"}
    for folder, place in places.items():
        there = plan._replace(package=None, nodes=(node._replace(workspace=folder),))
        assert says(there, reach, b"") == f"nothing is sent: {folder} is {place}"


def test_equal_jobs_give_equal_text_in_order(package: Path, tmp_path: Path) -> None:
    plan = make_plan(2, str(package))
    one, two = (render(plan, FULL, tmp_path) for _ in range(2))
    assert one == two
    assert [*one] == [f"{name}.yaml" for name in manifests.TEMPLATES]


def test_objects_of_1000_pods_are_small_and_named_apart(package: Path, tmp_path: Path) -> None:
    rendered = render(make_plan(1000, str(package)), REACH, tmp_path)
    objects = [thing for text in rendered.values() for thing in yaml.safe_load_all(text)]
    for thing in objects:
        data = thing.get("binaryData", {})
        assert sum(len(base64.b64decode(value)) for value in data.values()) < MOST_BYTES, thing["metadata"]
        assert thing["metadata"]["labels"]["app.kubernetes.io/instance"] == "word2vec"
    names = [(thing["kind"], thing["metadata"]["name"]) for thing in objects]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("sent", [True, False])
def test_plan_survives_the_way_to_the_pods_with_or_without_a_package(
    package: Path, tmp_path: Path, sent: bool
) -> None:
    plan = make_plan(3)._replace(package=Package(str(package)) if sent else None)
    rendered = render(plan, REACH, tmp_path)
    begun = read_begun(rendered, tmp_path)
    assert (begun.plan, begun.packed) == (plan, sent)
    assert ("package.yaml" in rendered) == ("package" in rendered["job.yaml"]) == sent
    assert (begun.head, begun.port, begun.wait_timeout_s) == ("word2vec-head", 7167, 610.0)


def test_secret_is_only_in_the_printed_command(package: Path, tmp_path: Path) -> None:
    rendered = render(make_plan(1, str(package)), REACH, tmp_path)
    kinds = [thing["kind"] for text in rendered.values() for thing in yaml.safe_load_all(text)]
    assert sorted(set(kinds)) == ["ConfigMap", "Job", "Service"]
    page = (GOLDEN.parents[1] / "docs/kubernetes.md").read_text()
    assert manifests.make_secret_command(REACH) in page


def test_secret_may_end_with_a_newline(tmp_path: Path) -> None:
    secret = tmp_path / beginning.SECRET_FILE
    secret.parent.mkdir()
    secret.write_text(f"{'ab' * 32}\n")  # as of openssl
    assert beginning.read_secret(str(tmp_path)) == b"\xab" * 32


@pytest.mark.parametrize("more", [0, 1])
def test_package_over_the_limit_is_brought_or_refused_with_the_remedy(
    package: Path, tmp_path: Path, more: int
) -> None:
    plan = make_plan(1, str(package))
    fill_package(package, manifests.MAX_PACKAGE_BYTES + more)
    packed = pack_package(plan, tmp_path)
    rendered = manifests.render_manifests(plan, REACH, packed)
    assert len(packed) == (0 if more else manifests.MAX_PACKAGE_BYTES)
    assert ("package.yaml" in rendered) == ("package" in rendered["job.yaml"]) == (not more)
    words = r"ws is over 900 KiB when compressed.*\.pslaunchignore.*--pvc"
    with pytest.raises(SpecError, match=words) if more else contextlib.nullcontext():
        manifests.refuse_brought(plan, packed)


def test_job_to_detach_is_held_until_its_package_was_brought(package: Path, tmp_path: Path) -> None:
    plan = make_plan(1, str(package))
    for packed, lease_s in ((b"small", 0.0), (b"", 120.0)):
        reach = manifests.add_lease(REACH._replace(lease_s=0.0), plan, packed)
        values = manifests.make_values(plan, reach, packed)
        begun = json.loads(gzip.decompress(base64.b64decode(values["plan"])))
        assert (begun["packed"], begun["lease_s"]) == (bool(packed), lease_s)


def test_package_that_cannot_be_sent_is_a_mistake_of_its_folder(package: Path, tmp_path: Path) -> None:
    (package / "out").symlink_to("/etc")
    with pytest.raises(SpecError, match=r"ws can't be sent: out is a link that leads out"):
        pack_package(make_plan(1, str(package)), tmp_path)


def test_folder_for_manifests_is_made_and_loses_those_of_earlier_options(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="--output_dir"):
        manifests.write({"job.yaml": ""}, tmp_path / "file")
    folder = tmp_path / "new/folder"
    manifests.write({"job.yaml": "x", "policy.yaml": "x"}, folder)
    (folder / "kustomization.yaml").touch()
    manifests.write({"job.yaml": "y"}, folder)
    assert {path.name for path in folder.iterdir()} == {"job.yaml", "kustomization.yaml"}
    assert (folder / "job.yaml").read_text() == "y"


@settings(max_examples=200)
@example("\\ud83d\\ude00", "\\\U0001f600")
@given(st.text(min_size=1), st.text())
def test_any_text_is_one_value_of_the_manifest(image: str, path: str) -> None:
    assert yaml.safe_load(f"value: {manifests._quote([image, path])}") == {"value": [image, path]}
