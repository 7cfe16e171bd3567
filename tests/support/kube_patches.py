"""Patches of Jobs as users write them, and such with a mistake, for property tests."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from hypothesis import strategies as st

from pslaunch.backends.k8s_manifests import LOST_NODE

# By field, values that are right by themselves and beside all others.
OF_POD: Mapping[str, Sequence[Any]] = yaml.safe_load("""
affinity:
  - nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a, b]}]}]
      preferredDuringSchedulingIgnoredDuringExecution:
        - {weight: 1, preference: {matchExpressions: [{key: gpu, operator: Exists}]}}
  - podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: other}}}
  - podAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        - {weight: 9, podAffinityTerm: {topologyKey: zone, labelSelector: {matchLabels: {app: ours}}}}
topologySpreadConstraints:
  - - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {a: b}}}
    - {maxSkew: 2, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}
hostAliases: [[{ip: 10.0.0.1, hostnames: [store, store.lan]}, {ip: "fd00::1"}]]
dnsPolicy: [Default, ClusterFirstWithHostNet]
dnsConfig: [{nameservers: [10.0.0.2], searches: [lan], options: [{name: ndots, value: "2"}]}]
securityContext:
  - {runAsUser: 1000, fsGroup: null}
  - {supplementalGroups: [44], sysctls: [{name: kernel.shm_rmid_forced, value: "1"}]}
  - {seccompProfile: {type: Localhost, localhostProfile: a.json}, seLinuxOptions: {level: "s0:c1"}}
initContainers:
  - - name: proxy
      image: p
      restartPolicy: Always
      args: [-v]
      ports: [{containerPort: 80, name: web}]
      readinessProbe: {httpGet: {path: /, port: web}, periodSeconds: 5}
      lifecycle: {preStop: {exec: {command: ["true"]}}}
      volumeMounts: [{name: home, mountPath: /h, subPath: a, readOnly: true}]
      resources: {requests: {cpu: 100m}, limits: {memory: 1Gi}}
  - [{name: get, image: i, command: [get], envFrom: [{configMapRef: {name: c}}]}]
nodeSelector: [{gpu: h100}, {$patch: replace, disk: nvme}, {$patch: delete}]
imagePullSecrets: [[{name: registry}]]
schedulingGates: [[{name: example.org/ready}]]
readinessGates: [[{conditionType: example.org/ready}]]
runtimeClassName: [gvisor]
schedulerName: [volcano]
priorityClassName: [high]
preemptionPolicy: [Never]
serviceAccountName: [trainer]
hostNetwork: [true]
setHostnameAsFQDN: [true]
""")
OF_CONTAINER: Mapping[str, Sequence[Any]] = yaml.safe_load("""
image: [other:1]
imagePullPolicy: [Always, IfNotPresent]
env:
  - [{name: A, value: fast}, {name: B, value: $(HOME)/x}]
  - [{name: A, valueFrom: {secretKeyRef: {name: s, key: k, optional: true}}}]
  - [{name: A, valueFrom: {configMapKeyRef: {name: c, key: k}}}]
  - [{name: A, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
  - [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}]
envFrom: [[{configMapRef: {name: c}, prefix: C_}, {secretRef: {name: s, optional: true}}]]
volumeMounts: [[{name: home, mountPath: /more, subPathExpr: $(HOME), mountPropagation: None}]]
resources:
  - {limits: {cpu: "2", nvidia.com/gpu: 1, memory: 4Gi}}
  - {requests: {cpu: 0.5, ephemeral-storage: "1e9"}}
  - {$patch: replace, limits: {memory: 1.5G}, requests: {memory: 500M}}
ports: [[{containerPort: 53, protocol: TCP, name: dns}, {containerPort: 53, protocol: UDP, name: dns-udp}]]
securityContext:
  - {capabilities: {add: [IPC_LOCK]}, readOnlyRootFilesystem: false}
  - {runAsUser: 5, runAsNonRoot: null, capabilities: {$patch: delete}}
livenessProbe: [{exec: {command: ["true"]}, initialDelaySeconds: 9, failureThreshold: 2}]
startupProbe: [{tcpSocket: {port: 80}, timeoutSeconds: 2}]
stdin: [true]
""")
OF_JOB: Mapping[str, Sequence[Any]] = yaml.safe_load("""
ttlSecondsAfterFinished: [0, 60]
activeDeadlineSeconds: [60]
suspend: [true]
podReplacementPolicy: [Failed]
""")
VOLUMES: Sequence[Any] = yaml.safe_load("""
- {emptyDir: {medium: Memory, sizeLimit: 1Gi}}
- {configMap: {name: c, items: [{key: k, path: p}], optional: true}}
- {secret: {secretName: s, defaultMode: 0400}}
- {hostPath: {path: /dev/infiniband, type: Directory}}
- {nfs: {server: nas, path: /, readOnly: true}}
- {persistentVolumeClaim: {claimName: data}}
- {csi: {driver: s3.example.org, volumeAttributes: {bucket: b}}}
- {downwardAPI: {items: [{path: n, fieldRef: {fieldPath: metadata.name}}]}}
- {projected: {sources: [{serviceAccountToken: {path: t, audience: vault}}, {secret: {name: s}}]}}
- ephemeral:
    volumeClaimTemplate:
      spec: {accessModes: [ReadWriteOnce], storageClassName: fast, resources: {requests: {storage: 1Gi}}}
""")
META: Mapping[str, Sequence[Any]] = yaml.safe_load("""
labels: [{team: a}]
annotations: [{example.org/note: two words}]
""")
# Patches of pods that can't be beside what the job has.
BROKEN: Sequence[Any] = yaml.safe_load("""
- {volumes: [{name: home, hostPath: {path: /home}}]}
- {volumes: [{name: home, $patch: delete}]}
- {volumes: [{name: more, emptyDir: {}, nfs: {server: nas, path: /}}]}
- {initContainers: [{name: node, image: i}]}
- {initContainers: [{name: own}]}
- {containers: [{name: own, image: i}]}
- {containers: [{name: node, volumeMounts: [{name: none, mountPath: /none}]}]}
- {containers: [{name: node, env: [{name: HOME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]}]}
- {containers: [{name: node, env: [{name: A, valueFrom: {}}]}]}
- {containers: [{name: node, resources: {requests: {cpu: 4}}}]}
- {containers: [{name: node, resources: {requests: {nvidia.com/gpu: 2}}}]}
- {containers: [{name: node, resources: {limits: {gpu: 2}}}]}
- {containers: [{name: node, securityContext: {privileged: true, allowPrivilegeEscalation: false}}]}
- {containers: [{name: node, restartPolicy: Always}]}
- {containers: [{name: node, livenessProbe: {exec: {command: [a]}, tcpSocket: {port: 1}}}]}
- {ephemeralContainers: [{name: own, image: i}]}
- {topologySpreadConstraints: [{topologyKey: other}]}
- {tolerations: [{key: gpu}]}
- {tolerations: [{$patch: delete, key: gpu}]}
- {nodeSelector: {$retainKeys: [a]}}
- {restartPolicy: OnFailure}
""")
OTHERS: Sequence[Any] = (5, "x", True, [], {}, ["x"], {"a": "b"})  # of other types than what is there
LEFT = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "options",
    "image",
)  # to the server: they have several forms


def _choose(fields: Mapping[str, Sequence[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {}, optional={name: st.sampled_from(values) for name, values in fields.items()}
    )


def _combine(
    meta: Any, job: Any, of_pods: Any, pod: Any, container: Any, volumes: Sequence[Any]
) -> dict[str, Any]:
    named = [{"name": f"more-{i}", **volume} for i, volume in enumerate(volumes)]
    pod = {"volumes": named, **pod, "containers": [{"name": "node", **container}]}
    return {"metadata": meta, "spec": {**job, "template": {"metadata": of_pods, "spec": pod}}}


RIGHT = st.builds(
    _combine,
    *map(_choose, (META, OF_JOB, META)),
    _choose({**OF_POD, "tolerations": [[*LOST_NODE, {"key": "gpu", "operator": "Exists"}]]}),
    _choose(OF_CONTAINER),
    st.lists(st.sampled_from(VOLUMES), max_size=2),
)


def _list_places(thing: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each mapping or list in a patch, with each of its keys."""
    for key, value in thing.items() if isinstance(thing, dict) else enumerate(thing):
        if key not in LEFT:
            yield thing, key
        if isinstance(value, (dict, list)):
            yield from _list_places(value)


@st.composite
def draw_patches(draw: st.DrawFn) -> tuple[list[dict[str, Any]], bool]:
    """Return patches of a Job, and whether they are right."""
    patch = copy.deepcopy(draw(RIGHT))
    way = draw(st.sampled_from(["right", "broken", "mistyped"]))
    patches = [patch]
    if way == "broken":
        patches += [{"spec": {"template": {"spec": draw(st.sampled_from(BROKEN))}}}]
    if way == "mistyped":
        there, key = draw(st.sampled_from([*_list_places(patch)]))
        there[key] = draw(st.sampled_from([o for o in OTHERS if type(o) is not type(there[key])]))
    return [{"kind": "Job", **one} for one in patches], way == "right"
