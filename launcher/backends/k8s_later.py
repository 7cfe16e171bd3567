"""Jobs of a namespace for later shells: found by their label, deleted with all that belongs to them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from ..errors import RightsError
from .k8s_api import Cluster
from .k8s_errors import AbsentError, ConflictError
from .k8s_records import INSTANCE, OF_JOBS, Object, is_abandoned


def list_jobs(cluster: Cluster, name: str = "") -> list[Object]:
    """Return all Jobs that pslaunch has made, or those of one job; abandoned ones are deleted."""
    label = f"{OF_JOBS},{INSTANCE}={name}" if name else OF_JOBS
    answer = cluster.request("list Jobs", "get", cluster.locate("Job"), label_selector=label)
    now_s = parsedate_to_datetime(answer.headers["Date"]).timestamp()
    found: list[Object] = json.loads(answer.data)["items"]
    abandoned = [job for job in found if is_abandoned(job, now_s)]
    for job in abandoned:
        _sweep(cluster, job)
    return [job for job in found if job not in abandoned]


def _sweep(cluster: Cluster, job: Object) -> None:
    """Delete a Job, and with it all that it owns, unless it was released meanwhile or this user may not."""
    seen = {key: job["metadata"][key] for key in ("uid", "resourceVersion")}
    with contextlib.suppress(ConflictError, RightsError):
        delete(cluster, {"kind": "Job", **job}, {"preconditions": seen})


def delete(cluster: Cluster, thing: Mapping[str, Any], options: Mapping[str, Any] = {}) -> None:
    """Delete an object and all that it owns; it may be gone already."""
    with contextlib.suppress(AbsentError):
        whole = {"propagationPolicy": "Background", **options}
        cluster.delete(thing["kind"], thing["metadata"]["name"], whole)
