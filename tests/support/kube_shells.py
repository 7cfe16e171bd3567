"""Program: a job on pods that nobody holds, reported by later shells in the events of a launcher.

Words: the beginning (`detached` or `rendered`), kubeconfig, namespace, a folder for the results, and options
of `pslaunch k8s` with the job's program.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml
from kubernetes import client, config, utils  # once for all shells, which are forks

from pslaunch import cli

LIMIT_S, EVERY_S = 120.0, 0.3


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    text: str


def main(beginning: str, kubeconfig: str, namespace: str, folder: str, *words: str) -> int:
    """Run a job to its end, fetch its files and remove it; return its code."""
    name = f"{beginning}-{os.urandom(3).hex()}"  # of a detached job the beginning of its id
    words = (f"--job_name={name}", *words)
    where = (f"--kubeconfig={kubeconfig}", f"--namespace={namespace}")
    by: tuple[str, ...] = where  # found by its label
    if beginning == "detached":
        run("k8s", "apply", "--detach", "--json", where[0], *words)
        by = ()  # found by the note on this machine
    else:
        apply_by_hand(name, kubeconfig, namespace, words)
    begun = wait_until_begun(name, by)
    job = begun["job"]
    report("job", job=job, processes=begun["processes"])
    for process in begun["processes"]:
        report("process", **process)
    code = run("logs", job, "--follow", "--json", *by, shown=True).code
    end = json.loads(run("status", job, "--json", *by).text)
    report("end", **{key: end[key] for key in ("code", "reason", "failure")})
    results = (code, run("fetch", job, folder, *by).code, run("stop", job, *by).code)
    return next(filter(None, results), 0)


def report(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def run(*words: str, shown: bool = False) -> Done:
    """Run a command in a process of its own; print its output if it fails or is `shown`."""
    here, there = os.pipe()
    if (pid := os.fork()) == 0:
        if not shown:
            os.dup2(there, 1)
        cli.main(words)  # exits
    os.close(there)
    with os.fdopen(here) as f:
        text = f.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        print(f"{words[0]} returned {code}: {text}", flush=True)
    return Done(code, text)


def apply_by_hand(job: str, kubeconfig: str, namespace: str, words: Sequence[str]) -> None:
    """Begin a job from its manifests, as a tool does that knows nothing of ours."""
    rendered = run("k8s", "render", *words)
    with config.new_client_from_config(kubeconfig) as api:
        secret = {"metadata": {"name": f"{job}-secret"}, "stringData": {"secret": os.urandom(32).hex()}}
        client.CoreV1Api(api).create_namespaced_secret(namespace, secret)
        for thing in yaml.safe_load_all(rendered.text):
            utils.create_from_dict(api, thing, namespace=namespace)


def wait_until_begun(job: str, by: Sequence[str]) -> Any:
    """Return the status of a job once all its programs have begun, or it has ended."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        done = run("status", job, "--json", *by)
        status = json.loads(done.text) if not done.code else {}
        states = [process["state"] for process in status.get("processes") or ()]
        if status.get("state") == "ended" or (states and "waiting" not in states):
            return status
        assert time.monotonic() < end_s, f"{job} has not begun: {status}"
        time.sleep(EVERY_S)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
