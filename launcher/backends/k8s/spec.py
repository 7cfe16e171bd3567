"""The job of `pslaunch k8s` from its options: pods, their image and resources, the package in ConfigMaps.

Rejected values raise SpecError with option, place and value. No cluster is asked.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from pslaunch.runtime.shared.env import PSERVER, TRAINER

from ...errors import SpecError
from ...node.job import FIRST_PORT, Count, Node
from ...options.detect import choose_server
from ...options.kinds import Value, refuse_unprintable
from ...options.locate import check_folder_to_make, choose_job_name, find_wheel, read_package
from ...options.sources import Given
from ...options.spec import (
    Elsewhere,
    JobSpec,
    Site,
    check_spec,
    count_gpus,
    read_common_options,
    read_draft,
    read_fields,
    refuse_without_effect,
)
from ..face import CommandLine
from .options import K8S_DEFAULTS

FOLDER: Final = "/pslaunch"  # in a pod: what node/beginning.py names
ROOT: Final = "/workspace"  # of all workspaces in a pod
HOME: Final = "/home/pslaunch"
OWN_FOLDERS: Final = (FOLDER, ROOT, HOME, "/tmp", "/dev", "/proc", "/sys", "/etc")
LOST_ADVICE: Final = "`kubectl describe pod` may say why; what ran there ends with its pod"
LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
JOB_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
NUMBER: Final = r"(?=.*[1-9])[0-9]{1,15}(\.[0-9]{1,3})?"
_DOMAIN: Final = rf"(?=.{{1,253}}(?:[/=:]|$)){LABEL}(\.{LABEL})*"
_WORD: Final = r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_NAME: Final = rf"({_DOMAIN}/)?{_WORD}"  # of a label
# Near misses: what is written, and what is meant.
_COMMAS: Final = (",(?=[0-9]{3}(?![0-9]))", ""), (",", ".")
_NEARLY_MEMORY: Final = (
    (r"(?i)\s|b$|bytes$", ""),
    *_COMMAS,
    (r"(?<=[0-9])(?:[mgtpeK]|[A-Za-z][iI])$", lambda unit: f"{unit[0][0].upper()}i"),
    (r"^[0-9]{1,2}$", r"\g<0>Gi"),
    (r"^[0-9]{3,6}$", r"\g<0>Mi"),
)
MAX_NAME: Final = 63  # of a label, a host name or a service
RUN_DIGITS: Final = 6  # that make a name unique
# Without effect where no launcher follows the job.
OF_LAUNCHER: Final = (
    "kubeconfig", "context", "detach", "lease", "fetch_output", "fetch_logs", "log_to", "dry_run",
    "validate", "json",
)  # fmt: skip
ATTACHED_LINGER_S: Final = 120.0
DETACHED_LINGER_S: Final = 600.0
POD_SUFFIX: Final = "-12345"  # as the cluster gives one to each pod


class Form(NamedTuple):
    """Form of a text, its words in messages, and near misses."""

    pattern: str
    words: str
    nearly: Sequence[tuple[str, str | Callable[[re.Match[str]], str]]] = ()

    def read(self, value: Value | None) -> str:
        """Return a text of this form; "" if it is not given. Raises SpecError."""
        if value is None or re.fullmatch(self.pattern, value.text):
            return value.text if value else ""
        near = value.text
        for written, meant in self.nearly:
            near = re.sub(written, meant, near)
        hint = f"; did you mean {near}?" if re.fullmatch(self.pattern, near) else ""
        raise SpecError(f"{value.shown}: expected {self.words}{hint}")


_CPU: Final = Form(
    rf"{NUMBER}|(?=.*[1-9])[0-9]{{1,15}}m",
    "a number above 0, such as 2, 0.5 or 500m",
    ((r"(?i)\s|cores?$|cpus?$", ""), *_COMMAS),
)
_MEMORY: Final = Form(
    rf"{NUMBER}(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)|0*[1-9][0-9]{{6,14}}",
    "a number above 0 with its unit, such as 4Gi or 500M",
    _NEARLY_MEMORY,
)
_OBJECT: Final = Form(_DOMAIN, "the name of an object: small letters, digits, dashes, dots")
_NAMESPACE: Final = Form(LABEL, "at most 63 small letters, digits and dashes")
_IMAGE: Final = Form("[!-~]{1,500}", "the name of an image, such as registry.example/team/image:1")
_LABEL_OF_NODES: Final = Form(rf"{_NAME}=({_WORD})?", "a label of nodes: NAME=VALUE")
FORMS: Final = {
    **dict.fromkeys(("cpu", "server_cpu"), _CPU),
    **dict.fromkeys(("memory", "server_memory"), _MEMORY),
    **dict.fromkeys(("image_pull_secret", "service_account"), _OBJECT),
    "queue": _NAMESPACE,
}


class Access(NamedTuple):
    """The cluster, its user and its namespace; "" is the default of the kubeconfig, or of this pod."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""


class K8sReach(NamedTuple):
    name: str  # of its objects
    image: str
    cpu: str = ""
    memory: str = ""
    gpus: int = 0
    server_pods: int = 0  # of pservers, in a Job of their own (--separate)
    server_cpu: str = ""  # "": as the others
    server_memory: str = ""
    node_selector: Mapping[str, str] = {}
    claims: tuple[tuple[str, str], ...] = ()  # names of volume claims, and their paths in the pods
    image_pull_secret: str = ""
    service_account: str = ""
    queue: str = ""  # of Kueue
    network_policy: bool = False
    patch: str = ""  # path of a file
    ttl_s: float = K8S_DEFAULTS["ttl"]
    deadline_s: float | None = None
    wait_timeout_s: float = K8S_DEFAULTS["wait_timeout"]
    agent_python: str | None = None  # path of the agents' Python; None: search
    access: Access = Access()
    lease_s: float = 0.0  # after which the job ends without a launcher; 0: it needs none
    linger_s: float = 0.0  # after the end, for its files to be fetched
    shares: bool = False  # the ConfigMaps of pslaunch's program with other jobs in the namespace
    has_pslaunch: bool = False  # in the image
    wheels: tuple[str, ...] = ()  # paths; none: made from this pslaunch


def make_k8s_spec(line: CommandLine, run: str = "") -> JobSpec:
    """Return the job of `pslaunch k8s`. Raises SpecError.

    run: RUN_DIGITS for the end of the name, which make it unique, of a job with a launcher; without them
    equal jobs have equal names.
    """
    given, split, cwd, environ = line.given, line.split, line.cwd, line.environ
    draft, options = read_draft("k8s", given, environ), read_common_options(given, split, environ)
    draft = draft._replace(wants=draft.wants._replace(gpus=None), lost_advice=LOST_ADVICE)
    _check_workspace(given)
    package, workspace, program = read_package(given, split, cwd)
    made = check_folder_to_make(given.get("output_dir"), cwd)
    if package and made and workspace in made.parents:
        package = package._replace(skip=(str(made.relative_to(workspace)),))
    kind, _ = choose_server(options["server"], options["server_num"], workspace, program)
    pods, servers = _count_pods(given, served=kind != "none")
    name = _choose_object_name(given, workspace, pods, servers) + (f"-{run}" if run else "")
    detach = not run or given.is_set("detach")
    refuse_unprintable(program, given.read("python"), given.read("agent_python"))
    reach = _read_reach(line, name, pods, servers)
    reach = reach._replace(
        lease_s=0.0 if detach else given.read("lease"),
        linger_s=_choose_linger_s(given, reach, detach=detach) if run else given.read("linger") or 0.0,
        shares=bool(run),
    )
    fetches = not detach and reach.linger_s > 0
    spec = JobSpec(
        draft=draft._replace(name=name, port=draft.port or FIRST_PORT),  # a pod has all of its own
        workspace=workspace,
        site=Site(
            tuple(make_nodes(name, pods, servers, str(workspace) if package is None else "")),
            Count("per_node", 1),
            package=package,
            reach=reach,
            job_id=name,
        ),
        program=program,
        python=given.read("python"),
        **{**options, "head": "node", "detach": detach},
        **(_read_places(given, workspace if package else cwd, cwd) if fetches else {}),
    )
    check_spec(spec, given)
    _check_save_dir(spec)
    if run:
        refuse_without_effect(given, "output_dir", "where the job is started")
    for name in () if run else OF_LAUNCHER:
        refuse_without_effect(given, name, "on manifests; no cluster is asked for them")
    return spec


def _choose_linger_s(given: Given, reach: K8sReach, *, detach: bool) -> float:
    """Return the time for which pods wait for a fetch of their files."""
    if "linger" in given:
        return float(given.read("linger"))
    if not detach:
        return ATTACHED_LINGER_S
    return 0.0 if reach.claims else DETACHED_LINGER_S


def _read_places(given: Given, here: Path, cwd: Path) -> dict[str, Any]:
    """Return the folders for results: those of a job in the folder `here` unless others are given."""
    defaults = {"fetch_output": here / "output", "fetch_logs": here / "log"}
    return {name: check_folder_to_make(given.get(name), cwd) or folder for name, folder in defaults.items()}


def _read_reach(line: CommandLine, name: str, pods: int, servers: int) -> K8sReach:
    given, patch = line.given, line.given.get("patch")
    gpus = count_gpus(given, -(-(given.read("worker_num") or pods) // pods))
    if not gpus:
        refuse_without_effect(given, "use_gpu", "in pods without a GPU; --gpus=1 asks for one")
    texts: dict[str, Any] = {option: form.read(given.get(option)) for option, form in FORMS.items()}
    return K8sReach(
        name=name,
        image=_read_image(given, line.environ),
        gpus=gpus,
        server_pods=servers,
        node_selector=read_selector(given),
        claims=read_claims(given),
        patch=str(line.cwd / patch.text) if patch else "",
        agent_python=given.read("agent_python"),
        access=_read_access(given),
        has_pslaunch=given.is_set("image_has_pslaunch"),
        wheels=tuple(str(find_wheel(value, line.cwd)) for value in given.get_all("wheel")),
        **texts,
        **read_fields(given, K8sReach._fields),
    )


def _check_workspace(given: Given) -> None:
    """Raise SpecError for a folder that pods can't have in their image or a claim."""
    value = given.get("job_workspace")
    if value is None:
        return
    path = posixpath.normpath(value.text)
    if not path.startswith("/") or path == "/" or not path.isprintable():
        raise SpecError(f"{value.shown}: expected the absolute path of a folder in the image or in a claim")
    if taken := next((own for own in OWN_FOLDERS if PurePosixPath(path).is_relative_to(own)), ""):
        raise SpecError(f"{value.shown}: {taken} in the pods is not the image's; choose another folder of it")


def _check_save_dir(spec: JobSpec) -> None:
    """Raise SpecError for a folder that loses the model."""
    reach: K8sReach = spec.site.reach
    save_dir = spec.draft.flags.get("save_dir")
    folder = PurePosixPath(posixpath.normpath(posixpath.join(spec.site.nodes[0].workspace, save_dir or ROOT)))
    kept = (ROOT, *(path for _, path in reach.claims))
    if not any(map(folder.is_relative_to, kept)):
        raise SpecError(
            f"--save_dir={save_dir}: {folder} is read-only in the pods, or lost with them; "
            f"give --pvc=NAME:{folder}, or a folder of a claim"
        )


def _read_access(given: Given) -> Access:
    """Return the cluster to ask. Raises SpecError for names that no cluster can have."""
    context, kubeconfig = given.get("context"), given.get("kubeconfig")
    return Access(
        str(Path(kubeconfig.text).expanduser()) if kubeconfig else "",
        context.text if context else "",
        _NAMESPACE.read(given.get("namespace")),
    )


def find_cluster(given: Mapping[str, str], _cwd: Path) -> Elsewhere:
    """Return the cluster to ask for jobs, by values of options that choose it. Raises SpecError."""
    values = {name: [Value(text, f"--{name}")] for name, text in given.items()}
    access = _read_access(Given({}, values))
    shown = " of ".join(f"{name} {text}" for name, text in given.items())
    return Elsewhere("k8s", K8sReach("", "", access=access), shown)


def _count_pods(given: Given, *, served: bool) -> tuple[int, int]:
    """Return the number of trainers' pods, which have the pservers too, and of pods with a pserver alone."""
    servers, trainers = given.read("server_num"), given.read("worker_num")
    if not given.is_set("separate"):
        return int(given.read("nodes") or max(servers or 1, trainers or 1)), 0
    return trainers or 1, int(served) if servers is None else servers


def make_nodes(name: str, pods: int, servers: int, workspace: str) -> list[Node]:
    """Return the nodes: trainers' pods first, so that node 0 has trainer 0. workspace: "" if it is sent."""
    roles = ((TRAINER,), (PSERVER,)) if servers else ((PSERVER, TRAINER), ())
    nodes = [Node(i, f"{name}-{i}", "", roles=roles[0]) for i in range(pods)]
    nodes += [Node(pods + i, f"{name_servers(name)}-{i}", "", roles=roles[1]) for i in range(servers)]
    placed = [node.place_in(f"{ROOT}/{name}")._replace(dispatched=not workspace) for node in nodes]
    return [node._replace(workspace=workspace or node.workspace) for node in placed]


def name_servers(name: str) -> str:
    """Return the name of the pservers' Job (--separate)."""
    return f"{name}-server"


def _choose_object_name(given: Given, workspace: Path, pods: int, servers: int) -> str:
    """Return the name of the job's objects: the given one, or the folder's in allowed characters."""
    last = f"{name_servers('')}-{servers}" if servers else f"-{pods - 1}"
    most = MAX_NAME - len(f"{last}{POD_SUFFIX}") - len("-") - RUN_DIGITS
    value = given.get("job_name")
    name = choose_job_name(given, workspace)
    safe = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    safe = (safe if JOB_NAME.fullmatch(safe) else f"job-{safe}")[:most].strip("-")
    if value is None:
        return safe
    if not JOB_NAME.fullmatch(name):
        raise SpecError(
            f"{value.shown}: expected small letters, digits and dashes, first a letter; did you mean {safe}?"
        )
    if len(name) > most:
        raise SpecError(
            f"{value.shown} has {len(name)} characters; Kubernetes adds the number of each pod, "
            f"so at most {most} fit"
        )
    return name


def _read_image(given: Given, environ: Mapping[str, str]) -> str:
    value = given.get("image") or Value(environ.get("PSLAUNCH_IMAGE", ""), "PSLAUNCH_IMAGE")
    if not value.text:
        from importlib.resources import files

        folder = files("pslaunch.templates") / "k8s"
        raise SpecError(
            f"no image: give --image=NAME, [k8s].image in pslaunch.toml, or PSLAUNCH_IMAGE. "
            f"Any with Python 3.9 or later will do; {folder}/Dockerfile makes one for the bundled runtime"
        )
    return _IMAGE.read(value)


def read_claims(given: Given) -> tuple[tuple[str, str], ...]:
    """Return names of volume claims, and their paths in the pods."""
    found: list[tuple[str, str]] = []
    for value in given.get_all("pvc"):
        name, _, path = value.text.partition(":")
        if not re.fullmatch(_DOMAIN, name) or not re.fullmatch(r"/[^:]+", path) or not path.isprintable():
            raise SpecError(f"{value.shown}: expected NAME:PATH with an absolute path")
        place = PurePosixPath(path := posixpath.normpath(path))
        used = map(PurePosixPath, (*OWN_FOLDERS, *(p for _, p in found)))
        if taken := next((t for t in used if place.is_relative_to(t) or t.is_relative_to(place)), None):
            raise SpecError(f"{value.shown}: {taken} in the pods is in use already; choose another path")
        found.append((name, path))
    return tuple(found)


def read_selector(given: Given) -> dict[str, str]:
    """Return the labels that the cluster's nodes must have."""
    found: dict[str, str] = {}
    for value in given.get_all("node_selector"):
        name, _, text = value.text.partition("=")
        _LABEL_OF_NODES.read(value)
        if name in found:
            raise SpecError(f"{value.shown}: {name} is given twice")
        found[name] = text
    return found
