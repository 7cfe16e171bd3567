"""A cluster's Kubernetes API: its configuration, calls with time limits, errors in words, further tries."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

from pslaunch.runtime.shared.env import find_near

from ...errors import ClusterError, PslaunchError, RightsError, SpecError
from ...node.shapes import check_shape
from . import api_errors
from .job_records import SHAPES, Object
from .spec import Access

CONNECT_S: Final = 3.0
FIRST_S: Final = 6.0  # for the first answer, before anything is made
ANSWER_S: Final = 35.0  # for each part of another: a webhook may take 30 s
KIND_VERSIONS: Final = {"Job": "batch/v1", "NetworkPolicy": "networking.k8s.io/v1"}  # of kinds; v1 of others
RIGHTS_PATH: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
POLL_S: Final = 0.2
WATCH_S: Final = 1  # which nothing interrupts
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024  # 4096 pods have 40 MB
WITH_UID: Final = {"metadata": {"uid": str}}
AT_ONCE: Final = 8  # calls at the same time
AWAY: Final = (ClusterError, RightsError)  # for its first second an API server knows no rights
INVALID: Final = (ValueError, TypeError, LookupError, AttributeError)  # in a kubeconfig
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # in a pod that has one

ARCH: Final = "kubernetes.io/arch"  # label of nodes
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
MERGE: Final = "application/strategic-merge-patch+json"

T = TypeVar("T")


def _list_rights(resource: str, *verbs: str, group: str = "") -> tuple[api_errors.Right, ...]:
    return tuple(api_errors.Right(verb, resource, group) for verb in verbs)


# Rights in a namespace. templates/k8s/role.yaml gives them, as a test checks, and those of kubectl for the
# steps of docs/kubernetes.md. Of a job's objects and pods:
JOB: Final = (
    *_list_rights("jobs", "create", "list", "patch", "delete", group="batch"),
    *_list_rights("services", "create", "list", "delete"),
    *_list_rights("configmaps", "create", "list", "patch", "delete"),
    *_list_rights("secrets", "create", "delete"),
    *_list_rights("pods", "list", "watch", "delete"),
    *_list_rights("events", "list"),
)
# The line to a running job. The library asks for it by GET; later servers want to see `create` too.
EXEC: Final = _list_rights("pods/exec", "get", "create")
# For `pslaunch check` in addition, which asks for the verdict on a pod by a dry run, as `--validate` does.
LOOK: Final = (
    *_list_rights("namespaces", "get"),
    *_list_rights("pods", "create"),
    *_list_rights("resourcequotas", "list"),
    *_list_rights("networkpolicies", "list", group="networking.k8s.io"),
)
# For `--network_policy` in addition.
POLICY: Final = _list_rights("networkpolicies", "create", "delete", group="networking.k8s.io")


class Cluster:
    """The API of a cluster as one user, in one namespace. Its calls may come from several threads."""

    def __init__(self, api: Any, place: api_errors.Place, access: Access, logged: str = "") -> None:
        """Take over a client of the library.

        access: with the names of context and namespace. logged: errors that the library has only logged.
        """
        from kubernetes.dynamic import DynamicClient  # those of known kinds import for half a second

        self.api, self.place, self.access, self.namespace = api, place, access, place.namespace
        self._client = DynamicClient(api, discoverer=lambda _client, _cache: None)  # paths are known
        self._logged = logged
        self._versions: dict[str, str] = {}  # of the latest lists, by kind
        pool = api.rest_client.pool_manager
        pool.request = functools.partial(_read_bounded, pool.request)  # for answers that are errors, too

    @contextlib.contextmanager
    def translate(self, doing: str) -> Iterator[None]:
        """Raise errors of the library inside as PslaunchErrors. doing: in the infinitive, as "list Jobs"."""
        from kubernetes.client import ApiException
        from kubernetes.config import ConfigException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as e:
            message = _read_message(e)
            if e.status and not (self._logged and e.status in (401, 403)):
                raise api_errors.explain_answer(doing, e.status, message, self.place) from e
            if e.status or self._logged:
                raise api_errors.explain_credentials(self._logged or message, self.place) from e
            raise api_errors.explain_connection(message, self.place) from e  # of TLS
        except ConfigException as e:  # of credentials that are renewed during a call
            raise api_errors.explain_credentials(str(e), self.place) from e
        except (HTTPError, OSError) as e:
            raise api_errors.explain_connection(str(e), self.place) from e

    def locate(self, kind: str, name: str = "") -> str:
        """Return the path of all objects of a kind in the namespace, or of one."""
        version = KIND_VERSIONS.get(kind, "v1")
        root = f"apis/{version}" if "/" in version else f"api/{version}"
        return f"/{root}/namespaces/{self.namespace}/{make_plural(kind).lower()}{name and '/'}{name}"

    def request(self, doing: str, method: str, path: str, body: Any = None, **params: Any) -> Any:
        """Return an answer with `data` and `headers`, within a time limit. Raises PslaunchError.

        params: as the library's `DynamicClient.request` takes them.
        """
        limits = {"_request_timeout": (CONNECT_S, ANSWER_S), **params}
        with self.translate(doing):
            return self._client.request(method, path, body, serialize=False, **limits)

    def parse(self, doing: str, answer: Any, shape: Any) -> Any:
        """Return the data of an answer. Raises ClusterError if it has another shape."""
        try:
            found = json.loads(answer.data)
            check_shape(found, shape, "the answer")
            return found
        except (ValueError, OverflowError, RecursionError) as e:
            cause, remedy = f"it can't {doing}: {e}", f"check the server in {self.place.source}"
            raise ClusterError(self.place.server, cause, remedy) from None

    def get(self, doing: str, path: str, shape: Any = dict, **params: Any) -> Any:
        """Return what is at a path. Raises PslaunchError."""
        return self.parse(doing, self.request(doing, "get", path, **params), shape)

    def list_objects(self, kind: str, **selectors: str) -> list[Object]:
        """Return the objects of a kind that fit, by `label_selector` and such. Raises PslaunchError."""
        shape = {"metadata": {"resourceVersion": str}, "items": [SHAPES.get(kind, dict)]}
        answer = self.get(f"list {make_plural(kind)}", self.locate(kind), shape, **selectors)
        self._versions[kind] = answer["metadata"]["resourceVersion"]
        found: list[Object] = answer["items"]
        return found

    def await_change(self, kind: str, **selectors: str) -> None:
        """Wait for a change since the latest list of a kind, at most WATCH_S. Raises PslaunchError."""
        if version := self._versions.get(kind):
            watch = {"watch": "true", "resource_version": version, "timeout_seconds": WATCH_S, **selectors}
            self.request("watch", "get", self.locate(kind), _request_timeout=(CONNECT_S, FIRST_S), **watch)

    def create(self, thing: Object, *, dry_run: bool = False) -> Object:
        """Create an object and return it as the server has it. Raises PslaunchError.

        A field that the server does not know is an error; by default it would leave it out and say nothing.
        """
        doing = f"create {thing['kind']} {thing['metadata']['name']}"
        params = [("fieldValidation", "Strict"), *([("dryRun", "All")] if dry_run else [])]
        answer = self.request(doing, "post", self.locate(thing["kind"]), thing, query_params=params)
        made: Object = self.parse(doing, answer, WITH_UID)
        return made

    def patch(self, kind: str, name: str, change: Mapping[str, Any]) -> Any:
        """Change an object by a strategic merge patch; return the answer. Raises PslaunchError."""
        path = self.locate(kind, name)
        return self.request(f"change {kind} {name}", "patch", path, change, content_type=MERGE)

    def share(self, thing: Object) -> Object:
        """Create an object that others use too, or add its owners to that of others. Raises PslaunchError."""
        try:
            return self.create(thing)
        except api_errors.ConflictError:
            owned = {"metadata": {"ownerReferences": thing["metadata"]["ownerReferences"]}}
        try:
            self.patch(thing["kind"], thing["metadata"]["name"], owned)
            return thing
        except api_errors.AbsentError:  # its last owner has gone, and it with that
            return self.share(thing)

    def delete(self, thing: Mapping[str, Any], **options: Any) -> None:
        """Delete an object and all that it owns; it may be gone already. Raises PslaunchError."""
        kind, name = thing["kind"], thing["metadata"]["name"]
        whole = {"propagationPolicy": "Background", **options}
        with contextlib.suppress(api_errors.AbsentError):
            self.request(f"delete {kind} {name}", "delete", self.locate(kind, name), whole)

    def read_metadata(self, kind: str, name: str) -> Any:
        """Return an object without its contents. Raises PslaunchError."""
        return self.get(
            f"get {kind} {name}", self.locate(kind, name), WITH_UID, header_params={"Accept": METADATA}
        )

    def has_object(self, kind: str, name: str) -> bool:
        """Return True if an object exists. Raises PslaunchError."""
        with contextlib.suppress(api_errors.AbsentError):
            return bool(self.read_metadata(kind, name))
        return False

    def has_right(self, right: api_errors.Right) -> bool:
        """Ask for a right of this user in the namespace. Raises PslaunchError."""
        resource, _, part = right.resource.partition("/")
        asked = {**right._asdict(), "namespace": self.namespace, "resource": resource, "subresource": part}
        review, limit = {"spec": {"resourceAttributes": asked}}, (CONNECT_S, FIRST_S)
        answer = self.request("review rights", "post", RIGHTS_PATH, review, _request_timeout=limit)
        return bool(self.parse("review rights", answer, {"status": {"allowed": bool}})["status"]["allowed"])

    def demand_rights(self, rights: Iterable[api_errors.Right]) -> None:
        """Raise RightsError, with the rules to add, if this user lacks any of these rights."""
        if missing := [right for right in rights if not self.has_right(right)]:
            raise api_errors.explain_rights(missing, self.place)

    def list_processors(self, node_selector: Mapping[str, str]) -> list[str]:
        """Return the kinds of processors of nodes with these labels; none if they are not seen."""
        if named := node_selector.get(ARCH):
            return [named]
        labels = ",".join(f"{name}={text}" for name, text in node_selector.items())
        accept = {"Accept": METADATA.replace("data;", "dataList;")}
        shape = {"items": [{"metadata": {"labels": {f"{ARCH}?": str}}}]}
        with contextlib.suppress(PslaunchError):
            chosen = {"label_selector": labels, "header_params": accept}
            nodes = self.get("list nodes", "/api/v1/nodes", shape, **chosen)["items"]
            return sorted({node["metadata"]["labels"].get(ARCH, "") for node in nodes} - {""})
        return []

    def close(self) -> None:
        self.api.close()


def _read_bounded(request: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """Return an answer that was read, and whose connection is free for others. Raises HTTPError."""
    from urllib3.exceptions import HTTPError

    answer = request(*args, **params)
    if "watch=true" in args[1]:
        answer._body = next(answer.stream(), b"")  # the first change
        answer.close()
        return answer
    answer._body = answer.read(MAX_ANSWER_BYTES + 1)
    if len(answer._body) > MAX_ANSWER_BYTES:
        answer.close()
        raise HTTPError(f"its answer is over {MAX_ANSWER_BYTES >> 20} MiB")
    return answer


def make_plural(kind: str) -> str:
    """Return the name of a kind's objects, such as NetworkPolicies."""
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"


def open_cluster(access: Access, environ: Mapping[str, str] = os.environ) -> Cluster:
    """Return the API as a kubeconfig or this pod's account gives it; the server is not asked yet.

    Raises ClusterError without a usable configuration, and SpecError for an unknown context.
    """
    path = access.kubeconfig or environ.get("KUBECONFIG", "")
    given, path = bool(path), path or str(Path.home() / ".kube" / "config")
    if not any(Path(one).expanduser().exists() for one in path.split(os.pathsep) if one):
        if not given and not access.context and "KUBERNETES_SERVICE_HOST" in environ:
            return _open_in_pod(access)
        raise ClusterError(
            "",
            f"no kubeconfig: {path} does not exist",
            "ask the cluster's administrator or provider for a file for --kubeconfig or KUBECONFIG",
        )
    return _open_by_file(path, access)


def _open_by_file(path: str, access: Access) -> Cluster:
    from kubernetes import client, config
    from kubernetes.config.kube_config import KubeConfigMerger
    from yaml import YAMLError

    with _collect_log() as logged:
        try:
            read = KubeConfigMerger(path).config
            known = {str(one["name"]): one["context"] for one in read["contexts"].value}
            name = access.context or read["current-context"]
            if name not in known:
                near = find_near(name, known, 0.5)
                hint = f"did you mean {near!r}?" if near else f"it has {', '.join(known)}"
                raise SpecError(f"no context {name!r} in {path}; {hint}")
            settings = client.Configuration()
            config.load_kube_config(path, name, settings)
            settings.retries = False
            api = client.ApiClient(settings)
            own = known[name].safe_get("namespace")
            if logged:
                user = read["users"].get_with_name(known[name]["user"])
                if failed := api_errors.explain_plugin(
                    logged[0], user["user"].safe_get("exec") or {}, user.path
                ):
                    raise failed
        except (config.ConfigException, YAMLError, OSError, *INVALID) as e:
            raise ClusterError(
                "",
                f"the kubeconfig {path} can't be used: {' '.join(str(e).split())}",
                "get a new one from the cluster, or give another --kubeconfig",
            ) from e
    place = api_errors.Place(settings.host, f"context {name} of {path}", access.namespace or own or "default")
    return Cluster(api, place, Access(path, name, place.namespace), "; ".join(logged))


def _open_in_pod(access: Access) -> Cluster:
    from kubernetes import client, config

    settings = client.Configuration()
    try:
        config.load_incluster_config(settings)
        own = (ACCOUNT / "namespace").read_text().strip()
    except (config.ConfigException, OSError) as e:
        raise ClusterError(
            "",
            f"no kubeconfig, and no account in this pod: {e}",
            "give --kubeconfig=FILE, or a service account to the pod (automountServiceAccountToken)",
        ) from e
    settings.retries = False
    place = api_errors.Place(settings.host, "this pod's service account", access.namespace or own)
    return Cluster(client.ApiClient(settings), place, Access(namespace=place.namespace))


@contextlib.contextmanager
def _collect_log() -> Iterator[list[str]]:
    """Collect errors that the library logs and then ignores: of programs that give credentials."""
    said: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: said.append(" ".join(record.getMessage().split()))  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger().removeHandler(handler)


def _read_message(e: Any) -> str:
    """Return the message of an answer: of its Status, else of its first line."""
    try:
        return str(json.loads(e.body)["message"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return str(e.body or e.reason or e.status)


def try_again(limit_s: float, stop: threading.Event | None = None, every_s: float = POLL_S) -> Iterator[int]:
    """Yield the number of each try from 0 on, until the time is over or `stop` is set; the first at once."""
    end_s, stop = time.monotonic() + limit_s, stop or threading.Event()
    for number in itertools.count():
        yield number
        if time.monotonic() > end_s or stop.wait(every_s):
            return


def begin_apart(work: Callable[[], T]) -> Future[T]:
    """Begin work in a thread for which the end of this process does not wait; return its later result."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as e:
            result.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    return result
