"""The user's patches of manifests: strategic merge patches, fields that they must leave, forms of all others.

Lists whose items have a merge key are merged by it, as the API server does; all other lists are replaced.
Unlike there, new items come last, so that a variable may refer to ours, and `$patch: replace` sets what was
not set before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..errors import FileError, SpecError
from .k8s_records import Object


class _Form(NamedTuple):
    """A test of a field's value, and the words for what it takes."""

    fits: Callable[[Any], bool]
    words: str


# By the last names of a path: the keys by which Kubernetes merges lists in Jobs, Services and their metadata.
MERGE_KEYS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("containers", "initContainers", "ephemeralContainers", "volumes", "env"), "name"),
    **dict.fromkeys(("imagePullSecrets", "schedulingGates", "resourceClaims"), "name"),
    "volumeMounts": "mountPath", "volumeDevices": "devicePath", "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey", "ownerReferences": "uid",
}  # fmt: skip
SERVICE_PORTS: Final = "spec.ports"  # by `port`; those of containers by `containerPort`
CONTAINER: Final = "node"
DIRECTIVE: Final = "$patch"
# Fields of a Job that a patch may change or take away; all others are needed as they are.
FREE: Final = (
    "spec.ttlSecondsAfterFinished",
    "spec.activeDeadlineSeconds",
    "spec.suspend",
    "spec.template.spec.serviceAccountName",
    "spec.template.spec.imagePullSecrets",
    "spec.template.spec.nodeSelector",
    "spec.template.spec.priorityClassName",
    "spec.template.spec.enableServiceLinks",
    "spec.template.spec.securityContext",
    "spec.template.spec.containers.node.image",
    "spec.template.spec.containers.node.resources",
    "spec.template.spec.containers.node.securityContext",
    "spec.template.spec.containers.node.terminationMessagePolicy",
)
# Fields with which a job could not do its work, and the reason.
ABSENT: Final[Mapping[str, str]] = {
    "metadata.namespace": "--namespace does it for all objects",
    "spec.selector": "the cluster makes it",
    "spec.manualSelector": "the cluster makes the selector",
    "spec.podFailurePolicy": "the head decides on failures",
    "spec.successPolicy": "the head decides on the end",
    "spec.backoffLimitPerIndex": "pods are never restarted",
    "spec.maxFailedIndexes": "pods are never restarted",
    "spec.template.spec.hostname": "each pod has its own",
    "spec.template.spec.shareProcessNamespace": "the keeper is the first process of its pod",
    "spec.template.spec.hostPID": "the keeper is the first process of its pod",
    "spec.template.spec.activeDeadlineSeconds": "--deadline ends the whole job in order",
    "spec.template.spec.ephemeralContainers": "the cluster takes them for running pods alone",
    "spec.template.spec.containers.node.args": "the command is pslaunch's own",
    "spec.template.spec.containers.node.lifecycle": "the keeper ends the programs in order",
    "spec.template.spec.containers.node.restartPolicy": "pods are never restarted",
    "spec.template.spec.containers.node.terminationMessagePath": "the end of the job is written to the usual",
}

# --- Forms of fields. A field's name tells its form, wherever it is; a name that Kubernetes uses for several
# forms is left to the server. ---

# As the API server reads amounts of resources.
QUANTITY: Final = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
TEXT: Final = _Form(lambda value: isinstance(value, str), "a text, in quotes")
NUMBER: Final = _Form(lambda value: type(value) is int, "a whole number")
FLAG: Final = _Form(lambda value: isinstance(value, bool), "true or false")
MAPPING: Final = _Form(lambda value: isinstance(value, dict), "a mapping")
PORT: Final = _Form(lambda value: type(value) in (int, str), "a number or a name")
LIST: Final = _Form(lambda value: isinstance(value, list), "a list")
AMOUNT: Final = _Form(
    lambda value: not isinstance(value, bool) and bool(QUANTITY.fullmatch(str(value))),
    "an amount such as 2, 500m or 4Gi",
)
# The names of fields by their form.
NAMES: Final[Mapping[_Form, str]] = {
    TEXT: """audience claimName completionMode conditionType dnsPolicy driver effect fieldPath
        fsGroupChangePolicy fsType imagePullPolicy ip key level localhostProfile managedBy medium
        mountPath mountPropagation name namespace nodeName operator path podReplacementPolicy
        preemptionPolicy prefix priorityClassName protocol resource restartPolicy runtimeClassName
        schedulerName scheme secretName server serviceAccountName storageClassName subPath subPathExpr
        topologyKey type value volumeMode whenUnsatisfiable workingDir""",
    NUMBER: """activeDeadlineSeconds backoffLimit containerPort defaultMode expirationSeconds
        failureThreshold fsGroup hostPort initialDelaySeconds maxSkew minDomains periodSeconds
        priority runAsGroup runAsUser successThreshold terminationGracePeriodSeconds timeoutSeconds
        tolerationSeconds ttlSecondsAfterFinished weight""",
    FLAG: """allowPrivilegeEscalation enableServiceLinks hostIPC hostNetwork hostPID hostUsers immutable
        manualSelector optional privileged publishNotReadyAddresses readOnly readOnlyRootFilesystem
        runAsNonRoot setHostnameAsFQDN shareProcessNamespace stdin suspend tty""",
    MAPPING: """affinity annotations appArmorProfile capabilities configMap configMapKeyRef configMapRef
        csi data dnsConfig downwardAPI emptyDir ephemeral exec fieldRef hostPath httpGet labels
        labelSelector lifecycle limits livenessProbe matchLabels metadata namespaceSelector nfs
        nodeAffinity nodeSelector persistentVolumeClaim podAffinity podAffinityTerm podAntiAffinity
        postStart preference preStop projected readinessProbe requests resourceFieldRef resources
        seccompProfile secret secretKeyRef secretRef securityContext seLinuxOptions serviceAccountToken
        spec startupProbe tcpSocket template valueFrom volumeAttributes volumeClaimTemplate""",
    LIST: """accessModes add args command containers drop env envFrom hostAliases hostnames
        imagePullSecrets initContainers items matchExpressions matchFields matchLabelKeys nameservers
        namespaces nodeSelectorTerms ports preferredDuringSchedulingIgnoredDuringExecution readinessGates
        resourceClaims schedulingGates searches sources supplementalGroups sysctls tolerations
        topologySpreadConstraints values volumeDevices volumeMounts volumes""",
    AMOUNT: "divisor sizeLimit",
    PORT: "port targetPort",
}  # fmt: skip
FORMS: Final[Mapping[str, _Form]] = {name: form for form, names in NAMES.items() for name in names.split()}
# The form of all values of a mapping whose names are the user's, and of all items of a list; else mappings.
VALUES: Final[Mapping[str, _Form]] = {
    **dict.fromkeys(
        ("annotations", "data", "labels", "matchLabels", "nodeSelector", "volumeAttributes"), TEXT
    ),
    **dict.fromkeys(("accessModes", "add", "args", "command", "drop", "hostnames", "matchLabelKeys"), TEXT),
    **dict.fromkeys(("nameservers", "namespaces", "searches", "values"), TEXT),
    **dict.fromkeys(("limits", "requests"), AMOUNT),
    "supplementalGroups": NUMBER,
}
# Fields that Kubernetes needs, by the name of their mapping or list.
NEEDED: Final[Mapping[str, Sequence[str]]] = {
    "configMapKeyRef": ("name", "key"),
    "fieldRef": ("fieldPath",),
    "hostPath": ("path",),
    "httpGet": ("port",),
    "initContainers": ("name", "image"),
    "matchExpressions": ("key", "operator"),
    "nfs": ("server", "path"),
    "persistentVolumeClaim": ("claimName",),
    "secretKeyRef": ("name", "key"),
    "tcpSocket": ("port",),
    "topologySpreadConstraints": ("maxSkew", "topologyKey", "whenUnsatisfiable"),
    "volumeMounts": ("name", "mountPath"),
}
# Fields that exclude each other, by the name of their mapping or list.
EXCLUSIVE: Final[Mapping[str, Sequence[str]]] = {
    "env": ("value", "valueFrom"),
    "valueFrom": ("configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef"),
    **dict.fromkeys(
        ("livenessProbe", "readinessProbe", "startupProbe"), ("exec", "grpc", "httpGet", "tcpSocket")
    ),
    **dict.fromkeys(("postStart", "preStop"), ("exec", "httpGet", "sleep", "tcpSocket")),
}
OPTIONAL: Final = ("env", "volumes")  # may have none of these fields
# Resources of a container without a domain in their names.
RESOURCE: Final = re.compile(r"cpu|memory|ephemeral-storage|hugepages-.+|.+/.+")


def read_patches(path: str) -> list[Object]:
    """Return the patches in a file of YAML documents. Raises SpecError, FileError."""
    import yaml

    label = f"--patch={path}"
    try:
        found = list(yaml.safe_load_all(Path(path).read_text(encoding="utf-8")))
    except OSError as e:
        raise FileError.from_os(e, "read --patch") from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise SpecError(f"{label} is not valid YAML: {' '.join(str(e).split())}") from e
    for number, patch in enumerate(found, 1):
        if not isinstance(patch, dict) or not isinstance(patch.get("kind"), str):
            raise SpecError(f"{label}: document {number} has no kind; expected a mapping with kind: Job")
    return found


def apply_patches(rendered: Mapping[str, str], patches: Sequence[Object]) -> dict[str, str]:
    """Return the manifests with each patch merged into all objects of its kind. Raises SpecError."""
    import yaml

    parsed = {name: list(yaml.safe_load_all(text)) for name, text in rendered.items()}
    kinds = sorted({thing["kind"] for things in parsed.values() for thing in things})
    for patch in patches:
        if patch["kind"] not in kinds:
            raise SpecError(f"--patch: the job has no {patch['kind']}; it has {', '.join(kinds)}")
    changed = {patch["kind"] for patch in patches}
    result = {}
    for name, things in parsed.items():
        if changed.isdisjoint(thing["kind"] for thing in things):
            result[name] = rendered[name]
            continue
        patched = [patch_object(thing, patches) for thing in things]
        result[name] = "# Changed by --patch.\n" + yaml.safe_dump_all(patched, sort_keys=False, width=1 << 20)
    return result


def patch_object(thing: Object, patches: Sequence[Object]) -> Object:
    """Return an object with the patches of its kind. Raises SpecError with the field that must stay."""
    patched = thing
    for patch in patches:
        if patch["kind"] == thing["kind"]:
            patched = merge(patched, patch, "")
    _check(thing, patched)
    return patched


def merge(base: Any, patch: Any, path: str) -> Any:
    """Return `base` after a strategic merge patch. Raises SpecError."""
    if not isinstance(patch, dict):
        return patch
    replaces = _read_directive(patch, path) == "replace"
    merged = dict(base) if isinstance(base, dict) and not replaces else {}
    for key, value in patch.items():
        place = f"{path}.{key}".lstrip(".")
        if key == DIRECTIVE:
            continue
        if value is None or value == {DIRECTIVE: "delete"}:
            merged.pop(key, None)
        elif isinstance(value, list):
            merged[key] = _merge_list(merged.get(key), value, place)
        else:
            merged[key] = merge(merged.get(key), value, place)
    return merged


def _read_directive(patch: Object, path: str) -> str:
    """Return what a patch does to a mapping: merge, replace or (to an item of a list) delete."""
    directive = patch.get(DIRECTIVE, "merge")
    unknown = [str(key) for key in patch if str(key).startswith("$") and key != DIRECTIVE]
    if unknown or directive not in ("merge", "replace", "delete"):
        word = unknown[0] if unknown else f"{DIRECTIVE}: {directive}"
        raise SpecError(
            f"--patch: {path or 'document'}: {word} is not supported here; {DIRECTIVE}: replace, delete are"
        )
    return str(directive)


def _find_merge_key(path: str) -> str | None:
    name = path.rpartition(".")[2]
    if name == "ports":
        return "port" if path == SERVICE_PORTS else "containerPort"
    return MERGE_KEYS.get(name)


def _merge_list(base: Any, patch: list[Any], path: str) -> list[Any]:
    key = _find_merge_key(path)
    if key is None:
        if any(isinstance(item, dict) and DIRECTIVE in item for item in patch):
            raise SpecError(f"--patch: {path}: {DIRECTIVE} has no meaning here: the whole list is replaced")
        return patch
    if {DIRECTIVE: "replace"} in patch:
        base, patch = None, [item for item in patch if item != {DIRECTIVE: "replace"}]
    for item in patch:
        if not isinstance(item, dict) or not isinstance(item.get(key), (str, int)):
            raise SpecError(f"--patch: {path}: an item has no {key}, by which Kubernetes merges it")
    deleted = [item[key] for item in patch if _read_directive(item, f"{path}.{item[key]}") == "delete"]
    added = [item for item in patch if item.get(DIRECTIVE) != "delete"]
    if not isinstance(base, list):  # it may have a key twice: a port of TCP and UDP
        return [merge(None, item, f"{path}.{item[key]}") for item in added]
    merged = [item for item in base if item[key] not in deleted]
    for item in added:
        at = next((i for i, one in enumerate(merged) if one[key] == item[key]), len(merged))
        merged[at : at + 1] = [merge(next(iter(merged[at:]), None), item, f"{path}.{item[key]}")]
    return merged


def _check(thing: Object, patched: Object) -> None:
    """Raise SpecError with the first field that a patch broke."""
    kind = thing["kind"]
    for path in _list_broken(thing, patched, ""):
        raise SpecError(f"--patch: {kind} {path} must stay as it is: the job needs it")
    for path, why in ABSENT.items():
        if _look_up(patched, path) is not None and _look_up(thing, path) is None:
            raise SpecError(f"--patch: {kind} {path} can't be set: {why}")
    for path, fault in _list_faults(patched):
        raise SpecError(f"--patch: {kind} {path}: {fault}")
    if kind == "Job":
        path, pod = "spec.template.spec", patched["spec"]["template"]["spec"]
        if more := [c["name"] for c in pod["containers"] if c["name"] != CONTAINER]:
            raise SpecError(
                f"--patch: Job {path}.containers.{more[0]}: a pod ends with the container "
                f"{CONTAINER}; add others as initContainers with restartPolicy: Always"
            )
        for place, fault in _list_faults_of_pod(pod, path):
            raise SpecError(f"--patch: Job {place}: {fault}")


def _list_broken(needed: Any, found: Any, path: str) -> Iterator[str]:
    """Yield the paths at which something needed is missing or changed; more may be there."""
    if path in FREE:
        return
    if isinstance(needed, dict) and isinstance(found, dict):
        for key, value in needed.items():
            yield from _list_broken(value, found.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(needed, list) and isinstance(found, list):
        key = _find_merge_key(path)
        if key is None and path.rpartition(".")[2] != "tolerations":
            if needed != found:
                yield path
            return
        for item in needed:
            name = item[key] if key else ""
            there = [one for one in found if (one.get(key) == name if key else one == item)]
            if not there:
                yield f"{path}.{name}" if key else path
            else:
                yield from _list_broken(item, there[0], f"{path}.{name}")
    elif needed != found:
        yield path


def _look_up(thing: Any, path: str) -> Any:
    """Return the value of a field, or None; items of lists go by their merge key."""
    for name in path.split("."):
        if isinstance(thing, list):
            thing = next((item for item in thing if item.get("name") == name), None)
        elif isinstance(thing, dict):
            thing = thing.get(name)
    return thing


def _list_faults(thing: Object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield paths of fields that the API server would not take, and what is wrong there."""
    for key, value in thing.items():
        name, place = str(key), f"{path}.{key}".lstrip(".")
        form = FORMS.get(name)
        if value is None:  # as if it were not there
            continue
        if form and not form.fits(value):
            yield place, f"{value!r}: expected {form.words}"
        elif isinstance(value, list) or name in VALUES:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for number, item in items:
                yield from _list_in_item(name, item, number, place)
        elif isinstance(value, dict):
            yield from _list_in_mapping(name, value, place)


def _list_in_item(name: str, item: Any, number: object, path: str) -> Iterator[tuple[str, str]]:
    """Yield the faults of a value of the mapping or list `name`."""
    form = VALUES.get(name, MAPPING if name in FORMS else None)
    place = f"{path}.{item.get('name', number) if isinstance(item, dict) else number}"
    if form and not form.fits(item):
        yield place, f"{item!r}: expected {form.words}"
    elif isinstance(item, dict):
        yield from _list_in_mapping(name, item, place)


def _list_in_mapping(name: str, thing: Object, path: str) -> Iterator[tuple[str, str]]:
    """Yield the faults of a mapping that is the field `name`, or an item of this list."""
    yield from _list_faults(thing, path)
    for field in NEEDED.get(name, ()):
        if thing.get(field) is None:
            yield path, f"it has no {field}"
    exclusive = set(EXCLUSIVE.get(name, ())) if name != "volumes" else set(thing) - {"name"}
    found = exclusive.intersection(thing)
    if len(found) > 1 or (exclusive and not found and name not in OPTIONAL):
        yield path, f"expected one of {', '.join(sorted(found or exclusive))}"


def _list_faults_of_pod(pod: Object, path: str) -> Iterator[tuple[str, str]]:
    """Yield the same for fields of a pod that don't fit each other; each by itself is right."""
    volumes, taken = {volume["name"] for volume in pod.get("volumes", [])}, set()
    for kind in ("containers", "initContainers"):
        for container in pod.get(kind, []):
            place = f"{path}.{kind}.{container['name']}"
            if container["name"] in taken:
                yield place, "the name is another container's"
            taken.add(container["name"])
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    yield f"{place}.volumeMounts.{mount['mountPath']}", f"there is no volume {mount['name']}"
            security = container.get("securityContext", {})
            if security.get("privileged") and security.get("allowPrivilegeEscalation") is False:
                yield f"{place}.securityContext", "privileged needs allowPrivilegeEscalation: true"
            yield from _list_faults_of_resources(container.get("resources", {}), f"{place}.resources")


def _list_faults_of_resources(resources: Object, path: str) -> Iterator[tuple[str, str]]:
    limits, requests = (resources.get(kind) or {} for kind in ("limits", "requests"))
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name in amounts:
            if not RESOURCE.fullmatch(name):
                yield f"{path}.{kind}.{name}", "expected cpu, memory or a full name such as nvidia.com/gpu"
    for name, amount in requests.items():
        limit = limits.get(name)
        if limit is not None and _parse(amount) > _parse(limit):
            yield f"{path}.requests.{name}", f"{amount} is above its limit of {limit}"
        elif "/" in name and (limit is None or _parse(amount) != _parse(limit)):
            yield f"{path}.requests.{name}", f"expected its limit, {limit or 'which is missing'}"


def _parse(amount: object) -> Decimal:
    from kubernetes.utils.quantity import parse_quantity  # 0.2 s

    return Decimal(parse_quantity(str(amount)))
