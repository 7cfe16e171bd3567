"""The user's patches of manifests: strategic merge patches, and the fields that they must leave.

Lists whose items have a merge key are merged by it, as the API server does; all other lists are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ..errors import FileError, SpecError
from .k8s_records import Object

# By the last names of a path: the keys by which Kubernetes merges lists in Jobs, Services and their metadata.
MERGE_KEYS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("containers", "initContainers", "ephemeralContainers", "volumes", "env"), "name"),
    **dict.fromkeys(("imagePullSecrets", "schedulingGates", "resourceClaims"), "name"),
    "volumeMounts": "mountPath", "volumeDevices": "devicePath", "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey", "ownerReferences": "uid",
}  # fmt: skip
SERVICE_PORTS: Final = "spec.ports"  # by `port`; those of containers by `containerPort`
CONTAINER: Final = "node"
# As the API server reads amounts of resources.
QUANTITY: Final = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
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
    "spec.podFailurePolicy": "the head decides on failures",
    "spec.successPolicy": "the head decides on the end",
    "spec.backoffLimitPerIndex": "pods are never restarted",
    "spec.maxFailedIndexes": "pods are never restarted",
    "spec.template.spec.hostname": "each pod has its own",
    "spec.template.spec.shareProcessNamespace": "the keeper is the first process of its pod",
    "spec.template.spec.hostPID": "the keeper is the first process of its pod",
    "spec.template.spec.activeDeadlineSeconds": "--deadline ends the whole job in order",
    "spec.template.spec.containers.node.args": "the command is pslaunch's own",
    "spec.template.spec.containers.node.lifecycle": "the keeper ends the programs in order",
}


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


def apply_patches(rendered: Mapping[str, str], patches: list[Object]) -> dict[str, str]:
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


def patch_object(thing: Object, patches: list[Object]) -> Object:
    """Return an object with the patches of its kind. Raises SpecError with the field that must stay."""
    patched = thing
    for patch in patches:
        if patch["kind"] == thing["kind"]:
            patched = merge(patched, patch, "")
    _check(thing, patched)
    return patched


def merge(base: Any, patch: Any, path: str) -> Any:
    """Return `base` after a strategic merge patch, as the API server does it. Raises SpecError."""
    if not isinstance(patch, dict):
        return patch
    directive = patch.get("$patch", "merge")
    if unknown := [k for k in patch if str(k).startswith("$") and k != "$patch"] or directive not in (
        "merge",
        "replace",
    ):
        word = unknown[0] if isinstance(unknown, list) else f"$patch: {directive}"
        raise SpecError(
            f"--patch: {path or 'document'}: {word} is not supported here; $patch: replace, delete are"
        )
    values = {key: value for key, value in patch.items() if key != "$patch"}
    merged = dict(base) if isinstance(base, dict) and directive == "merge" else {}
    for key, value in values.items():
        place = f"{path}.{key}".lstrip(".")
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, list):
            merged[key] = _merge_list(merged.get(key), value, place)
        else:
            merged[key] = merge(merged.get(key), value, place)
    return merged


def _find_merge_key(path: str) -> str | None:
    name = path.rpartition(".")[2]
    if name == "ports":
        return "port" if path == SERVICE_PORTS else "containerPort"
    return MERGE_KEYS.get(name)


def _merge_list(base: Any, patch: list[Any], path: str) -> list[Any]:
    key = _find_merge_key(path)
    if key is None:
        return patch
    merged = {item[key]: item for item in base} if isinstance(base, list) else {}
    for item in patch:
        if not isinstance(item, dict) or not isinstance(item.get(key), (str, int)):
            if item == {"$patch": "replace"}:
                merged = {}
                continue
            raise SpecError(f"--patch: {path}: an item has no {key}, by which Kubernetes merges it")
        name = item[key]
        if item.get("$patch") == "delete":
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), item, f"{path}.{name}")
    return list(merged.values())


def _check(thing: Object, patched: Object) -> None:
    """Raise SpecError with the first field that a patch broke."""
    for path in _list_broken(thing, patched, ""):
        raise SpecError(f"--patch: {thing['kind']} {path} must stay as it is: the job needs it")
    if thing["kind"] != "Job":
        return
    for kind in ("containers", "initContainers", "imagePullSecrets"):
        path, found = f"spec.template.spec.{kind}", patched["spec"]["template"]["spec"].get(kind, [])
        if not isinstance(found, list):  # of mappings, or it was not merged
            raise SpecError(f"--patch: Job {path}: {found!r}: expected a list")
        _check_amounts(found, path)
        _check_variables(found, path)
    for path, why in ABSENT.items():
        if _look_up(patched, path) is not None:
            raise SpecError(f"--patch: Job {path} can't be set: {why}")
    if more := [
        c["name"] for c in patched["spec"]["template"]["spec"]["containers"] if c["name"] != CONTAINER
    ]:
        raise SpecError(
            f"--patch: Job spec.template.spec.containers.{more[0]}: a pod ends with the container "
            f"{CONTAINER}; add others as initContainers with restartPolicy: Always"
        )


def _check_amounts(containers: Iterable[Object], path: str) -> None:
    """Raise SpecError with the first resource whose amount is none."""
    for container in containers:
        resources, of = container.get("resources", {}), f"--patch: Job {path}.{container['name']}.resources"
        if not isinstance(resources, dict):
            raise SpecError(f"{of}: {resources!r}: expected a mapping with limits, requests")
        for kind in ("limits", "requests"):
            place, amounts = f"{of}.{kind}", resources.get(kind, {})
            if not isinstance(amounts, dict):
                raise SpecError(f"{place}: {amounts!r}: expected amounts by the names of resources")
            for name, amount in amounts.items():
                if not QUANTITY.fullmatch(str(amount)):
                    raise SpecError(f"{place}.{name}: {amount!r}: expected an amount such as 2, 500m or 4Gi")


def _check_variables(containers: Iterable[Object], path: str) -> None:
    """Raise SpecError with the first variable whose text or source has no form that the API server knows."""
    for container in containers:
        env, of = container.get("env", []), f"--patch: Job {path}.{container['name']}.env"
        if not isinstance(env, list):
            raise SpecError(f"{of}: {env!r}: expected a list of variables")
        for variable in env:
            place, value, source = (
                f"{of}.{variable['name']}",
                variable.get("value", ""),
                variable.get("valueFrom", {}),
            )
            if not isinstance(value, str):
                raise SpecError(f"{place}.value: {value!r}: expected a text, in quotes")
            if not isinstance(source, dict):
                raise SpecError(f"{place}.valueFrom: {source!r}: expected a mapping, such as secretKeyRef")
            secret = source.get("secretKeyRef", {"name": "", "key": ""})
            if not isinstance(secret, dict) or not all(
                isinstance(secret.get(x), str) for x in ("name", "key")
            ):
                raise SpecError(
                    f"{place}.valueFrom.secretKeyRef: {secret!r}: expected name and key of a secret"
                )


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
