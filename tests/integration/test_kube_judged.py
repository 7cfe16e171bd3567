"""Jobs that a real cluster judges without making anything: `check`, `--validate`, manifests and patches."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubernetes import client

from pslaunch.backends.k8s.api import Cluster
from pslaunch.backends.k8s.manifests import make_objects, pack_package
from pslaunch.backends.k8s.patch import merge_patch
from pslaunch.backends.k8s.spec import make_k8s_spec
from pslaunch.errors import SpecError
from pslaunch.node import codes
from pslaunch.plan import make_plan
from pslaunch.ship.wheel import RUNTIME_FILES, make_wheel
from support.command_line import make_line
from support.kube import Kube
from testbed.kube.cluster import PYTHON

Check = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def check(cluster: Kube, workspace: Path) -> Check:
    """Runs the check; returns its exit code and what it says."""
    (workspace / "train.py").write_text("")

    def run(*options: str) -> tuple[int, dict[str, Any]]:
        default = cluster.where
        names = {word.partition("=")[0] for word in options}
        words = [word for word in default if word.partition("=")[0] not in names]
        done = cluster.run("check", "k8s", f"--image={PYTHON}", *words, *options, "--json", cwd=workspace)
        assert not done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout)

    return run


@pytest.fixture
def added(cluster: Kube) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """Adds an object as the administrator, until the test ends."""
    network = client.NetworkingV1Api(cluster.admin.api_client)
    undo: list[Callable[[], object]] = []

    def add(kind: str, spec: dict[str, Any]) -> None:
        api = network if kind == "network_policy" else cluster.admin
        create, delete = (getattr(api, f"{verb}_namespaced_{kind}") for verb in ("create", "delete"))
        create(cluster.namespace, {"metadata": {"name": "of-a-test"}, "spec": spec})
        undo.append(lambda: delete("of-a-test", cluster.namespace))

    try:
        yield add
    finally:
        for each in undo:
            each()


def name_findings(told: dict[str, Any]) -> list[str]:
    return [finding["what"] for finding in told["findings"]]


def test_documented_rights_are_enough_and_seen_one_by_one(check: Check, cluster: Kube) -> None:
    before = cluster.list_names()
    code, told = check("--nodes=2", "--cpu=1", "--memory=1Gi")
    assert (code, told["findings"], told["ok"]) == (codes.OK, [], True)
    facts = told["facts"]
    assert facts["missing"] == [] and facts["there"] and facts["version"].startswith("v1.")
    assert facts["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert cluster.list_names() == before


def test_namespace_without_rights_shows_each_with_its_rule(check: Check) -> None:
    code, told = check("--namespace=default")
    assert code == codes.RIGHTS
    said = {finding["text"]: finding["advice"] for finding in told["findings"]}
    rule = '{apiGroups: ["batch"], resources: [jobs], verbs: [create, list, patch, delete]}'
    assert rule in said["no right to create, list, patch, delete jobs"]
    assert "resources: [pods/exec]" in said["no right to get, create pods/exec"]


def test_wheel_that_no_node_takes_is_seen_before_the_job_is_made(
    check: Check, cluster: Kube, workspace: Path
) -> None:
    """By a user who may list nodes, which is no right of the Role."""
    name = "pslaunch-0-cp311-abi3-manylinux2014_s390x.whl"
    (workspace / name).write_bytes(make_wheel(RUNTIME_FILES))
    (workspace / "train.py").write_text("import pslaunch.runtime")
    admin = f"--kubeconfig={cluster.kubeconfig.with_name('admin.kubeconfig')}"
    code, told = check(admin, f"--wheel={name}")
    assert (code, name_findings(told)) == (codes.PREFLIGHT, ["no wheel"])
    where = (admin, f"--namespace={cluster.namespace}", f"--image={PYTHON}")
    done = cluster.run("k8s", "apply", *where, f"--wheel={name}", cwd=workspace)
    assert done.returncode == codes.PREFLIGHT and "give --wheel=FILE" in done.stderr, done.stderr
    assert not cluster.list_names()


def test_quota_is_compared_with_all_pods_and_judged_for_one(check: Check, added: Callable[..., None]) -> None:
    added("resource_quota", {"hard": {"limits.memory": "1Gi", "pods": "1", "count/secrets": "0"}})
    code, told = check("--nodes=2")
    assert (code, sorted(name_findings(told))) == (codes.PREFLIGHT, ["quota", "quota", "refused", "refused"])
    found = {finding["text"]: finding["advice"] for finding in told["findings"]}
    (pod,) = (text for text in found if "create Pod" in text)
    assert "failed quota: of-a-test: must specify limits.memory" in pod and "--memory" in found[pod]
    assert "of-a-test: pods: 0 of 1 in use, and the job needs 2" in found
    assert [f["text"] for f in check("--memory=2Gi")[1]["findings"] if "create Pod" in f["text"]] != []


Apply = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def apply(cluster: Kube, workspace: Path) -> Apply:
    (workspace / "train.py").write_text("")

    def run(*options: str, config: str = "kubeconfig") -> subprocess.CompletedProcess[str]:
        where = [f"--kubeconfig={cluster.kubeconfig.with_name(config)}", f"--namespace={cluster.namespace}"]
        what = (f"--image={PYTHON}", "--job_name=j")
        before = cluster.list_names()
        done = cluster.run("k8s", "apply", *what, *where, *options, cwd=workspace)
        assert cluster.list_names() == before
        return done

    return run


def read(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_object_is_accepted(apply: Apply) -> None:
    done = apply("--validate", "--nodes=2", "--cpu=1", "--memory=1Gi", "--json")
    told = read(done)
    kinds = [one["object"].split()[0] for one in told]
    assert [*dict.fromkeys(kinds)] == ["Service", "ConfigMap", "Secret", "Job", "Pod"], done.stderr
    assert {one["answer"] for one in told} == {"accepted"} and done.returncode == 0


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ("kind: Job\nspec: {template: {spec: {tolerations: [{kee: a}]}}}", "tolerations[2].kee"),
        ("kind: ConfigMap\nmetadata: {annotation: {a: b}}", "metadata.annotation"),
    ],
)
def test_field_of_a_patch_that_the_server_does_not_take_is_named_and_nothing_is_left(
    apply: Apply, workspace: Path, patch: str, field: str
) -> None:
    (workspace / "patch.yaml").write_text(patch)
    done = apply("--server_num=0", "--patch=patch.yaml")  # which checks that nothing is left
    assert (done.returncode, field in done.stderr) == (codes.PREFLIGHT, True), done.stdout + done.stderr
    assert "correct the option or the --patch that gives this field" in done.stderr


def test_refused_object_names_its_field_and_the_others_are_judged_too(apply: Apply, workspace: Path) -> None:
    (workspace / "patch.yaml").write_text("kind: Job\nspec: {ttlSecondsAfterFinished: -5}\n")
    done = apply("--validate", "--patch=patch.yaml", "--json")
    refused = [one for one in read(done) if one["answer"] == "refused"]
    assert [one["object"].split()[0] for one in refused] == ["Job"], done.stdout + done.stderr
    assert "ttlSecondsAfterFinished" in refused[0]["text"] and "--patch" in refused[0]["text"]
    assert done.returncode == codes.PREFLIGHT


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
    "gpus": st.sampled_from(["0", "1", "8"]),
    "nodes": st.sampled_from(["1", "2", "4096"]),
    "node_selector": st.builds("{}/{}={}".format, NAMES, LABELS, LABELS),
    "pvc": st.builds("{}:/{}".format, NAMES, LABELS),
    "image": LABELS,
    "image_pull_secret": NAMES,
    "service_account": NAMES,
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
    words = "--server=script --node_selector=disk=ssd --cpu=1 --pvc=data:/data"
    return make(folder, words.split())[-1]


def make(folder: Path, words: list[str]) -> list[dict[str, Any]]:
    """Return the objects of a job. Raises SpecError."""
    spec = make_k8s_spec(make_line("k8s", words, folder, {"PSLAUNCH_IMAGE": "i"}))
    plan = make_plan(spec, "j")
    return make_objects(plan, spec.site.reach, pack_package(plan, {"XDG_CACHE_HOME": str(folder)}))


@pytest.fixture
def server(cluster: Kube) -> Iterator[Cluster]:
    """The API as the limited user sees it; its models don't check what is sent."""
    with cluster.open() as found:
        yield found


def test_every_object_is_valid_for_the_server(server: Cluster, folder: Path) -> None:
    words = "--separate --network_policy --queue=q --deadline=60 --pvc=data:/data"
    more = "--pvc=more:/more --gpus=1 --server=script --server_cpu=1"
    objects = make(folder, [*words.split(), *more.split()])
    assert {thing["kind"] for thing in objects} == {"Service", "ConfigMap", "NetworkPolicy", "Secret", "Job"}
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
    merged = merge_patch(template, change, "")
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
