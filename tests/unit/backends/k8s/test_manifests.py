"""Manifests of `pslaunch k8s render`: golden files, size, order, and nothing secret in them."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pslaunch import __version__
from pslaunch.backends.k8s import manifests
from pslaunch.backends.k8s.spec import K8sReach, make_nodes
from pslaunch.errors import FileError, SpecError
from pslaunch.node import beginning, codes
from pslaunch.node.job import Count, Package, Plan, Role
from pslaunch.ship.wheel import make_wheel
from support.packages import fill_package

GOLDEN = Path(__file__).parents[3] / "golden"
MOST_BYTES = 256 * 1024  # of an object's annotations, where kubectl keeps a copy of the object
REACH = K8sReach("word2vec", "example/image:1")
SEPARATE = REACH._replace(server_pods=1, cpu="2", server_cpu="1", server_memory="8Gi")
FULL = SEPARATE._replace(
    memory="4Gi", gpus=1, node_selector={"disk": "ssd"}, claims=(("data", "/data"),),
    image_pull_secret="pull", service_account="runner", queue="team", network_policy=True, deadline_s=3600.0,
)  # fmt: skip

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


@pytest.mark.parametrize(("name", "reach"), [("k8s-default", REACH), ("k8s-full", FULL)])
def test_job_services_and_policy_equal_their_golden_files(
    name: str, reach: K8sReach, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With REGOLD=1 in the environment, the files are written anew."""
    monkeypatch.setattr(manifests, "make_zipapp", lambda: b"")
    monkeypatch.setattr(manifests, "make_wheel", lambda _parts: b"")
    rendered = render(make_plan(2, str(package), reach.server_pods), reach, tmp_path)
    text = "---\n".join(rendered[n] for n in ("services.yaml", "policy.yaml", "job.yaml") if n in rendered)
    text = re.sub("[0-9a-f]{64}", "DIGEST", text)
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("REGOLD"):
        golden.write_text(text)
    assert text == golden.read_text()


def list_pieces(rendered: dict[str, str]) -> dict[str, bytes]:
    """Return the files that are mounted in pods."""
    things = list(yaml.safe_load_all(rendered["files.yaml"]))
    texts = {key: data.encode() for thing in things for key, data in thing.get("data", {}).items()}
    coded = [item for thing in things for item in thing.get("binaryData", {}).items()]
    return {**{key: base64.b64decode(data) for key, data in coded}, **texts}


def read_begun(rendered: dict[str, str], tmp_path: Path) -> beginning.Beginning:
    """Return the plan as a pod reads it."""
    pieces = list_pieces(rendered)
    if "job.000" in pieces:
        (tmp_path / "job").mkdir(exist_ok=True)
        (tmp_path / beginning.JOB_FILE).write_bytes(pieces["job.000"])
        return beginning.read_beginning(str(tmp_path))
    joined = b"".join(pieces[key] for key in sorted(pieces) if key.startswith("files"))
    with zipfile.ZipFile(io.BytesIO(joined)) as files:
        files.extractall(tmp_path)
    return beginning.read_beginning(str(tmp_path))


def list_fields(thing: Any, path: tuple[str, ...]) -> set[str]:
    """Return the fields that an object has at a path; in lists, those of all items."""
    items = thing if isinstance(thing, list) else [thing]
    if path:
        return set().union(*(list_fields(item[path[0]], path[1:]) for item in items if path[0] in item))
    return set().union(*items)


@pytest.mark.parametrize("golden", ["default", "full"])
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


@pytest.mark.parametrize("most", [0, 2])
def test_an_evicted_pod_comes_again_only_where_restarts_are_allowed(
    package: Path, tmp_path: Path, most: int
) -> None:
    plan = make_plan(2, str(package), 1)
    plan = plan._replace(limits=plan.limits._replace(max_restarts=most))
    for thing in yaml.safe_load_all(render(plan, SEPARATE, tmp_path)["job.yaml"]):
        rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
        assert thing["spec"].get("podFailurePolicy") == ({"rules": [rule]} if most else None)
        assert thing["spec"]["backoffLimit"] == 0  # any other failure ends the job


def test_way_of_the_package_is_said(package: Path, tmp_path: Path) -> None:
    plan, reach = make_plan(1, str(package)), REACH._replace(claims=(("home", "/home"), ("data", "/data")))
    packed = pack_package(plan, tmp_path)
    says = manifests.describe_package
    assert says(plan, reach, packed).startswith("the package goes into ConfigMaps: ")
    assert says(plan, reach, b"").startswith("the package goes over the line to pod 0")
    (node,) = plan.nodes
    places = {"/data/ws": "in the volume claim data", "/database": f"in the image {REACH.image}"}
    for folder, place in places.items():
        there = plan._replace(package=None, nodes=(node._replace(workspace=folder),))
        assert says(there, reach, b"") == f"nothing is sent: {folder} is {place}"


def test_equal_jobs_give_equal_text_in_order(package: Path, tmp_path: Path) -> None:
    plan = make_plan(2, str(package), 1)
    one, two = (render(plan, FULL, tmp_path) for _ in range(2))
    assert one == two
    assert [*one] == [f"{name}.yaml" for name in manifests.TEMPLATES]


def test_objects_of_1000_pods_are_small_enough_for_any_kubectl_and_named_apart(
    package: Path, tmp_path: Path
) -> None:
    fill_package(package, manifests.MAX_PACKAGE_BYTES)
    rendered = render(make_plan(1000, str(package)), REACH, tmp_path)
    objects = [thing for text in rendered.values() for thing in yaml.safe_load_all(text)]
    for thing in objects:
        assert len(json.dumps(thing)) + 1024 < MOST_BYTES, thing["metadata"]
        assert thing["metadata"]["labels"]["app.kubernetes.io/instance"] == "word2vec"
    names = [(thing["kind"], thing["metadata"]["name"]) for thing in objects]
    assert len(set(names)) == len(names)
    mounted = yaml.safe_load(rendered["job.yaml"])["spec"]["template"]["spec"]["volumes"]
    (sources,) = (volume["projected"]["sources"] for volume in mounted if volume["name"] == "pieces")
    assert [source["configMap"]["name"] for source in sources if "configMap" in source] == [
        name for kind, name in names if kind == "ConfigMap"
    ]


def list_shared(things: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [thing for thing in things if thing["metadata"]["name"].startswith("pslaunch-program-")]


def test_program_of_all_jobs_is_named_by_its_contents(package: Path, tmp_path: Path) -> None:
    plan, shares = make_plan(1, str(package)), REACH._replace(shares=True)
    one, two = (
        list_shared(manifests.make_objects(plan, reach, b""))
        for reach in (shares, shares._replace(name="other"))
    )
    assert one == two != []
    assert all(re.match("pslaunch-program-[0-9a-f]{16}-", thing["metadata"]["name"]) for thing in one)
    assert list_shared(manifests.make_objects(plan, REACH, b"")) == []


def begin_pod(
    rendered: dict[str, str], folder: Path, changed: Mapping[str, bytes] = {}
) -> subprocess.CompletedProcess[str]:
    """Begin a pod as far as it comes without a secret, below a folder in place of its root."""
    pieces = folder / "pslaunch/pieces"
    pieces.mkdir(parents=True)
    for name, data in {**list_pieces(rendered), "name": b"another", **changed}.items():
        (pieces / name).write_bytes(data)
    container = yaml.safe_load(rendered["job.yaml"])["spec"]["template"]["spec"]["containers"][0]
    command = [re.sub("/pslaunch(?=[/\"'])", f"{folder}/pslaunch", word) for word in container["command"]]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the image has pslaunch
    environ = {**os.environ, "PATH": path, "JOB_COMPLETION_INDEX": "0"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_pod_joins_its_pieces_and_runs_no_other_program(package: Path, tmp_path: Path) -> None:
    rendered = render(make_plan(1, str(package)), REACH, tmp_path)
    done = begin_pod(rendered, tmp_path / "right")
    assert "this pod is of the Job another" in done.stderr, done.stderr
    done = begin_pod(rendered, tmp_path / "wrong", {"program.001": b"x"})
    assert done.returncode == codes.PREFLIGHT, done.stderr
    assert "contents of the ConfigMaps word2vec-program-0 and so on are not those" in done.stderr


def test_each_given_wheel_comes_with_its_runtime_alone_in_place_of_our_own(
    package: Path, tmp_path: Path
) -> None:
    given = [tmp_path / f"pslaunch-1-cp311-abi3-linux_{machine}.whl" for machine in ("a", "b")]
    for path in given:
        path.write_bytes(make_wheel())
    plan = make_plan(1, str(package))
    reach = REACH._replace(wheels=tuple(map(str, given)))
    pieces = list_pieces(render(plan, reach, tmp_path))
    joined = b"".join(pieces[key] for key in sorted(pieces) if key.startswith("program"))
    with zipfile.ZipFile(io.BytesIO(joined)) as program:
        assert sorted(program.namelist()) == [beginning.PROGRAM, *(f"wheel/{path.name}" for path in given)]
        with zipfile.ZipFile(io.BytesIO(program.read(f"wheel/{given[0].name}"))) as wheel:
            names = wheel.namelist()
    assert "pslaunch/runtime/__init__.py" in names and "pslaunch/cli.py" not in names


def test_image_with_pslaunch_gets_no_program_and_is_looked_at(package: Path, tmp_path: Path) -> None:
    rendered = render(make_plan(1, str(package)), REACH._replace(has_pslaunch=True), tmp_path)
    assert [*list_pieces(rendered)] == ["files.000"] and "-program-" not in rendered["job.yaml"]
    assert "pslaunch agent: " in begin_pod(rendered, tmp_path / "right").stderr  # it began
    old = {**rendered, "job.yaml": rendered["job.yaml"].replace(f'\\"{__version__}\\"', '\\"0.0.9\\"')}
    done = begin_pod(old, tmp_path / "old")
    assert done.returncode == codes.PREFLIGHT, done.stderr
    assert "--image_has_pslaunch" in done.stderr


def test_manifests_of_a_job_that_sends_nothing_are_text_to_read(tmp_path: Path) -> None:
    plan = make_plan(1)._replace(package=None, added_env={"NAME": "tab\t, \x7f and ü"})
    rendered = render(plan, REACH._replace(has_pslaunch=True), tmp_path)
    (thing,) = yaml.safe_load_all(rendered["files.yaml"])
    assert json.loads(thing["data"]["job.000"])["plan"]["name"] == "word2vec"
    assert "binaryData" not in rendered["files.yaml"] and '      "name": "word2vec"' in rendered["files.yaml"]
    done = begin_pod(rendered, tmp_path / "right")
    assert "pslaunch agent: " in done.stderr and "ConfigMaps" not in done.stderr  # it began
    assert (tmp_path / "right/pslaunch" / beginning.JOB_FILE).read_text() == thing["data"]["job.000"]
    assert read_begun(rendered, tmp_path).plan == plan


@pytest.mark.parametrize("sent", [True, False])
def test_plan_survives_the_way_to_the_pods_with_or_without_a_package(
    package: Path, tmp_path: Path, sent: bool
) -> None:
    plan = make_plan(3)._replace(package=Package(str(package)) if sent else None)
    rendered = render(plan, REACH, tmp_path)
    begun = read_begun(rendered, tmp_path)
    assert (begun.plan, begun.packed) == (plan, sent)
    assert (tmp_path / beginning.PACKAGE_FILE).exists() == sent
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
    assert read_begun(rendered, tmp_path).packed == (tmp_path / beginning.PACKAGE_FILE).exists() == (not more)
    words = r"ws is over 900 KiB when compressed.*\.pslaunchignore.*--pvc"
    with pytest.raises(SpecError, match=words) if more else contextlib.nullcontext():
        manifests.refuse_brought(plan, packed)


def test_job_to_detach_is_held_until_its_package_was_brought(package: Path, tmp_path: Path) -> None:
    plan = make_plan(1, str(package))
    for packed, lease_s in ((b"small", 0.0), (b"", 120.0)):
        reach = manifests.add_lease(REACH._replace(lease_s=0.0), plan, packed)
        begun = read_begun(manifests.render_manifests(plan, reach, packed), tmp_path)
        assert (begun.packed, begun.lease_s) == (bool(packed), lease_s)


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
