"""Patches of manifests: merged as the API server does it, and refused where the job could not do without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pslaunch.backends.k8s_patch import apply_patches, merge, patch_object, read_patches
from pslaunch.backends.k8s_records import Object
from pslaunch.errors import FileError, SpecError

MANIFESTS = (Path(__file__).parents[2] / "golden/k8s-default.yaml").read_text()
JOB: dict[str, Any] = [*yaml.safe_load_all(MANIFESTS)][-1]


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
        (
            {},
            {"ports": [{"containerPort": 53, "protocol": x} for x in ("TCP", "UDP")]},
            {"ports": [{"containerPort": 53, "protocol": x} for x in ("TCP", "UDP")]},
        ),
    ],
)
def test_merge_is_strategic(base: Any, change: Any, merged: Any) -> None:
    assert merge(base, change, "") == merged


def test_patch_adds_to_the_pod_and_its_container() -> None:
    pod = patch_pod("""
      hostAliases: [{ip: 10.0.0.1, hostnames: [store]}]
      securityContext: {runAsUser: 1234}
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
    assert [variable["name"] for variable in node["env"]] == ["HOME", "MODE"]
    assert node["volumeMounts"][-1] == {"name": "scratch", "mountPath": "/scratch"}
    assert node["imagePullPolicy"] == "Always" and node["command"][0] == "/bin/sh"
    assert JOB["spec"]["template"]["spec"]["containers"][0] != node  # the original stays


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("restartPolicy: OnFailure", "spec.template.spec.restartPolicy must stay"),
        ("automountServiceAccountToken: true", "automountServiceAccountToken must stay"),
        ("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds must stay"),
        ("tolerations: []", "spec.template.spec.tolerations must stay"),
        ("volumes: [{name: secret, $patch: delete}]", "spec.template.spec.volumes.secret must stay"),
        ("volumes: [{name: job, projected: null}]", "spec.template.spec.volumes.job.projected must stay"),
        ("containers: [{name: node, command: [sh]}]", "containers.node.command must stay"),
        (
            "containers: [{name: node, args: [x]}]",
            "containers.node.args can't be set: the command is pslaunch's",
        ),
        (
            "containers: [{name: node, env: [{name: HOME, value: /}]}]",
            "containers.node.env.HOME.value must stay",
        ),
        ("containers: [{name: node, lifecycle: {preStop: {}}}]", "containers.node.lifecycle can't be set"),
        (
            "containers: [{name: proxy, image: p}]",
            "containers.proxy: a pod ends with the container node; add",
        ),
        (
            "shareProcessNamespace: true",
            "shareProcessNamespace can't be set: the keeper is the first process",
        ),
        (
            "containers: [{name: node, resources: {limits: {cpu: lots}}}]",
            "containers.node.resources.limits.cpu: 'lots': expected an amount",
        ),
        (
            "initContainers: [{name: own, resources: {requests: {memory: 4 Gi}}}]",
            "initContainers.own.resources.requests.memory: '4 Gi': expected an amount",
        ),
        ("containers: [{name: node, resources: 3}]", "containers.node.resources: 3: expected a mapping"),
        (
            "containers: [{name: node, resources: [a]}]",
            r"containers.node.resources: \['a'\]: expected a mapping",
        ),
        (
            "containers: [{name: node, resources: {limits: 3}}]",
            "containers.node.resources.limits: 3: expected a mapping",
        ),
        ("containers: [{name: node, env: 5}]", "containers.node.env must stay"),
        ("initContainers: [{name: own, env: 5}]", "initContainers.own.env: 5: expected a list"),
        ("containers: [{name: node, env: [{name: A, value: 5}]}]", "env.A.value: 5: expected a text"),
        (
            "containers: [{name: node, env: [{name: A, valueFrom: 5}]}]",
            "containers.node.env.A.valueFrom: 5: expected a mapping",
        ),
        (
            "containers: [{name: node, env: [{name: A, valueFrom: {secretKeyRef: 5}}]}]",
            "env.A.valueFrom.secretKeyRef: 5: expected a mapping",
        ),
        (
            "containers: [{name: node, env: [{name: A, valueFrom: {secretKeyRef: {key: k}}}]}]",
            "env.A.valueFrom.secretKeyRef: it has no name",
        ),
        ("containers: 5", "Job spec.template.spec.containers must stay"),
        ("initContainers: x", "Job spec.template.spec.initContainers: 'x': expected a list"),
        ("initContainers: 5", "Job spec.template.spec.initContainers: 5: expected a list"),
        ("initContainers: {a: b}", "Job spec.template.spec.initContainers: {'a': 'b'}: expected a list"),
        ("imagePullSecrets: x", "Job spec.template.spec.imagePullSecrets: 'x': expected a list"),
        ("containers: [{image: p}]", "spec.template.spec.containers: an item has no name"),
        ("initContainers: [{name: [a]}]", "spec.template.spec.initContainers: an item has no name"),
        ("nodeSelector: {$retainKeys: [a]}", "nodeSelector: \\$retainKeys is not supported here"),
        ("nodeSelector: {$patch: merged}", "nodeSelector: \\$patch: merged is not supported here"),
        ("tolerations: [{$patch: replace}, {key: gpu}]", "tolerations: \\$patch has no meaning here"),
        ("nodeSelector: {gpu: true}", "spec.nodeSelector.gpu: True: expected a text, in quotes"),
        ("hostNetwork: 'yes'", "spec.hostNetwork: 'yes': expected true or false"),
        ("securityContext: {runAsUser: x}", "securityContext.runAsUser: 'x': expected a whole number"),
        ("dnsConfig: {nameservers: 8.8.8.8}", "dnsConfig.nameservers: '8.8.8.8': expected a list"),
        ("dnsConfig: {options: [{name: ndots, value: 5}]}", "options.ndots.value: 5: expected a text"),
        ("hostAliases: [{ip: 10.0.0.1, hostnames: [5]}]", "hostAliases.0.hostnames.0: 5: expected a text"),
        ("volumes: [{name: a, emptyDir: {sizeLimit: much}}]", "a.emptyDir.sizeLimit: 'much': expected an am"),
        ("volumes: [{name: home, hostPath: {path: /h}}]", "volumes.home: expected one of emptyDir, hostPath"),
        ("volumes: [{name: data, hostPath: {}}]", "volumes.data.hostPath: it has no path"),
        ("initContainers: [{name: own}]", "initContainers.own: it has no image"),
        ("initContainers: [{name: node, image: i}]", "initContainers.node: the name is another container's"),
        ("ephemeralContainers: [{name: a, image: i}]", "ephemeralContainers can't be set: the cluster takes"),
        ("topologySpreadConstraints: [{topologyKey: zone}]", "SpreadConstraints.0: it has no maxSkew"),
        (
            "containers: [{name: node, volumeMounts: [{mountPath: /d, name: d}]}]",
            "containers.node.volumeMounts./d: there is no volume d",
        ),
        (
            "containers: [{name: node, env: [{name: A, value: a, valueFrom: {fieldRef: {fieldPath: b}}}]}]",
            "containers.node.env.A: expected one of value, valueFrom",
        ),
        (
            "containers: [{name: node, env: [{name: A, valueFrom: {}}]}]",
            "A.valueFrom: expected one of config",
        ),
        (
            "containers: [{name: node, securityContext: {privileged: true}}]",
            "node.securityContext: privileged needs allowPrivilegeEscalation: true",
        ),
        (
            "containers: [{name: node, resources: {requests: {cpu: 2}, limits: {cpu: 500m}}}]",
            "resources.requests.cpu: 2 is above its limit of 500m",
        ),
        (
            "containers: [{name: node, resources: {requests: {nvidia.com/gpu: 2}}}]",
            "resources.requests.nvidia.com/gpu: expected its limit, which is missing",
        ),
        (
            "containers: [{name: node, resources: {limits: {gpu: 1}}}]",
            "resources.limits.gpu: expected cpu, memory or a full name",
        ),
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
        "metadata: {annotations: {stage: 2}}",
        "metadata: {name: other}",
        "metadata: {labels: {app.kubernetes.io/instance: x}}",
    ],
)
def test_patch_of_the_jobs_own_fields_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"--patch: Job (metadata|spec)"):
        patch(text)


def test_numbers_as_keys_are_merged_like_names() -> None:
    changed = patch("spec: {template: {metadata: {annotations: {1: a}}}}")
    assert changed["spec"]["template"]["metadata"]["annotations"] == {1: "a"}


def test_later_patch_replaces_other_values_than_lists() -> None:
    path = "spec.template.spec"
    assert merge({"initContainers": "x"}, {"initContainers": [{"name": "a"}]}, path) == {
        "initContainers": [{"name": "a"}]
    }


@pytest.mark.parametrize("amount", ["2", "0.5", ".5", "500m", "4Gi", "1e3", "0", "'1.5E'"])
def test_patch_may_have_all_amounts_of_kubernetes(amount: str) -> None:
    patch_pod(f"containers: [{{name: node, resources: {{limits: {{cpu: {amount}}}}}}}]")


def test_patch_may_change_values_of_options() -> None:
    changed = patch("spec: {ttlSecondsAfterFinished: 1, template: {metadata: {annotations: {a: b}}}}")
    assert changed["spec"]["ttlSecondsAfterFinished"] == 1
    assert changed["spec"]["template"]["metadata"]["annotations"] == {"a": "b"}


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
        ("- a", "document 1 has no kind"),
        ("kind: Job\n---\nx: 1", "document 2"),
    ]
    for text, why in invalid:
        (tmp_path / "patch.yaml").write_text(text)
        with pytest.raises(SpecError, match=f"--patch=.*patch.yaml.*{why}"):
            read_patches(str(tmp_path / "patch.yaml"))
