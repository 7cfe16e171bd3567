"""The user's patches of manifests: strategic merge patches, and fields that they must leave.

Lists whose items have a merge key are merged by it, as the API server does; all other lists are replaced.
Unlike there, new items come last, so that a variable may refer to ours, tolerations are added to ours, and
`$patch: replace` sets what was not set before. The server judges the result, by
`fieldValidation=Strict` with each object.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ...errors import FileError, SpecError
from .job_records import Object

# Keys by which Kubernetes merges lists in Jobs, Services and their metadata: by a path, or its last name.
MERGE_KEYS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("containers", "initContainers", "ephemeralContainers", "volumes", "env"), "name"),
    **dict.fromkeys(("imagePullSecrets", "schedulingGates", "resourceClaims"), "name"),
    "volumeMounts": "mountPath", "volumeDevices": "devicePath", "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey", "ownerReferences": "uid",
    "spec.ports": "port", "ports": "containerPort",  # of Services, and of containers
}  # fmt: skip
_POD: Final = "spec.template.spec"
TOLERATIONS: Final = f"{_POD}.tolerations"
CONTAINER: Final = "node"
_NODE: Final = f"{_POD}.containers.{CONTAINER}"
DIRECTIVE: Final = "$patch"
# Fields of a Job that a patch may change or take away; all others are needed as they are.
FREE: Final = (
    *("spec.ttlSecondsAfterFinished", "spec.activeDeadlineSeconds", "spec.suspend"),
    *(f"{_POD}.serviceAccountName", f"{_POD}.imagePullSecrets", f"{_POD}.nodeSelector"),
    "spec.template.metadata.annotations",
    *(f"{_NODE}.env.{name}" for name in ("USER", "LOGNAME")),
    *(f"{_POD}.priorityClassName", f"{_POD}.enableServiceLinks", f"{_POD}.securityContext"),
    *(f"{_NODE}.image", f"{_NODE}.resources", f"{_NODE}.securityContext"),
    f"{_NODE}.terminationMessagePolicy",
)
# Fields with which a job could not do its work, and the reason.
ABSENT: Final[Mapping[str, str]] = {
    "metadata.namespace": "--namespace does it for all objects",
    "spec.selector": "the cluster makes it",
    "spec.manualSelector": "the cluster makes the selector",
    "spec.podFailurePolicy": "the head decides on failures",
    "spec.successPolicy": "the head decides on the end",
    **dict.fromkeys(("spec.backoffLimitPerIndex", "spec.maxFailedIndexes"), "pods are never restarted"),
    f"{_POD}.hostname": "each pod has its own",
    f"{_POD}.shareProcessNamespace": "the keeper is the first process of its pod",
    f"{_POD}.hostPID": "the keeper is the first process of its pod",
    f"{_POD}.activeDeadlineSeconds": "--deadline ends the whole job in order",
    f"{_POD}.ephemeralContainers": "the cluster takes them for running pods alone",
    f"{_NODE}.args": "the command is pslaunch's own",
    f"{_NODE}.lifecycle": "the keeper ends the programs in order",
    f"{_NODE}.restartPolicy": "pods are never restarted",
    f"{_NODE}.terminationMessagePath": "the end of the job is written to the usual",
}


def read_patches(path: str) -> list[Object]:
    """Return the patches in a file of YAML documents. Raises SpecError, FileError."""
    import yaml

    label = f"--patch={path}"
    try:
        read = list(yaml.safe_load_all(Path(path).read_text(encoding="utf-8")))
        found: list[Any] = json.loads(json.dumps(read, allow_nan=False))  # YAML may have more, such as dates
    except OSError as e:
        raise FileError.from_os(e, "read --patch") from e
    except (yaml.YAMLError, ValueError, TypeError) as e:
        raise SpecError(f"{label} is not valid YAML for Kubernetes: {' '.join(str(e).split())}") from e
    for number, patch in enumerate(found, 1):
        if not isinstance(patch, dict) or not isinstance(patch.get("kind"), str):
            raise SpecError(f"{label}: document {number} has no kind; expected a mapping with kind: Job")
    return found


def apply_patches(rendered: Mapping[str, str], patches: Sequence[Object]) -> dict[str, str]:
    """Return the manifests with each patch merged into all objects of its kind. Raises SpecError."""
    import yaml

    parsed = {name: list(yaml.safe_load_all(text)) for name, text in rendered.items()}
    kinds, changed = {t["kind"] for things in parsed.values() for t in things}, {p["kind"] for p in patches}
    for kind in changed - kinds:
        raise SpecError(f"--patch: the job has no {kind}; it has {', '.join(sorted(kinds))}")
    result = dict(rendered)
    for name, things in parsed.items():
        if not changed.isdisjoint(thing["kind"] for thing in things):
            patched = [patch_object(thing, patches) for thing in things]
            text = yaml.safe_dump_all(patched, sort_keys=False, width=1 << 20)
            result[name] = f"# Changed by --patch.\n{text}"
    return result


def patch_object(thing: Object, patches: Sequence[Object]) -> Object:
    """Return an object with the patches of its kind. Raises SpecError with the field that must stay."""
    patched = thing
    for patch in patches:
        if patch["kind"] == thing["kind"]:
            patched = merge_patch(patched, patch, "")
    _check(thing, patched)
    return patched


def merge_patch(base: Any, patch: Any, path: str) -> Any:
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
            merged[key] = merge_patch(merged.get(key), value, place)
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
    return MERGE_KEYS.get(path) or MERGE_KEYS.get(path.rpartition(".")[2])


def _merge_list(base: Any, patch: list[Any], path: str) -> list[Any]:
    key = _find_merge_key(path)
    if key is None:
        if any(isinstance(item, dict) and DIRECTIVE in item for item in patch):
            raise SpecError(f"--patch: {path}: {DIRECTIVE} has no meaning here: the whole list is replaced")
        return [*(base or ()), *patch] if path == TOLERATIONS else patch
    if {DIRECTIVE: "replace"} in patch:
        base, patch = None, [item for item in patch if item != {DIRECTIVE: "replace"}]
    for item in patch:
        if not isinstance(item, dict) or not isinstance(item.get(key), (str, int)):
            raise SpecError(f"--patch: {path}: an item has no {key}, by which Kubernetes merges it")
    deleted = [item[key] for item in patch if _read_directive(item, f"{path}.{item[key]}") == "delete"]
    added = [item for item in patch if item.get(DIRECTIVE) != "delete"]
    if not isinstance(base, list):  # it may have a key twice: a port of TCP and UDP
        return [merge_patch(None, item, f"{path}.{item[key]}") for item in added]
    merged = [item for item in base if item[key] not in deleted]
    for item in added:
        at = next((i for i, one in enumerate(merged) if one[key] == item[key]), len(merged))
        merged[at : at + 1] = [merge_patch(next(iter(merged[at:]), None), item, f"{path}.{item[key]}")]
    return merged


def _check(thing: Object, patched: Object) -> None:
    """Raise SpecError with the first field that a patch broke."""
    kind, containers = thing["kind"], f"{_POD}.containers"
    for path, was_there in _list_changes(thing, patched, ""):
        if was_there:
            raise SpecError(f"--patch: {kind} {path} must stay as it is: the job needs it")
        if path in ABSENT:
            raise SpecError(f"--patch: {kind} {path} can't be set: {ABSENT[path]}")
        if path.rpartition(".")[0] == containers:
            raise SpecError(
                f"--patch: {kind} {path}: a pod ends with the container {CONTAINER}; "
                "add others as initContainers with restartPolicy: Always"
            )


def _list_changes(before: Any, after: Any, path: str) -> Iterator[tuple[str, bool]]:
    """Yield the paths of fields that were changed or taken away, with True, or added, with False."""
    key = _find_merge_key(path)
    are_lists = isinstance(before, list) and isinstance(after, list)
    if path in FREE or before == after:
        return
    if path == TOLERATIONS and are_lists and all(item in after for item in before):
        return  # the patch's were added
    if key and are_lists:
        before, after = ({item[key]: item for item in reversed(items)} for items in (before, after))
    elif not (isinstance(before, dict) and isinstance(after, dict)):
        yield path, before is not None
        return
    for name in {**before, **after}:
        yield from _list_changes(before.get(name), after.get(name), f"{path}.{name}".lstrip("."))
