"""Findings about a cluster and a namespace for the objects of a job. Pure.

A problem prevents the job; a warning does not. A test compares the kinds with docs/kubernetes.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from ..backends.k8s_api import EXEC, KUBECTL, KUBECTL_POLICY, LOOK
from ..backends.k8s_errors import Right, make_rule
from ..node import codes
from .findings import FindingKind
from .table import WORDS, Level, Table

COLUMNS: Final = (
    *("cluster", "reached", "version", "namespace", "rights", "exec", "quota", "limits", "secrets"),
    *("security", "network"),
)
DROPPED: Final = ("security", "secrets", "version", "limits", "quota", "network")
UNKNOWN: Final = "?"
OLDEST: Final = (1, 28)
LEVEL_LABEL: Final = "pod-security.kubernetes.io/enforce"
NAME_LABEL: Final = "kubernetes.io/metadata.name"  # which each namespace has
DNS_PORT: Final = 53
_COMPUTE: Final = ("cpu", "memory", "ephemeral-storage")

KINDS: Final[Mapping[str, FindingKind]] = {
    "not reached": FindingKind(
        "reached", "problem",
        "get a kubeconfig from the cluster's administrator or provider (--kubeconfig, KUBECONFIG), or check "
        "its server, your login, and the network to it (VPN, proxy), or give another --context",
    ),
    "old server": FindingKind(
        "version", "warning",
        "the manifests use fields of Kubernetes 1.28: --validate shows if this server knows them",
    ),
    "no namespace": FindingKind(
        "namespace", "problem",
        "give a --namespace that is there, or let an administrator make it",
    ),
    "ending namespace": FindingKind(
        "namespace", "problem",
        "give another --namespace: this one is being deleted with all in it",
    ),
    "no right": FindingKind(
        "rights", "problem",
        "let the namespace's administrator add to your Role: RULE; templates/k8s/role.yaml has all",
    ),
    "no exec": FindingKind(
        "exec", "problem",
        "let the namespace's administrator add to your Role: RULE; --detach runs a job without it",
    ),
    "no transfer": FindingKind(
        "exec", "problem",
        "let the namespace's administrator add to your Role: RULE; without it, --detach runs a job whose "
        "package is smaller (.pslaunchignore), or is in the image or a claim (--job_workspace, --pvc)",
    ),
    "no line": FindingKind(
        "exec", "warning",
        "let the namespace's administrator add to your Role: RULE; without it, status, logs and fetch "
        "don't reach "
        "the job",
    ),
    "no look": FindingKind(
        "rights", "warning",
        "nothing for the job, since only this check looks there; RULE",
    ),
    "no kubectl": FindingKind(
        "rights", "warning",
        "nothing for pslaunch, but kubectl needs it: apply --server-side, get, logs, describe; RULE",
    ),
    "quota": FindingKind(
        "quota", "problem",
        "ask for less (--nodes, --cpu, --memory), wait until other jobs have ended, or ask the namespace's "
        "administrator for more",
    ),
    "amounts": FindingKind(
        "limits", "problem",
        "state them: --cpu and --memory",
    ),
    "limits": FindingKind(
        "limits", "problem",
        "give --cpu and --memory within these limits",
    ),
    "no secret": FindingKind(
        "secrets", "problem",
        "make it in this namespace, or correct its name",
    ),
    "cut off": FindingKind(
        "network", "problem",
        "give --network_policy, which lets the job's pods reach each other, or let the namespace's "
        "administrator allow it for the label app.kubernetes.io/name=pslaunch",
    ),
    "no names": FindingKind(
        "network", "problem",
        "let the namespace's administrator allow egress to the cluster's name servers, port 53",
    ),
}  # fmt: skip
OF_RIGHTS: Final = frozenset({"no right", "no exec", "no transfer"})


class ClusterFinding(NamedTuple):
    """One finding, with the cluster's own words."""

    kind: str
    text: str
    rights: tuple[Right, ...] = ()  # missing ones

    @property
    def level(self) -> Level:
        return KINDS[self.kind].level

    @property
    def advice(self) -> str:
        return KINDS[self.kind].advice.replace("RULE", make_rule(self.rights))


class Pods(NamedTuple):
    """Equal pods of a job; amounts by resource."""

    number: int
    requests: Mapping[str, str]
    limits: Mapping[str, str]
    labels: Mapping[str, str]
    pull_secrets: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()


class Needs(NamedTuple):
    """Needs of a job's objects."""

    pods: tuple[Pods, ...]
    counts: Mapping[str, int]  # of objects by resource, such as jobs.batch
    made: frozenset[str]  # names of secrets that come with the job
    policies: tuple[Mapping[str, Any], ...]  # that come with the job
    port: int  # of the head
    attached: bool
    brings: bool  # the package over the line to pod 0


class ClusterSeen(NamedTuple):
    """Observations of a cluster; None: this user may not look there."""

    server: str
    namespace: str
    failed: str = ""  # cause of a failed connection
    version: str = ""
    missing: tuple[Right, ...] = ()
    there: bool | None = None  # the namespace
    phase: str = ""
    labels: Mapping[str, str] | None = None  # of the namespace
    quotas: Sequence[Mapping[str, Any]] | None = None
    limit_ranges: Sequence[Mapping[str, Any]] | None = None
    policies: Sequence[Mapping[str, Any]] | None = None
    secrets: Mapping[str, bool | None] = {}


def find_needs(
    objects: Sequence[Mapping[str, Any]], port: int, *, attached: bool, brings: bool = False
) -> Needs:
    """Return the needs of the objects of a job."""
    counts: dict[str, int] = {}
    for thing in objects:
        group = thing["apiVersion"].rpartition("/")[0]
        kind = re.sub("y$", "ie", thing["kind"].lower())
        name = f"{kind}s" + (f".{group}" if group else "")
        counts[name] = counts.get(name, 0) + 1
    jobs = [thing for thing in objects if thing["kind"] == "Job"]
    made = {thing["metadata"]["name"] for thing in objects if thing["kind"] == "Secret"}
    policies = tuple(thing for thing in objects if thing["kind"] == "NetworkPolicy")
    return Needs(tuple(map(_find_pods, jobs)), counts, frozenset(made), policies, port, attached, brings)


def _find_pods(job: Mapping[str, Any]) -> Pods:
    template = job["spec"]["template"]
    spec = template["spec"]
    amounts: dict[str, dict[str, str]] = {"requests": {}, "limits": {}}
    for container in spec["containers"]:
        for kind, known in amounts.items():
            known.update(container.get("resources", {}).get(kind, {}))
    env = [one for container in spec["containers"] for one in container.get("env", ())]
    used = [
        one["valueFrom"]["secretKeyRef"]["name"] for one in env if "secretKeyRef" in one.get("valueFrom", {})
    ]
    return Pods(
        job["spec"].get("completions", 1),
        {**amounts["limits"], **amounts["requests"]},
        amounts["limits"],
        template["metadata"]["labels"],
        tuple(one["name"] for one in spec.get("imagePullSecrets", ())),
        tuple(dict.fromkeys(used)),
    )


def find(seen: ClusterSeen, needs: Needs) -> list[ClusterFinding]:
    """Return all findings."""
    if seen.failed:
        return [ClusterFinding("not reached", seen.failed)]
    return [
        *_judge_server(seen),
        *_judge_rights(seen.missing, needs),
        *_judge_amounts(seen, needs),
        *(
            ClusterFinding("no secret", f"secret {name} does not exist in {seen.namespace}")
            for name, there in seen.secrets.items()
            if there is False
        ),
        *_judge_policies(seen, needs),
    ]


def choose_exit_code(findings: Sequence[ClusterFinding]) -> int:
    """Return the exit code; 0 without problems."""
    kinds = {f.kind for f in findings if f.level == "problem"}
    if not kinds:
        return codes.OK
    if "not reached" in kinds:
        return codes.HOST
    if "no namespace" in kinds:
        return codes.USAGE
    return codes.RIGHTS if kinds <= OF_RIGHTS else codes.PREFLIGHT


def _judge_server(seen: ClusterSeen) -> Iterator[ClusterFinding]:
    numbers = seen.version.lstrip("v").split(".")[:2]
    if all(map(str.isdigit, numbers)) and tuple(map(int, numbers)) < OLDEST:
        yield ClusterFinding("old server", f"it has {seen.version}")
    if seen.there is False:
        yield ClusterFinding("no namespace", f"namespace {seen.namespace} does not exist")
    if seen.phase == "Terminating":
        yield ClusterFinding("ending namespace", f"namespace {seen.namespace} is being deleted")


def _judge_rights(missing: Sequence[Right], needs: Needs) -> Iterator[ClusterFinding]:
    kinds = {
        **dict.fromkeys(EXEC, "no transfer" if needs.brings else "no exec" if needs.attached else "no line"),
        **dict.fromkeys(LOOK, "no look"),
        **dict.fromkeys((*KUBECTL, *KUBECTL_POLICY), "no kubectl"),
    }
    found: dict[tuple[str, str, str], list[Right]] = {}
    for right in missing:
        found.setdefault((kinds.get(right, "no right"), right.group, right.resource), []).append(right)
    for (kind, _, resource), rights in found.items():
        verbs = ", ".join(right.verb for right in rights)
        yield ClusterFinding(kind, f"no right to {verbs} {resource}", tuple(rights))


# --- Amounts: quotas and limits. ---


def _parse(amount: object) -> Decimal:
    from kubernetes.utils.quantity import parse_quantity

    return Decimal(parse_quantity(amount))


def _judge_amounts(seen: ClusterSeen, needs: Needs) -> Iterator[ClusterFinding]:
    ranges = [
        (one["metadata"]["name"], item) for one in seen.limit_ranges or () for item in one["spec"]["limits"]
    ]
    for pods in needs.pods:
        yield from _judge_ranges(ranges, pods)
    defaults = [item for _, item in ranges if item["type"] == "Container"]
    full = [_add_defaults(pods, defaults) for pods in needs.pods]
    for quota in seen.quotas or ():
        if not (quota["spec"].get("scopes") or quota["spec"].get("scopeSelector")):
            yield from _judge_quota(quota, full, needs)


def _add_defaults(pods: Pods, items: Sequence[Mapping[str, Any]]) -> Pods:
    """Return the pods with the amounts that the namespace gives them."""
    limits, requests = dict(pods.limits), dict(pods.requests)
    for item in items:
        limits = {**item.get("default", {}), **limits}
        requests = {**item.get("defaultRequest", {}), **requests}
    return pods._replace(limits=limits, requests={**limits, **requests})


def _judge_ranges(ranges: Sequence[tuple[str, Mapping[str, Any]]], pods: Pods) -> Iterator[ClusterFinding]:
    for name, item in ranges:
        if item["type"] not in ("Container", "Pod"):
            continue
        for resource, most in item.get("max", {}).items():
            given = pods.limits.get(resource)
            if given and _parse(given) > _parse(most):
                yield ClusterFinding(
                    "limits", f"{name}: at most {most} of {resource}, and the job has {given}"
                )
        for resource, least in item.get("min", {}).items():
            given = pods.requests.get(resource)
            if given and _parse(given) < _parse(least):
                yield ClusterFinding(
                    "limits", f"{name}: at least {least} of {resource}, and the job has {given}"
                )


def _judge_quota(quota: Mapping[str, Any], pods: Sequence[Pods], needs: Needs) -> Iterator[ClusterFinding]:
    name, used = quota["metadata"]["name"], quota.get("status", {}).get("used", {})
    counts = {**needs.counts, "pods": sum(one.number for one in pods)}
    for resource, most in quota["spec"].get("hard", {}).items():
        wanted: Decimal | None = Decimal(counts.get(resource.removeprefix("count/"), 0))
        kind, _, rest = resource.partition(".")
        if resource in _COMPUTE:
            wanted = _add_up(pods, "requests", resource)
        elif kind in ("requests", "limits"):
            wanted = _add_up(pods, kind, rest)
        if wanted is None:
            if resource in _COMPUTE or rest in _COMPUTE:
                yield ClusterFinding(
                    "amounts", f"quota {name} counts {resource}, which the pods do not state"
                )
        elif wanted and _parse(used.get(resource, 0)) + wanted > _parse(most):
            yield ClusterFinding(
                "quota",
                f"{name}: {resource}: {used.get(resource, 0)} of {most} in use, and the job needs "
                f"{wanted.normalize():f}",
            )


def _add_up(pods: Sequence[Pods], kind: str, resource: str) -> Decimal | None:
    """Return the sum of an amount; None if some pods do not state it."""
    stated = [(getattr(one, kind).get(resource), one.number) for one in pods]
    if any(amount is None for amount, _ in stated):
        return None
    return sum((_parse(amount) * count for amount, count in stated), Decimal(0))


# --- Network policies. ---


def _judge_policies(seen: ClusterSeen, needs: Needs) -> Iterator[ClusterFinding]:
    labels = [pods.labels for pods in needs.pods]
    policies = [*(seen.policies or ()), *needs.policies]
    for of in labels:
        for kind, rules, peers in (("Ingress", "ingress", "from"), ("Egress", "egress", "to")):
            found = [p["spec"] for p in policies if _isolates(p["spec"], of, kind)]
            if not found:
                continue
            names = ", ".join(p["metadata"]["name"] for p in policies if p["spec"] in found)
            allowed = [rule for spec in found for rule in spec.get(rules) or ()]
            if not all(any(_lets(r, peers, to, seen, needs.port) for r in allowed) for to in labels):
                yield ClusterFinding(
                    "cut off", f"NetworkPolicy {names}: no {kind.lower()} between the job's pods"
                )
            if kind == "Egress" and not any(_lets_names(rule) for rule in allowed):
                yield ClusterFinding("no names", f"NetworkPolicy {names}: no egress to port {DNS_PORT}")


def _isolates(spec: Mapping[str, Any], labels: Mapping[str, str], kind: str) -> bool:
    kinds = spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    return kind in kinds and _selects(spec.get("podSelector") or {}, labels)


def _lets(
    rule: Mapping[str, Any], peers: str, labels: Mapping[str, str], seen: ClusterSeen, port: int
) -> bool:
    """Return True if a rule lets pods with these labels through; of address ranges it is not known."""
    if not _has_port(rule, port, "TCP"):
        return False
    own = {NAME_LABEL: seen.namespace, **(seen.labels or {})}
    return not rule.get(peers) or any(
        "ipBlock" in peer
        or (
            ("namespaceSelector" not in peer or _selects(peer["namespaceSelector"], own))
            and _selects(peer.get("podSelector") or {}, labels)
        )
        for peer in rule[peers]
    )


def _lets_names(rule: Mapping[str, Any]) -> bool:
    others = not rule.get("to") or any("ipBlock" in to or "namespaceSelector" in to for to in rule["to"])
    return others and _has_port(rule, DNS_PORT, "UDP")


def _has_port(rule: Mapping[str, Any], port: int, protocol: str) -> bool:
    return not rule.get("ports") or any(
        one.get("protocol", "TCP") == protocol
        and (
            one.get("port") is None
            or isinstance(one["port"], str)
            or one["port"] <= port <= one.get("endPort", one["port"])
        )
        for one in rule["ports"]
    )


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return True if a label selector fits."""
    if any(labels.get(name) != value for name, value in (selector.get("matchLabels") or {}).items()):
        return False
    for one in selector.get("matchExpressions") or ():
        value = labels.get(one["key"])
        fits = {
            "In": value in (one.get("values") or ()),
            "NotIn": value not in (one.get("values") or ()),
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not fits.get(one["operator"], True):
            return False
    return True


# --- The report. ---


def make_table(seen: ClusterSeen, findings: Sequence[ClusterFinding], asked: int) -> Table:
    """Return the table, of one row. asked: the number of rights."""
    worst: dict[str, Level] = {}
    for f in findings:
        if worst.get(KINDS[f.kind].column) != "problem":
            worst[KINDS[f.kind].column] = f.level
    cells = {"cluster": seen.server, "namespace": seen.namespace, "reached": "no" if seen.failed else "yes"}
    if not seen.failed:
        cells |= {
            "version": seen.version,
            "rights": f"{asked - len(seen.missing)} of {asked}",
            "exec": "no" if set(seen.missing) & set(EXEC) else "ok",
            "quota": _show_list(seen.quotas),
            "limits": _show_list(seen.limit_ranges),
            "secrets": _show_secrets(seen.secrets),
            "security": UNKNOWN if seen.labels is None else seen.labels.get(LEVEL_LABEL, "none"),
            "network": UNKNOWN if seen.policies is None else "cut off" if "network" in worst else "ok",
        }
    row = [(cells.get(name, UNKNOWN), worst.get(name, "ok")) for name in COLUMNS]
    return Table(COLUMNS, DROPPED, [row])


def _show_secrets(found: Mapping[str, bool | None]) -> str:
    if None in found.values():
        return UNKNOWN
    return ("ok" if all(found.values()) else "missing") if found else "none needed"


def _show_list(found: Sequence[Mapping[str, Any]] | None) -> str:
    if found is None:
        return UNKNOWN
    return ", ".join(one["metadata"]["name"] for one in found) or "none"


def make_lines(findings: Sequence[ClusterFinding]) -> list[str]:
    """Return a line for each finding with its advice, problems first; then the result."""
    lines = [
        f"{WORDS[level]} {f.kind}: {f.text}; what to do: {f.advice}"
        for level in ("problem", "warning")
        for f in findings
        if f.level == level
    ]
    bad = any(f.level == "problem" for f in findings)
    return [*lines, "the cluster can't be used" if bad else "the cluster can be used"]


def make_data(seen: ClusterSeen, findings: Sequence[ClusterFinding]) -> dict[str, Any]:
    """Return the report as JSON data."""
    facts = {**seen._asdict(), "missing": [right._asdict() for right in seen.missing]}
    return {
        "cluster": seen.server,
        "namespace": seen.namespace,
        "ok": all(f.level != "problem" for f in findings),
        "facts": {k: v for k, v in facts.items() if k not in ("server", "namespace", "failed")},
        "findings": [
            {"what": f.kind, "level": f.level, "text": f.text, "advice": f.advice} for f in findings
        ],
    }
