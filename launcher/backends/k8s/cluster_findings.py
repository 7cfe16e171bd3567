"""Findings about a cluster and a namespace for the objects of a job. Pure.

A problem prevents the job; a warning does not. A test compares the kinds with docs/kubernetes.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from ...check.findings import FindingKind
from ...errors import PslaunchError
from ...node import codes
from ...node.beginning import is_wheel_for
from ...views.table import LEVEL_WORDS, Level, Table
from .api import EXEC, KUBECTL, KUBECTL_POLICY, LOOK, make_plural
from .api_errors import Right, find_refusal_remedy, make_rule
from .job_records import Object

COLUMNS: Final = (
    *("cluster", "reached", "version", "namespace", "rights", "exec", "objects", "quota", "secrets"),
    *("security", "network"),
)
DROPPED: Final = ("security", "secrets", "version", "quota", "network", "objects")
UNKNOWN: Final = "?"
OLDEST: Final = (1, 28)
MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}  # by their names in labels of nodes
WHEELS: Final[Mapping[str, Level]] = {"no wheel": "problem", "few wheels": "warning"}
LEVEL_LABEL: Final = "pod-security.kubernetes.io/enforce"

CLUSTER_FINDING_KINDS: Final[Mapping[str, FindingKind]] = {
    "not reached": FindingKind("reached", "problem",
        "get a kubeconfig from the cluster's administrator or provider (--kubeconfig, KUBECONFIG), or check "
        "its server, your login, and the network to it (VPN, proxy), or give another --context"),
    "old server": FindingKind("version", "warning",
        "the manifests use fields of Kubernetes 1.28: --validate shows if this server knows them"),
    "no namespace": FindingKind("namespace", "problem",
        "give a --namespace that is there, or let an administrator make it"),
    "ending namespace": FindingKind("namespace", "problem",
        "give another --namespace: this one is being deleted with all in it"),
    "no right": FindingKind("rights", "problem",
        "let the namespace's administrator add to your Role: RULE; templates/k8s/role.yaml has all"),
    "no exec": FindingKind("exec", "problem",
        "let the namespace's administrator add to your Role: RULE; --detach runs a job without it"),
    "no transfer": FindingKind("exec", "problem",
        "let the namespace's administrator add to your Role: RULE; without it, --detach runs a job whose "
        "package is smaller (.pslaunchignore), or is in the image or a claim (--job_workspace, --pvc)"),
    "no line": FindingKind("exec", "warning",
        "let the namespace's administrator add to your Role: RULE; without it, status, logs and fetch "
        "don't reach the job"),
    "no look": FindingKind("rights", "warning",
        "nothing for the job, since only this check and --validate need it; RULE"),
    "no kubectl": FindingKind("rights", "warning",
        "nothing for pslaunch, but kubectl needs it: apply --server-side, get, logs, describe; RULE"),
    "refused": FindingKind("objects", "problem",
        "correct the option or the --patch that gives this, or ask the cluster's administrator"),
    **{name: FindingKind("objects", level,
        "give --wheel=FILE of this version for each kind of processor, nodes by "
        "--node_selector=kubernetes.io/arch=NAME, or an image with pslaunch and --image_has_pslaunch")
        for name, level in WHEELS.items()},
    "quota": FindingKind("quota", "problem",
        "ask for less (--nodes, --cpu, --memory), wait until other jobs have ended, or ask the namespace's "
        "administrator for more"),
    "no secret": FindingKind("secrets", "problem",
        "make it in this namespace, or correct its name"),
    "policies": FindingKind("network", "warning",
        "let them allow connections between the job's pods, which --network_policy does for incoming ones, "
        "and to the cluster's name servers, port 53"),
}  # fmt: skip
OF_RIGHTS: Final = frozenset({"no right", "no exec", "no transfer"})


class ClusterFinding(NamedTuple):
    """One finding, with the cluster's own words."""

    kind: str
    text: str
    rights: tuple[Right, ...] = ()  # missing ones
    remedy: str = ""  # of this one; "": that of its kind

    @property
    def level(self) -> Level:
        return CLUSTER_FINDING_KINDS[self.kind].level

    @property
    def advice(self) -> str:
        return self.remedy or CLUSTER_FINDING_KINDS[self.kind].advice.replace("RULE", make_rule(self.rights))


class ObjectVerdict(NamedTuple):
    """The server's answer for one object."""

    shown: str  # kind and name
    error: PslaunchError | None = None
    left_out: str = ""  # why it was not asked
    made: Object | None = None  # as the server would have it

    def make_data(self) -> dict[str, str | None]:
        """Return it as JSON data."""
        answer = "refused" if self.error else "not asked" if self.left_out else "accepted"
        return {"object": self.shown, "answer": answer, "text": str(self.error or self.left_out) or None}


class Needs(NamedTuple):
    """Needs of a job."""

    objects: Sequence[Object]
    attached: bool
    brings: bool = False  # the package over the line to pod 0

    def list_templates(self) -> list[Object]:
        return [thing["spec"]["template"] for thing in self.objects if thing["kind"] == "Job"]

    def name_secrets(self) -> list[str]:
        """Return the names of secrets that the pods use and the job does not bring."""
        made = {thing["metadata"]["name"] for thing in self.objects if thing["kind"] == "Secret"}
        names: list[str] = []
        for pod in (template["spec"] for template in self.list_templates()):
            names += [one["name"] for one in pod.get("imagePullSecrets", ())]
            env = (one.get("valueFrom", {}) for c in pod["containers"] for one in c.get("env", ()))
            names += [one["secretKeyRef"]["name"] for one in env if "secretKeyRef" in one]
        return [name for name in dict.fromkeys(names) if name not in made]


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
    quotas: Sequence[Object] | None = None
    policies: Sequence[Object] | None = None
    secrets: Mapping[str, bool | None] = {}
    verdicts: Sequence[ObjectVerdict] = ()  # on the job's objects, and on a pod of each Job


def judge_cluster(seen: ClusterSeen, needs: Needs) -> list[ClusterFinding]:
    if seen.failed:
        return [ClusterFinding("not reached", seen.failed)]
    return [
        *_judge_server(seen),
        *_judge_rights(seen.missing, needs),
        *(_judge_refusal(str(verdict.error)) for verdict in seen.verdicts if verdict.error),
        *_judge_quotas(seen, needs),
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


def _judge_refusal(text: str) -> ClusterFinding:
    remedy = find_refusal_remedy(text)
    return ClusterFinding("refused", text.removesuffix(f"; {remedy}"), remedy=remedy)


def judge_wheels(processors: Sequence[str], wheels: Sequence[str]) -> list[ClusterFinding]:
    """Compare wheels, of which each pod needs one, with the nodes' processors; without those, with any."""
    machines = {name: MACHINES.get(name, name) for name in processors} or {"any": r"\w+"}
    lacks = [name for name, machine in machines.items() if not any(is_wheel_for(w, machine) for w in wheels)]
    kind = "no wheel" if len(lacks) == len(machines) else "few wheels"
    text = f"no wheel is for Linux on {', '.join(lacks)} (kubernetes.io/arch)"
    return [ClusterFinding(kind, text)] if lacks else []


def _judge_quotas(seen: ClusterSeen, needs: Needs) -> Iterator[ClusterFinding]:
    """Compare quotas with the sum over all objects: the server judges each by itself."""
    wanted = add_up(needs.objects, {v.shown: v.made for v in seen.verdicts if v.made})
    for quota in seen.quotas or ():
        name, used = quota["metadata"]["name"], quota.get("status", {}).get("used", {})
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            continue
        for resource, most in quota["spec"].get("hard", {}).items():
            more, there = wanted.get(resource.removeprefix("count/"), Decimal()), used.get(resource, 0)
            if more and _parse(there) + more > _parse(most):
                yield ClusterFinding(
                    "quota",
                    f"{name}: {resource}: {there} of {most} in use, and the job needs {more.normalize():f}",
                )


def _parse(amount: object) -> Decimal:
    from kubernetes.utils.quantity import parse_quantity  # 0.2 s

    return Decimal(parse_quantity(amount))


def make_pod(job: Object) -> dict[str, Any]:
    """Return a pod as the cluster creates it from a Job, for rules that apply to pods alone."""
    template = job["spec"]["template"]
    metadata = {"name": f"{job['metadata']['name']}-0", "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def find_right(thing: Object) -> Right:
    """Return the right to create an object."""
    group = thing["apiVersion"].rpartition("/")[0]
    return Right("create", make_plural(thing["kind"]).lower(), group)


def name_object(thing: Object) -> str:
    return f"{thing['kind']} {thing['metadata']['name']}"


def add_up(objects: Sequence[Object], made: Mapping[str, Object]) -> dict[str, Decimal]:
    """Return what all objects count in a quota, by resource.

    made: pods as the server would make them, with the amounts of the namespace, by their shown names.
    """
    total: defaultdict[str, Decimal] = defaultdict(Decimal)
    for thing in objects:
        _, resource, group = find_right(thing)
        total[f"{resource}{group and '.'}{group}"] += 1
        if thing["kind"] != "Job":
            continue
        pods = thing["spec"].get("completions", 1)
        total["pods"] += pods
        pod = make_pod(thing)
        for container in made.get(name_object(pod), pod)["spec"]["containers"]:
            amounts = container.get("resources", {})
            limits = amounts.get("limits") or {}
            requests = {**limits, **(amounts.get("requests") or {})}
            named = {f"limits.{name}": a for name, a in limits.items()}
            named |= {f"requests.{name}": a for name, a in requests.items()} | requests
            for name, amount in named.items():
                total[name] += pods * _parse(amount)
    return total


def _judge_policies(seen: ClusterSeen, needs: Needs) -> Iterator[ClusterFinding]:
    labels = [template["metadata"]["labels"] for template in needs.list_templates()]
    names = [
        policy["metadata"]["name"]
        for policy in seen.policies or ()
        if any(_selects(policy["spec"].get("podSelector") or {}, of) for of in labels)
    ]
    if names:
        yield ClusterFinding("policies", f"NetworkPolicy {', '.join(names)}: applies to the job's pods")


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


def make_table(seen: ClusterSeen, findings: Sequence[ClusterFinding], asked: int) -> Table:
    """Return the table, of one row. asked: the number of rights."""
    worst: dict[str, Level] = {}
    for level in ("warning", "problem"):
        worst |= {CLUSTER_FINDING_KINDS[f.kind].column: f.level for f in findings if f.level == level}
    cells = {"cluster": seen.server, "namespace": seen.namespace, "reached": "no" if seen.failed else "yes"}
    if not seen.failed:
        cells |= {
            "version": seen.version,
            "rights": f"{asked - len(seen.missing)} of {asked}",
            "exec": "no" if set(seen.missing) & set(EXEC) else "ok",
            "objects": _show_verdicts(seen.verdicts),
            "quota": _show_names(seen.quotas),
            "secrets": _show_secrets(seen.secrets),
            "security": UNKNOWN if seen.labels is None else seen.labels.get(LEVEL_LABEL, "none"),
            "network": _show_names(seen.policies),
        }
    row = [(cells.get(name, UNKNOWN), worst.get(name, "ok")) for name in COLUMNS]
    return Table(COLUMNS, DROPPED, [row])


def _show_secrets(found: Mapping[str, bool | None]) -> str:
    if None in found.values():
        return UNKNOWN
    return ("ok" if all(found.values()) else "missing") if found else "none needed"


def _show_names(found: Sequence[Object] | None) -> str:
    if found is None:
        return UNKNOWN
    return ", ".join(one["metadata"]["name"] for one in found) or "none"


def _show_verdicts(found: Sequence[ObjectVerdict]) -> str:
    if not found or any(v.left_out for v in found):
        return UNKNOWN
    return "refused" if any(v.error for v in found) else "ok"


def make_lines(findings: Sequence[ClusterFinding]) -> list[str]:
    """Return a line for each finding with its advice, problems first; then the result."""
    ordered = sorted(findings, key=lambda f: f.level != "problem")
    lines = [f"{LEVEL_WORDS[f.level]} {f.kind}: {f.text}; what to do: {f.advice}" for f in ordered]
    bad = any(f.level == "problem" for f in findings)
    return [*lines, "the cluster can't be used" if bad else "the cluster can be used"]


def make_data(seen: ClusterSeen, findings: Sequence[ClusterFinding]) -> dict[str, Any]:
    """Return the report as JSON data."""
    facts = {**seen._asdict(), "missing": [right._asdict() for right in seen.missing]}
    facts["verdicts"] = [v.make_data() for v in seen.verdicts]
    del facts["failed"]  # a finding says it
    return {
        "cluster": facts.pop("server"),
        "namespace": facts.pop("namespace"),
        "ok": all(f.level != "problem" for f in findings),
        "facts": facts,
        "findings": [
            {"what": f.kind, "level": f.level, "text": f.text, "advice": f.advice} for f in findings
        ],
    }
