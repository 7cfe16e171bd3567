"""Patches of manifests: merged as the API server does it, and refused where the job could not do without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pslaunch.backends.k8s.job_records import Object
from pslaunch.backends.k8s.patch import apply_patches, merge_patch, patch_object, read_patches
from pslaunch.errors import FileError, SpecError

MANIFESTS = (Path(__file__).parents[3] / "golden/k8s-default.yaml").read_text()
JOB: dict[str, Any] = [*yaml.safe_load_all(MANIFESTS)][-1]
PORTS = [{"containerPort": 53, "protocol": x} for x in ("TCP", "UDP")]


def patch(text: str) -> Object:
    return patch_object(JOB, [{"kind": "Job", **yaml.safe_load(text)}])


def patch_pod(text: str) -> dict[str, Any]:
    """Return the pod's specification after a patch of it."""
    changed = patch_object(JOB, [{"kind": "Job", "spec": {"template": {"spec": yaml.safe_load(text)}}}])
    pod: dict[str, Any] = changed["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize(
    ("base", "change", "merged"),
    [
        ({"a": 1, "b": 2}, {"b": 3, "c": 4}, {"a": 1, "b": 3, "c": 4}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"a": {"b": 1}}, {"a": {"$patch": "replace", "c": 2}}, {"a": {"c": 2}}),
        ({"args": [1, 2]}, {"args": [3]}, {"args": [3]}),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "B", "value": "3"}, {"name": "C"}, {"name": "A", "$patch": "delete"}]},
            {"env": [{"name": "B", "value": "3"}, {"name": "C"}]},
        ),
        ({"env": [{"name": "A"}]}, {"env": [{"$patch": "replace"}, {"name": "B"}]}, {"env": [{"name": "B"}]}),
        ({}, {"volumes": [{"name": "v", "emptyDir": {}}]}, {"volumes": [{"name": "v", "emptyDir": {}}]}),
        ({"a": {"b": 1}}, {"a": {"$patch": "delete"}, "c": {"$patch": "delete"}}, {}),
        ({"a": {"b": 1}}, {"a": {"b": None, "c": [{"d": None}]}}, {"a": {"c": [{"d": None}]}}),
        (
            {"env": [{"name": "A", "value": "1", "x": "2"}]},
            {"env": [{"name": "A", "value": "3"}, {"name": "A", "$patch": "delete"}]},
            {"env": [{"name": "A", "value": "3"}]},
        ),
        ({}, {"ports": PORTS}, {"ports": PORTS}),
        ({"volumes": "x"}, {"volumes": [{"name": "a"}]}, {"volumes": [{"name": "a"}]}),
    ],
)
def test_merge_is_strategic(base: Any, change: Any, merged: Any) -> None:
    assert merge_patch(base, change, "") == merged


def test_patch_adds_to_the_pod_and_its_container() -> None:
    pod = patch_pod("""
      hostAliases: [{ip: 10.0.0.1, hostnames: [store]}]
      securityContext: {runAsUser: 1234}
      tolerations: [{key: gpu}]
      initContainers: [{name: proxy, image: p, restartPolicy: Always}]
      volumes: [{name: scratch, ephemeral: {}}]
      containers:
        - name: node
          imagePullPolicy: Always
          env: [{name: MODE, value: fast}]
          volumeMounts: [{name: scratch, mountPath: /scratch}]
    """)
    (node,) = pod["containers"]
    assert pod["securityContext"]["runAsUser"] == 1234 and pod["securityContext"]["runAsNonRoot"] is True
    assert pod["tolerations"] == [*JOB["spec"]["template"]["spec"]["tolerations"], {"key": "gpu"}]
    assert [variable["name"] for variable in node["env"]] == ["HOME", "USER", "LOGNAME", "MODE"]
    assert node["volumeMounts"][-1] == {"name": "scratch", "mountPath": "/scratch"}
    assert node["imagePullPolicy"] == "Always" and node["command"][0] == "/bin/sh"
    assert JOB["spec"]["template"]["spec"]["containers"][0] != node  # the original stays


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("restartPolicy: OnFailure", "spec.template.spec.restartPolicy must stay"),
        ("automountServiceAccountToken: true", "automountServiceAccountToken must stay"),
        ("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds must stay"),
        ("tolerations: null", "spec.template.spec.tolerations must stay"),
        ("volumes: [{name: secret, $patch: delete}]", "spec.template.spec.volumes.secret must stay"),
        (
            "volumes: [{name: pieces, projected: null}]",
            "spec.template.spec.volumes.pieces.projected must stay",
        ),
        ("containers: [{name: node, command: [sh]}]", "containers.node.command must stay"),
        ("containers: [{name: node, args: [x]}]", "containers.node.args can't be set: the command is"),
        ("containers: [{name: node, env: [{name: HOME, value: /}]}]", "env.HOME.value must stay"),
        ("containers: [{name: node, lifecycle: {preStop: {}}}]", "containers.node.lifecycle can't be set"),
        ("containers: [{name: proxy, image: p}]", "containers.proxy: a pod ends with the container node"),
        ("shareProcessNamespace: true", "shareProcessNamespace can't be set: the keeper is the first"),
        ("containers: [{name: node, env: 5}]", "containers.node.env must stay"),
        ("containers: 5", "Job spec.template.spec.containers must stay"),
        ("containers: [{image: p}]", "spec.template.spec.containers: an item has no name"),
        ("initContainers: [{name: [a]}]", "spec.template.spec.initContainers: an item has no name"),
        ("nodeSelector: {$retainKeys: [a]}", "nodeSelector: \\$retainKeys is not supported here"),
        ("nodeSelector: {$patch: merged}", "nodeSelector: \\$patch: merged is not supported here"),
        ("tolerations: [{$patch: replace}, {key: gpu}]", "tolerations: \\$patch has no meaning here"),
        ("ephemeralContainers: [{name: a, image: i}]", "ephemeralContainers can't be set: the cluster takes"),
        ("containers: [{name: node, terminationMessagePath: /tmp/x}]", "MessagePath can't be set: the end"),
    ],
)
def test_patch_that_breaks_the_job_is_refused_with_its_field(text: str, field: str) -> None:
    with pytest.raises(SpecError, match=f"--patch: .*{field}"):
        patch_pod(text)


@pytest.mark.parametrize(
    "text",
    [
        "spec: {backoffLimit: 3}",
        "spec: {completions: 9}",
        "spec: {podFailurePolicy: {rules: []}}",
        "spec: {manualSelector: true}",
        "metadata: {namespace: other}",
        "metadata: {name: other}",
        "metadata: {labels: {app.kubernetes.io/instance: x}}",
    ],
)
def test_patch_of_the_jobs_own_fields_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"--patch: Job (metadata|spec)"):
        patch(text)


def test_patch_may_change_values_of_options() -> None:
    annotated = "annotations: {karpenter.sh/do-not-disrupt: null}"
    changed = patch(f"spec: {{ttlSecondsAfterFinished: 1, template: {{metadata: {{{annotated}}}}}}}")
    assert changed["spec"]["ttlSecondsAfterFinished"] == 1
    annotations = changed["spec"]["template"]["metadata"]["annotations"]
    assert list(annotations) == ["cluster-autoscaler.kubernetes.io/safe-to-evict"]


def test_only_manifests_of_the_kind_are_written_anew(tmp_path: Path) -> None:
    file = tmp_path / "patch.yaml"
    file.write_text("kind: ConfigMap\nmetadata: {labels: {team: a}}\n")
    rendered = {"plan.yaml": "kind: ConfigMap\nmetadata: {name: p}\n", "job.yaml": "# words\nkind: Job\n"}
    changed = apply_patches(rendered, read_patches(str(file)))
    assert changed["job.yaml"] == rendered["job.yaml"]
    assert yaml.safe_load(changed["plan.yaml"])["metadata"] == {"name": "p", "labels": {"team": "a"}}
    with pytest.raises(SpecError, match="the job has no Secret; it has ConfigMap, Job"):
        apply_patches(rendered, [{"kind": "Secret"}])


def test_unusable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"read --patch .*/none"):
        read_patches(str(tmp_path / "none"))
    invalid = [
        ("a: [", "is not valid YAML"),
        ("kind: Job\nmetadata: {annotations: {since: 2026-01-02}}", "date is not JSON"),
        ("- a", "document 1 has no kind"),
        ("kind: Job\n---\nx: 1", "document 2"),
    ]
    for text, why in invalid:
        (tmp_path / "patch.yaml").write_text(text)
        with pytest.raises(SpecError, match=f"--patch=.*patch.yaml.*{why}"):
            read_patches(str(tmp_path / "patch.yaml"))
