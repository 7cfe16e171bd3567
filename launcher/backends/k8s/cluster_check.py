"""`pslaunch check` of a Kubernetes cluster, and `--validate`: questions about a job; nothing is created.

A problem prevents the job; a warning does not. A test compares the kinds with docs/kubernetes.md. What is
judged and shown here is pure.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from ...check.findings import Finding, FindingKind
from ...check.report import UNKNOWN_CELL, make_finding_data, make_row, report
from ...errors import ClusterError, PreflightError, PslaunchError, RightsError, SpecError
from ...node import codes
from ...node.beginning import is_wheel_for
from ...node.job import Plan
from ...node.line.wire import NONSENSE
from ...node.logs import clean
from ...options.spec import JobSpec
from ...plan import make_plan
from ...ship.wheel import make_wheel_name
from ...views.table import Level, Table
from ..face import CommandLine
from ..lines import News, Tell
from . import manifests
from .api import AT_ONCE, EXEC, JOB, LOOK, POLICY, Cluster, make_plural, open_cluster
from .api_errors import ConflictError, Right, find_refusal_remedy, make_rule
from .job_records import Object
from .spec import K8sReach

T = TypeVar("T")
COLUMNS: Final = (
    *("cluster", "reached", "version", "namespace", "rights", "exec", "objects", "quota", "secrets"),
    *("security", "network"),
)
DROPPED: Final = ("security", "secrets", "version", "quota", "network", "objects")
OLDEST: Final = (1, 28)
MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}  # by their names in labels of nodes
WHEELS: Final[Mapping[str, Level]] = {"no wheel": "problem", "few wheels": "warning"}
LEVEL_LABEL: Final = "pod-security.kubernetes.io/enforce"

CLUSTER_FINDING_KINDS: Final[Mapping[str, FindingKind]] = {
    "not reached": FindingKind("reached", "problem",
        "get a kubeconfig from the cluster's administrator or provider (--kubeconfig, KUBECONFIG), or check "
        "its server, your login, and the network to it (VPN, proxy), or give another --context",
        codes.HOST),
    "old server": FindingKind("version", "warning",
        "the manifests use fields of Kubernetes 1.28: --validate shows if this server knows them"),
    "no namespace": FindingKind("namespace", "problem",
        "give a --namespace that is there, or let an administrator make it", codes.USAGE),
    "ending namespace": FindingKind("namespace", "problem",
        "give another --namespace: this one is being deleted with all in it"),
    "no right": FindingKind("rights", "problem",
        "let the namespace's administrator add to your Role: RULE; templates/k8s/role.yaml has all",
        codes.RIGHTS),
    "no exec": FindingKind("exec", "problem",
        "let the namespace's administrator add to your Role: RULE; --detach runs a job without it",
        codes.RIGHTS),
    "no transfer": FindingKind("exec", "problem",
        "let the namespace's administrator add to your Role: RULE; without it, --detach runs a job whose "
        "package is smaller (.pslaunchignore), or is in the image or a claim (--job_workspace, --pvc)",
        codes.RIGHTS),
    "no line": FindingKind("exec", "warning",
        "let the namespace's administrator add to your Role: RULE; without it, status, logs and fetch "
        "don't reach the job"),
    "no look": FindingKind("rights", "warning",
        "nothing for the job, since only this check and --validate need it; RULE"),
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


class ObjectVerdict(NamedTuple):
    """The server's answer for one object."""

    shown: str  # kind and name
    error: PslaunchError | None = None
    left_out: str = ""  # why it was not asked
    made: Object | None = None  # as the server would have it

    def make_data(self) -> dict[str, str | None]:
        answer = "refused" if self.error else "not asked" if self.left_out else "accepted"
        return {"object": self.shown, "answer": answer, "text": str(self.error or self.left_out) or None}


class Needs(NamedTuple):
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
    version: str = ""  # "" if it is not reached
    missing: tuple[Right, ...] = ()
    there: bool | None = None  # the namespace
    phase: str = ""
    labels: Mapping[str, str] | None = None  # of the namespace
    quotas: Sequence[Object] | None = None
    policies: Sequence[Object] | None = None
    secrets: Mapping[str, bool | None] = {}
    verdicts: Sequence[ObjectVerdict] = ()  # on the job's objects, and on a pod of each Job


def check_cluster(line: CommandLine, spec: JobSpec) -> int:
    """Check the cluster for a job, report the findings, and return the exit code."""
    reach: K8sReach = spec.site.reach
    plan = make_plan(spec, spec.draft.name)
    package = manifests.pack_package(plan, line.environ)
    brings = plan.package is not None and not package
    objects = manifests.make_objects(plan, reach, package)
    needs = Needs(objects, attached=not spec.detach, brings=brings)
    try:
        with contextlib.closing(open_cluster(reach.access, line.environ)) as cluster:
            seen = examine(cluster, needs)
            findings = [*judge_cluster(seen, needs), *judge_processors(cluster, reach, plan)]
    except ClusterError as e:
        seen = ClusterSeen(e.server, reach.access.namespace or "?")
        findings = [_find("not reached", e.cause)]
    except NONSENSE as e:
        raise ClusterError(
            "", f"the cluster's answers can't be right: {e!r}", "give another --context"
        ) from e
    table = make_table(seen, findings, len(list_rights(needs)))
    return report(table, findings, [make_data(seen, findings)], line.out, as_json=line.as_json)


def list_rights(needs: Needs) -> list[Right]:
    has_policy = any(thing["kind"] == "NetworkPolicy" for thing in needs.objects)
    return [*JOB, *EXEC, *LOOK, *(POLICY if has_policy else ())]


def examine(cluster: Cluster, needs: Needs) -> ClusterSeen:
    """Return the observations of this user. Raises ClusterError."""
    here, rights = cluster.namespace, list_rights(needs)
    version = cluster.get("read its version", "/version")["gitVersion"]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        has = list(pool.map(cluster.has_right, rights))
    seen = ClusterSeen(
        cluster.place.server,
        here,
        version=str(version),
        missing=tuple(right for right, given in zip(rights, has, strict=True) if not given),
        quotas=_look(partial(cluster.list_objects, "ResourceQuota")),
        policies=_look(partial(cluster.list_objects, "NetworkPolicy")),
        secrets={name: _look(partial(cluster.has_object, "Secret", name)) for name in needs.name_secrets()},
    )
    try:
        found = _look(partial(cluster.get, f"get namespace {here}", f"/api/v1/namespaces/{here}"))
    except SpecError:  # it does not exist
        return seen._replace(there=False)
    if found:
        phase, labels = found["status"]["phase"], found["metadata"].get("labels", {})
        seen = seen._replace(there=True, phase=phase, labels=labels)
    if seen.phase == "Terminating":
        return seen
    allowed = [thing for thing in needs.objects if find_right(thing) not in seen.missing]
    return seen._replace(verdicts=[*ask_verdicts(cluster, allowed)])


def judge_processors(cluster: Cluster, reach: K8sReach, plan: Plan) -> list[Finding]:
    """Compare the wheels that the job brings with the nodes' processors. Raises ClusterError."""
    if reach.has_pslaunch or plan.server != "bundled":
        return []
    wheels = [Path(path).name for path in reach.wheels] or [make_wheel_name()]
    return judge_wheels(cluster.list_processors(reach.node_selector), wheels)


def refuse_processors(cluster: Cluster, reach: K8sReach, plan: Plan, tell: Tell) -> None:
    """Raise PreflightError if no node takes a wheel of the job, report if only some do."""
    for found in judge_processors(cluster, reach, plan):
        tell(News(text := f"{found.text}; {found.advice}"))
        if found.level == "problem":
            raise PreflightError(text)


def _look(ask: Callable[[], T]) -> T | None:
    """Return an answer; None without the right to it."""
    with contextlib.suppress(RightsError):
        return ask()
    return None


def validate(line: CommandLine, spec: JobSpec) -> int:
    """Print the verdict on each object; return 0, or the code of the first refusal. Raises ClusterError."""
    code, reach, plan = codes.OK, spec.site.reach, make_plan(spec, spec.site.job_id)
    with contextlib.closing(open_cluster(reach.access, line.environ)) as cluster:
        objects = manifests.make_objects(plan, reach, manifests.pack_package(plan, line.environ))
        for verdict in ask_verdicts(cluster, objects):
            data = verdict.make_data()
            text = ": ".join(filter(None, data.values()))
            shown = json.dumps(data) if line.as_json else clean(text, line.out.encoding or "utf-8")
            print(shown, file=line.out, flush=True)
            code = code or (verdict.error.exit_code if verdict.error else codes.OK)
    return code


def ask_verdicts(cluster: Cluster, objects: Sequence[Object]) -> Iterator[ObjectVerdict]:
    """Return the verdict on each object, and on a pod of each Job where the user may ask for it."""
    for thing in objects:
        yield _ask_one(cluster, thing)
    for pod in (make_pod(thing) for thing in objects if thing["kind"] == "Job"):
        if cluster.has_right(right := find_right(pod)):
            yield _ask_one(cluster, pod)
        else:
            yield ObjectVerdict(name_object(pod), left_out=f"you have no right to {right}")


def _ask_one(cluster: Cluster, thing: Object) -> ObjectVerdict:
    name = name_object(thing)
    try:
        return ObjectVerdict(name, made=cluster.create(thing, dry_run=True))
    except ClusterError:
        raise
    except ConflictError:
        return ObjectVerdict(name)  # other jobs share it
    except PslaunchError as e:
        if "does not support dry run" in str(e):  # a webhook, which may well accept it
            return ObjectVerdict(name, left_out=str(e))
        return ObjectVerdict(name, e)


# --- Judgement. Pure. ---


def _find(kind: str, text: str) -> Finding:
    return Finding(kind, text, *CLUSTER_FINDING_KINDS[kind])


def judge_cluster(seen: ClusterSeen, needs: Needs) -> list[Finding]:
    return [
        *_judge_server(seen),
        *_judge_rights(seen.missing, needs),
        *(_judge_refusal(str(verdict.error)) for verdict in seen.verdicts if verdict.error),
        *_judge_quotas(seen, needs),
        *(
            _find("no secret", f"secret {name} does not exist in {seen.namespace}")
            for name, there in seen.secrets.items()
            if there is False
        ),
        *_judge_policies(seen, needs),
    ]


def _judge_server(seen: ClusterSeen) -> Iterator[Finding]:
    numbers = seen.version.lstrip("v").split(".")[:2]
    if all(map(str.isdigit, numbers)) and tuple(map(int, numbers)) < OLDEST:
        yield _find("old server", f"it has {seen.version}")
    if seen.there is False:
        yield _find("no namespace", f"namespace {seen.namespace} does not exist")
    if seen.phase == "Terminating":
        yield _find("ending namespace", f"namespace {seen.namespace} is being deleted")


def _judge_rights(missing: Sequence[Right], needs: Needs) -> Iterator[Finding]:
    kinds = {
        **dict.fromkeys(EXEC, "no transfer" if needs.brings else "no exec" if needs.attached else "no line"),
        **dict.fromkeys(LOOK, "no look"),
    }
    found: dict[tuple[str, str, str], list[Right]] = {}
    for right in missing:
        found.setdefault((kinds.get(right, "no right"), right.group, right.resource), []).append(right)
    for (kind, _, resource), rights in found.items():
        one = _find(kind, f"no right to {', '.join(right.verb for right in rights)} {resource}")
        yield one._replace(advice=one.advice.replace("RULE", make_rule(rights)))


def _judge_refusal(text: str) -> Finding:
    remedy = find_refusal_remedy(text)
    one = _find("refused", text.removesuffix(f"; {remedy}"))
    return one._replace(advice=remedy or one.advice)


def judge_wheels(processors: Sequence[str], wheels: Sequence[str]) -> list[Finding]:
    """Compare wheels, of which each pod needs one, with the nodes' processors; without those, with any."""
    machines = {name: MACHINES.get(name, name) for name in processors} or {"any": r"\w+"}
    lacks = [name for name, machine in machines.items() if not any(is_wheel_for(w, machine) for w in wheels)]
    kind = "no wheel" if len(lacks) == len(machines) else "few wheels"
    text = f"no wheel is for Linux on {', '.join(lacks)} (kubernetes.io/arch)"
    return [_find(kind, text)] if lacks else []


def _judge_quotas(seen: ClusterSeen, needs: Needs) -> Iterator[Finding]:
    """Compare quotas with the sum over all objects: the server judges each by itself."""
    wanted = add_up(needs.objects, {v.shown: v.made for v in seen.verdicts if v.made})
    for quota in seen.quotas or ():
        name, used = quota["metadata"]["name"], quota.get("status", {}).get("used", {})
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            continue
        for resource, most in quota["spec"].get("hard", {}).items():
            more, there = wanted.get(resource.removeprefix("count/"), Decimal()), used.get(resource, 0)
            if more and _parse(there) + more > _parse(most):
                text = f"{there} of {most} in use, and the job needs {more.normalize():f}"
                yield _find("quota", f"{name}: {resource}: {text}")


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


def _judge_policies(seen: ClusterSeen, needs: Needs) -> Iterator[Finding]:
    labels = [template["metadata"]["labels"] for template in needs.list_templates()]
    lets_in = any(thing["kind"] == "NetworkPolicy" for thing in needs.objects)
    names = [
        policy["metadata"]["name"]
        for policy in seen.policies or ()
        if not lets_in or "Egress" in policy["spec"].get("policyTypes", ())
        if any(_selects(policy["spec"].get("podSelector") or {}, of) for of in labels)
    ]
    if names:
        yield _find("policies", f"NetworkPolicy {', '.join(names)}: applies to the job's pods")


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    exact = [(name, "In", (value,)) for name, value in (selector.get("matchLabels") or {}).items()]
    others = selector.get("matchExpressions") or ()
    for name, operator, values in [*exact, *((e["key"], e["operator"], e.get("values")) for e in others)]:
        value = labels.get(name)
        is_in, is_there = value in (values or ()), value is not None
        fits = {"In": is_in, "NotIn": not is_in, "Exists": is_there, "DoesNotExist": not is_there}
        if not fits.get(operator, True):
            return False
    return True


def make_table(seen: ClusterSeen, findings: Sequence[Finding], asked: int) -> Table:
    """Return the table, of one row. asked: the number of rights."""
    cells = {"cluster": seen.server, "namespace": seen.namespace, "reached": "yes" if seen.version else "no"}
    if seen.version:
        cells |= {
            "version": seen.version,
            "rights": f"{asked - len(seen.missing)} of {asked}",
            "exec": "no" if set(seen.missing) & set(EXEC) else "ok",
            "objects": _show([None if v.left_out else not v.error for v in seen.verdicts], "refused"),
            "quota": _show_names(seen.quotas),
            "secrets": _show([*seen.secrets.values()], "missing", "none needed"),
            "security": UNKNOWN_CELL if seen.labels is None else seen.labels.get(LEVEL_LABEL, "none"),
            "network": _show_names(seen.policies),
        }
    return Table(COLUMNS, DROPPED, [make_row(COLUMNS, cells, findings)])


def _show(found: Sequence[bool | None], bad: str, none: str = UNKNOWN_CELL) -> str:
    """Return the cell for all of them; None: not known."""
    if None in found:
        return UNKNOWN_CELL
    return ("ok" if all(found) else bad) if found else none


def _show_names(found: Sequence[Object] | None) -> str:
    if found is None:
        return UNKNOWN_CELL
    return ", ".join(one["metadata"]["name"] for one in found) or "none"


def make_data(seen: ClusterSeen, findings: Sequence[Finding]) -> dict[str, Any]:
    facts = {**seen._asdict(), "missing": [right._asdict() for right in seen.missing]}
    facts["verdicts"] = [v.make_data() for v in seen.verdicts]
    return {
        "cluster": facts.pop("server"),
        "namespace": facts.pop("namespace"),
        "ok": all(f.level != "problem" for f in findings),
        "facts": facts,
        "findings": make_finding_data(findings),
    }
