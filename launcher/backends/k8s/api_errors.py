"""Errors of a Kubernetes API in the words and codes of pslaunch. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from ...errors import ClusterError, PreflightError, PslaunchError, RightsError, SpecError

ANONYMOUS: Final = "system:anonymous"
MAX_TEXT_CHARS: Final = 1000  # characters of a cluster's message
_FORBIDDEN: Final = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" '
    r'in API group "(?P<group>[^"]*)"'
)
# The library's objects, which begin its messages.
_OBJECT: Final = re.compile(r"^<?urllib3\.\S+ object at \S+: |^\S+\(host=[^)]*\): ")
_NO_NAMESPACE: Final = re.compile(r'namespaces "([^"]*)" not found')
# Refusals of an object, in a cluster's own words, each with its remedy.
_REFUSALS: Final[Mapping[str, str]] = {
    r"exceeded quota": "ask for less (--nodes, --cpu, --memory), wait until other jobs there have ended, "
    "or ask the namespace's administrator for a larger quota",
    r"failed quota": "the namespace's quota counts what this job does not state: give --cpu and --memory",
    r"(minimum|maximum) \S+ usage per|limit to request ratio per|"
    r"must (specify|be less than or equal to) \S+ limit": "the namespace's LimitRange allows other "
    "amounts: give --cpu and --memory within its limits",
    r"violates PodSecurity": "the namespace's security level forbids it: take it out of --patch, or use "
    "another --namespace",
    r"failed calling webhook|failed to call webhook": "this service of the cluster does not answer, so "
    "nothing can be created: its administrator can repair it",
    r"admission webhook .* denied|ValidatingAdmissionPolicy": "a rule of this cluster: its administrator "
    "knows it",
    r"error looking up service account|serviceaccount .* not found": "give a --service_account "
    "of this namespace",
    r"no PriorityClass with name": "give a priorityClassName of this cluster in --patch",
    r"is being terminated": "the namespace is being deleted: use another --namespace",
    r"Too long: |must have at most .* bytes": "leave files out of the package (.pslaunchignore)",
    r"unknown field|strict decoding error|is invalid: |cannot be handled as a": "correct the option or "
    "the --patch that gives this field",
}


class AbsentError(PreflightError):
    """An object does not exist."""


class ConflictError(PreflightError):
    """An object has changed meanwhile, or one of this name exists."""


class Right(NamedTuple):
    """One verb on one kind of object; its resource as in a rule, such as pods/exec."""

    verb: str
    resource: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


class Place(NamedTuple):
    """The cluster that was asked, in messages."""

    server: str
    source: str  # of its address and of the credentials
    namespace: str


def make_rule(rights: Iterable[Right]) -> str:
    """Return the rules that give these rights, for a Role, as YAML on one line."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for right in rights:
        verbs.setdefault((right.group, right.resource), []).append(right.verb)
    return ", ".join(
        f"{{apiGroups: [{json.dumps(group)}], resources: [{resource}], verbs: [{', '.join(known)}]}}"
        for (group, resource), known in verbs.items()
    )


def explain_rights(missing: Iterable[Right], place: Place, user: str = "") -> RightsError:
    """Return the error of missing rights: each of them, and the rules to add."""
    missing = list(missing)
    return RightsError(
        f"{place.server}: {user or f'the user of {place.source}'} has no right to "
        f"{', '.join(map(str, missing))} in namespace {place.namespace}; if that is the right --namespace, "
        f"let its administrator add to your Role: {make_rule(missing)}"
    )


def explain_answer(doing: str, status: int, message: str, place: Place) -> PslaunchError:
    """Return the error for an unwanted answer. doing: in the infinitive, such as "create Job word2vec"."""
    said = " ".join(message.split())[:MAX_TEXT_CHARS]
    forbidden = _FORBIDDEN.search(said) if status == 403 else None
    if status == 401 or (forbidden and forbidden["user"] == ANONYMOUS):
        return explain_credentials(said, place)
    if forbidden:
        right = Right(forbidden["verb"], forbidden["resource"], forbidden["group"])
        return explain_rights([right], place, forbidden["user"])
    if status == 404 and (found := _NO_NAMESPACE.search(said)):
        return SpecError(f"namespace {found[1]} does not exist on {place.server}; give another --namespace")
    remedy = find_refusal_remedy(said)
    if status in (410, 429) or (status >= 500 and not remedy):
        return ClusterError(place.server, f"it can't {doing} now ({status}): {said}", "try again later")
    if status == 404:
        return AbsentError(f"{place.server} can't {doing}: {said}")
    if status == 409:
        return ConflictError(f"{place.server} refuses to {doing}: {said}")
    return PreflightError(f"{place.server} refuses to {doing}: {said}{f'; {remedy}' if remedy else ''}")


def find_refusal_remedy(message: str) -> str:
    """Return the remedy for a refusal in a cluster's words, in an answer or an event; "" if none is known."""
    return next((remedy for words, remedy in _REFUSALS.items() if re.search(words, message)), "")


def explain_credentials(said: str, place: Place) -> ClusterError:
    """Return the error of credentials that are missing or no longer valid."""
    return ClusterError(
        place.server,
        f"it does not accept the credentials of {place.source}: {said}",
        "log in to the cluster again, or give another --kubeconfig or --context",
    )


def explain_plugin(said: str, plugin: Mapping[str, Any], path: str) -> ClusterError | None:
    """Return the error of a program for credentials that is not there; None if nothing says so.

    said: by the library. plugin: `exec` of the user in the kubeconfig at `path`.
    """
    command = plugin.get("command")
    if not said.endswith(f"No such file or directory: {command!r}"):
        return None
    hint = f" ({hinted})" if (hinted := " ".join(str(plugin.get("installHint") or "").split())) else ""
    return ClusterError(
        "",
        f"the credentials of {path} come from {command}, which is not installed here",
        f"install it{hint}, or give another --kubeconfig or --context",
    )


def explain_connection(cause: str, place: Place) -> ClusterError:
    """Return the error of a server that is not reached, or of its certificate, from the system's words."""
    cause = _OBJECT.sub("", " ".join(cause.split()))[:MAX_TEXT_CHARS]
    if re.search(r"(?i)certificate|\bssl\b|\btls\b", cause):
        cause = f"no safe connection: {cause}"
        remedy = (
            f"{place.source} may be of an earlier or another cluster: get a new kubeconfig from the cluster"
        )
    else:
        cause = f"it is not reached: {cause}"
        remedy = f"check the server in {place.source} and the network to it (VPN, proxy)"
    return ClusterError(place.server, cause, f"{remedy}, or give another --kubeconfig or --context")
