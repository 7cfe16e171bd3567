"""Manifests and patches as a real API server takes them: nothing is made there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubernetes import client

from pslaunch.backends.k8s_api import Cluster, open_cluster
from pslaunch.backends.k8s_manifests import make_objects, pack_package
from pslaunch.backends.k8s_patch import merge, patch_object
from pslaunch.errors import SpecError
from pslaunch.options.args import split_command_line
from pslaunch.options.k8s_spec import Access, make_k8s_spec
from pslaunch.options.options import get_options
from pslaunch.options.sources import gather
from pslaunch.plan import make_plan
from support.kube import Kube
from support.kube_patches import draw_patches

BOUNDED = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NAMES = st.from_regex(r"[a-z0-9]([-.a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
LABELS = st.from_regex(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,70}[A-Za-z0-9])?", fullmatch=True)
QUANTITY = st.from_regex(r"[0-9]{1,4}(\.[0-9]{1,4})?(m|k|M|G|Ki|Mi|Gi|Ei)?", fullmatch=True)
# Values near those that are allowed; many are refused here, and all others are for the server.
OPTIONS: Mapping[str, st.SearchStrategy[str]] = {
    "cpu": QUANTITY,
    "memory": QUANTITY,
    "shm": QUANTITY,
    "gpu": st.sampled_from(["0", "1", "8"]),
    "nodes": st.sampled_from(["1", "2", "4096"]),
    "node_selector": st.builds("{}/{}={}".format, NAMES, LABELS, LABELS),
    "toleration": st.builds("{}={}:{}".format, LABELS, LABELS, st.sampled_from(["NoExecute", "NoSchedule"])),
    "pvc": st.builds("{}:/{}".format, NAMES, LABELS),
    "env_secret": st.builds("{}={}:{}".format, LABELS, NAMES, LABELS),
    "image": LABELS,
    "image_pull_secret": NAMES,
    "service_account": NAMES,
    "priority_class": NAMES,
    "queue": NAMES,
    "deadline": st.sampled_from(["1", "0.1", "86400", "1e9"]),
    "ttl": st.sampled_from(["1", "3600.5"]),
    "job_name": st.from_regex(r"[a-z]([-a-z0-9]{0,60}[a-z0-9])?", fullmatch=True),
}
LINES = st.fixed_dictionaries({}, optional=OPTIONS)
ITEM = st.sampled_from(["node", "side", "HOME", "MODE", "workspace", "more"])
TEXT = st.sampled_from(["a", "b"])
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "env": st.lists(
            st.builds(lambda name, value: {"name": name, "value": value}, ITEM, TEXT), max_size=3
        ),
        "imagePullPolicy": st.sampled_from(["Always", "Never", None]),
        "args": st.lists(TEXT, max_size=2),
        "volumeMounts": st.lists(
            st.builds(lambda path, name: {"mountPath": f"/{path}", "name": name}, TEXT, ITEM),
            max_size=2, unique_by=lambda mount: mount["mountPath"],
        ),
        "resources": st.sampled_from([None, {"limits": {"cpu": "2"}}, {"$patch": "replace"}]),
        "ports": st.just(
            [{"containerPort": 80, "protocol": x, "name": x.lower()} for x in ("TCP", "UDP")]
        ),
        "securityContext": st.sampled_from([{"runAsUser": 5}, {"capabilities": None}]),
    },
)  # fmt: skip
POD = st.fixed_dictionaries(
    {},
    optional={
        "containers": st.builds(
            lambda name, fields: [{"name": name, **({} if name == "node" else {"image": "i"}), **fields}],
            st.sampled_from(["node", "side"]), FIELDS,
        ),
        "volumes": st.sampled_from([
            [{"name": "more", "emptyDir": {}}], [{"name": "home", "$patch": "delete"}],
            [{"name": "home", "emptyDir": {"sizeLimit": "1Gi"}}],
            [{"name": "home", "emptyDir": {}}, {"name": "home", "$patch": "delete"}],
            [{"$patch": "replace"}, {"name": "home", "emptyDir": {}}],
        ]),
        "hostAliases": st.just([{"ip": "10.0.0.1", "hostnames": ["store"]}]),
        "nodeSelector": st.sampled_from(
            [{"a": "b"}, None, {"$patch": "replace", "c": "d"}, {"$patch": "delete"}]
        ),
        "tolerations": st.just([{"key": "gpu", "operator": "Exists"}]),
        "securityContext": st.sampled_from([{"runAsUser": 7}, {"fsGroup": None}]),
        "priorityClassName": TEXT,
        "schedulerName": TEXT,
        "topologySpreadConstraints": st.just([
            {"topologyKey": "a", "maxSkew": 1, "whenUnsatisfiable": when}
            for when in ("DoNotSchedule", "ScheduleAnyway")
        ]),
        "imagePullSecrets": st.lists(st.builds(lambda name: {"name": name}, TEXT), max_size=1),
    },
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program that has a runtime of its own."""
    (tmp_path / "train.py").touch()
    return tmp_path


@pytest.fixture
def job(folder: Path) -> dict[str, Any]:
    """A Job with most that options can give it."""
    words = (
        "--server=script --node_selector=disk=ssd --cpu=1 --pvc=data:/data --env_secret=TOKEN=s:k --shm=1Gi"
    )
    return make(folder, words.split())[-1]


def make(folder: Path, words: list[str]) -> list[dict[str, Any]]:
    """Return the objects of a job. Raises SpecError."""
    rows = get_options("k8s")
    several = {name for name, row in rows.items() if row.repeatable}
    split = split_command_line(words, {name: row.values for name, row in rows.items()}, several)
    spec = make_k8s_spec(gather("k8s", split, folder), split, cwd=folder, environ={"PSLAUNCH_IMAGE": "i"})
    plan = make_plan(spec, "j")
    return make_objects(plan, spec.site.reach, pack_package(plan, {"XDG_CACHE_HOME": str(folder)}))


@pytest.fixture
def server(cluster: Kube) -> Iterator[Cluster]:
    """The API as the limited user sees it; its models don't check what is sent."""
    found = open_cluster(Access(str(cluster.kubeconfig), namespace=cluster.namespace), {})
    yield found
    found.close()


def test_every_object_is_valid_for_the_server(server: Cluster, folder: Path) -> None:
    words = (
        "--separate --network_policy --queue=q --deadline=60 --env_secret=A=s:k --shm=64Mi --pvc=data:/data"
    )
    more = "--pvc=more:/more --toleration=gpu:NoSchedule --gpu=1 --server=script --server_cpu=1"
    objects = make(folder, [*words.split(), *more.split()])
    assert {thing["kind"] for thing in objects} == {"Service", "ConfigMap", "NetworkPolicy", "Job"}
    for thing in objects:
        server.create(thing, dry_run=True)


@BOUNDED
@given(line=LINES)
def test_options_that_are_taken_here_are_valid_for_the_server(
    server: Cluster, folder: Path, line: dict[str, str]
) -> None:
    try:
        objects = make(folder, ["--server=script", *(f"--{name}={value}" for name, value in line.items())])
    except SpecError as e:
        assert any(f"--{name}" in str(e) for name in line)
        return
    for thing in objects:
        if thing["kind"] in ("Job", "Service"):
            server.create(thing, dry_run=True)


@settings(BOUNDED, max_examples=60)
@given(made=draw_patches())
def test_patches_that_are_taken_here_are_valid_for_the_server(
    server: Cluster, job: dict[str, Any], made: tuple[list[dict[str, Any]], bool]
) -> None:
    patches, is_right = made
    try:
        patched = patch_object(job, patches)
    except SpecError as e:
        assert re.match(r"--patch: (Job )?(metadata|spec)\b", str(e)) and not is_right, e
    else:
        server.create(patched, dry_run=True)


def sort_items(thing: Any) -> Any:
    """Return data with lists in one order, for comparing."""
    if isinstance(thing, dict):
        return {key: sort_items(value) for key, value in thing.items()}
    if isinstance(thing, list):
        return sorted(map(sort_items, thing), key=lambda item: json.dumps(item, sort_keys=True))
    return thing


@pytest.fixture
def template(cluster: Kube, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A template of our pods, which is there, and can be patched."""
    thing = {"metadata": {"name": "patched"}, "template": job["spec"]["template"]}
    cluster.admin.create_namespaced_pod_template(cluster.namespace, thing)
    yield thing
    cluster.admin.delete_namespaced_pod_template("patched", cluster.namespace)


@BOUNDED
@given(patch=POD)
def test_patch_is_merged_as_the_server_merges_it(
    cluster: Kube, template: dict[str, Any], patch: dict[str, Any]
) -> None:
    admin, place = cluster.admin, ("patched", cluster.namespace)
    change = {"template": {"spec": patch}}
    kind = "application/strategic-merge-patch+json"
    theirs = ask_for(
        lambda: admin.patch_namespaced_pod_template(*place, change, dry_run="All", _content_type=kind)
    )
    merged = merge(template, change, "")
    ours = ask_for(lambda: admin.replace_namespaced_pod_template(*place, merged, dry_run="All"))
    assert sort_items(ours) == sort_items(theirs)


def ask_for(call: Any) -> Any:
    """Return a template as the server would have it, or None if it refuses it."""
    try:
        answer = call()
    except client.ApiException as e:
        assert e.status == 422, e.body
        return None
    return client.ApiClient().sanitize_for_serialization(answer.template)
