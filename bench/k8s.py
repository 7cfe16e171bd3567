"""Jobs on Kubernetes next to bare Jobs by the client library: `python bench/k8s.py`. Needs root, `.ci/kube`.

The cluster is that of the tests, on this machine: API server, nodes, pods and launcher share its processors.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # testbed

from agents import MB, measure_memory
from launch import time_command
from over_ssh import Seen, time_pipes, write_files
from testbed.kube import NAMESPACE, Cluster, why_not
from testbed.kube.cluster import BUILT, PYTHON
from turns import Table, compute_ratio, find_beside_python, make_fresh_folder, make_user_environ, take_turns

LINES, LINE_BYTES = 1_000_000, 40
PACKAGE_MIB = 100
LIMIT_BYTES = 1 << 20  # of an object
NOTE = "import time; print('started', repr(time.time()), flush=True)"
WAIT = f"{NOTE}; import signal; signal.pause()"
TALK = f"for i in range({LINES}): print(f'{{i:0{LINE_BYTES - 1}d}}')"
# Creates an Indexed Job, prints its pods' logs as they come, deletes it and waits until its pods are gone.
BARE = """
import json, sys, threading
from kubernetes import client, config, watch
config.load_kube_config()
job, namespace = json.loads(sys.argv[1]), sys.argv[2]
batch, core = client.BatchV1Api(), client.CoreV1Api()
label = "batch.kubernetes.io/job-name=" + job["metadata"]["name"]

def follow(name):
    log = core.read_namespaced_pod_log(name, namespace, follow=True, _preload_content=False)
    for piece in log.stream(1 << 16):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()

def list_pods():
    return core.list_namespaced_pod(namespace, label_selector=label)

batch.create_namespaced_job(namespace, job)
following = {}
for event in watch.Watch().stream(core.list_namespaced_pod, namespace, label_selector=label):
    pod = event["object"]
    if pod.status.phase != "Pending" and pod.metadata.name not in following:
        following[pod.metadata.name] = threading.Thread(target=follow, args=[pod.metadata.name])
        following[pod.metadata.name].start()
    if len(following) == job["spec"]["completions"]:
        break
for thread in following.values():
    thread.join()
batch.delete_namespaced_job(job["metadata"]["name"], namespace, propagation_policy="Background")
selected = {"label_selector": label, "timeout_seconds": 60}
for event in watch.Watch().stream(core.list_namespaced_pod, namespace, **selected):
    if not list_pods().items:
        break
"""


class Jobs:
    """Jobs of one program in as many pods, ours and bare ones."""

    def __init__(self, environ: dict[str, str], folder: Path, program: str) -> None:
        self.environ, self.folder, self.program = environ, folder, program
        (folder / "train.py").write_text(program)

    def make_command(self, pods: int, *options: str) -> list[str]:
        own = (f"--image={PYTHON}", f"--nodes={pods}", "--server_num=0", f"--worker_num={pods}")
        return [find_beside_python("pslaunch"), "k8s", "apply", *own, *options, "train.py"]

    def make_bare_job(self, pods: int, *, writable: bool = False) -> dict[str, Any]:
        """Return a bare Job whose pods have the same image, rights and program, and perhaps a /tmp."""
        container = {
            "name": "main", "image": PYTHON, "command": ["python3", "-c", self.program],
            "securityContext": {
                "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            },
            "volumeMounts": [{"name": "temporary", "mountPath": "/tmp"}] if writable else [],
        }  # fmt: skip
        pod = {
            "restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container],
            "securityContext": {
                "runAsNonRoot": True, "runAsUser": 65532, "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumes": [{"name": "temporary", "emptyDir": {}}] if writable else [],
        }  # fmt: skip
        spec = {"completions": pods, "parallelism": pods, "completionMode": "Indexed", "backoffLimit": 0}
        return {
            "metadata": {"name": f"bare-{os.getpid()}-{time.time_ns()}"},
            "spec": {**spec, "template": {"spec": pod}},
        }

    def make_bare_command(self, pods: int) -> list[str]:
        """Return the command that runs a bare Job to its end."""
        return [sys.executable, "-c", BARE, json.dumps(self.make_bare_job(pods)), NAMESPACE]

    def read(self, argv: Sequence[str]) -> Iterator[bytes]:
        """Run a command to its end; yield its lines. SystemExit with its words if it fails."""
        with subprocess.Popen(
            argv, cwd=self.folder, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout and process.stderr
            yield from process.stdout
            said = process.stderr.read().decode()
        if process.returncode:
            raise SystemExit(f"{argv[:3]} failed, exit {process.returncode}:\n{said}")


def time_start(jobs: Jobs, argv: Callable[[], list[str]], pods: int) -> Callable[[], float]:
    """Seconds from the command to the last trainer's first line, by the trainers' own clock."""

    def take_turn() -> float:
        begin_s = time.time()
        said = b"".join(jobs.read(argv())).decode()
        started = [float(at) for at in re.findall(r"started (\S+)", said)]
        assert len(started) == pods, said
        return max(started) - begin_s

    return take_turn


def measure_start(environ: dict[str, str], turns: int) -> None:
    table = Table(
        "Start, seconds from the command to the last trainer's first line", beside="bare Indexed Job"
    )
    with make_fresh_folder() as folder:
        jobs = Jobs(environ, folder, NOTE)
        for pods in (3, 10):
            times = take_turns(
                {
                    "ours": time_start(jobs, lambda: jobs.make_command(pods), pods),  # noqa: B023
                    "bare": time_start(jobs, lambda: jobs.make_bare_command(pods), pods),  # noqa: B023
                },
                turns,
            )
            ours, bare = (statistics.median(times[name]) for name in ("ours", "bare"))
            beyond = [a - 0.5 for a in times["ours"]]
            table.add_row(
                f"{pods} pods; the ratio without 0.5 s", f"{ours:.2f} s", f"{bare:.2f} s",
                compute_ratio(beyond, times["bare"]), "<= 1.3",
            )  # fmt: skip


def measure_output(environ: dict[str, str], turns: int) -> None:
    """Show the speed of a million lines, and how many of them arrive."""
    counted: dict[str, tuple[int, int]] = {}

    def time_lines(name: str, argv: Callable[[], list[str]]) -> Callable[[], float]:
        def take_turn() -> float:
            begin_s, end_s, shown, told = 0.0, 0.0, 0, 0
            for line in jobs.read(argv()):
                if re.match(rb"(trainer/0 +\| )?\d{39}$", line):
                    end_s = time.perf_counter()
                    begin_s = begin_s or end_s
                    shown += 1
                elif left := re.search(rb"(\d+) (bytes|lines) are left out here", line):
                    told += int(left[1]) // (LINE_BYTES if left[2] == b"bytes" else 1)
            counted[name] = shown, told
            return shown * LINE_BYTES / MB / (end_s - begin_s)

        return take_turn

    with make_fresh_folder() as folder:
        jobs = Jobs(environ, folder, TALK)
        speeds = take_turns(
            {
                "ours": time_lines("ours", lambda: jobs.make_command(1)),
                "bare": time_lines("bare", lambda: jobs.make_bare_command(1)),
            },
            turns,
        )
        whole = sum(1 for _ in (folder / "log/0/train.log").open())
    ours, bare = (f"{statistics.median(speeds[name]):.1f} MB/s" for name in ("ours", "bare"))
    table = Table(f"Output of {LINES:,} lines of {LINE_BYTES} bytes", beside="followed log of a bare pod")
    table.add_row("speed", ours, bare, compute_ratio(speeds["ours"], speeds["bare"]))
    (shown, told), (bare_shown, _) = counted["ours"], counted["bare"]
    table.add_row("lines that came", f"{shown:,}", f"{bare_shown:,}")
    table.add_row("lines lost without a note", f"{LINES - shown - told:,}", f"{LINES - bare_shown:,}")
    table.add_row("lines of the fetched log", f"{whole:,}")


@contextmanager
def start_bare_pods(jobs: Jobs, kubeconfig: Path, pods: int) -> Iterator[list[str]]:
    """Yield the names of a bare Job's pods, which run and have a /tmp; delete the Job."""
    from kubernetes import client, config, watch

    config.load_kube_config(str(kubeconfig))
    core, batch = client.CoreV1Api(), client.BatchV1Api()
    job = jobs.make_bare_job(pods, writable=True)
    name = job["metadata"]["name"]
    label = {"label_selector": f"batch.kubernetes.io/job-name={name}"}
    batch.create_namespaced_job(NAMESPACE, job)
    try:
        running: set[str] = set()
        for event in watch.Watch().stream(core.list_namespaced_pod, NAMESPACE, **label):
            if event["object"].status.phase == "Running":
                running.add(event["object"].metadata.name)
            if len(running) == pods:
                break
        yield sorted(running)
    finally:
        batch.delete_namespaced_job(name, NAMESPACE, propagation_policy="Foreground", grace_period_seconds=1)


def time_tar(jobs: Jobs, kubeconfig: Path, pods: int) -> Callable[[], float]:
    """Seconds of a tar stream to each of the pods over an exec, all at once."""

    def take_turn() -> float:
        kubectl = [str(BUILT / "kubectl"), f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}"]
        pack = ["tar", "-c", "-C", str(jobs.folder), "files"]
        unpack = ["tar", "-x", "-m", "-C", "/tmp", "--no-same-permissions"]
        with start_bare_pods(jobs, kubeconfig, pods) as names:
            return time_pipes(pack, [[*kubectl, "exec", "-i", name, "--", *unpack] for name in names])

    return take_turn


def time_package(jobs: Jobs, pods: int) -> Callable[[], float]:
    """Seconds from all nodes connected to all nodes ready, by the head's clock."""

    def take_turn() -> float:
        seen = Seen(time.time())
        for line in jobs.read(jobs.make_command(pods, "--json")):
            seen.events.append((time.time(), json.loads(line)))
        return seen.measure_filling_s()

    return take_turn


def measure_package(environ: dict[str, str], kubeconfig: Path, turns: int) -> None:
    table = Table(f"Package of {PACKAGE_MIB} MiB", beside="tar over an exec to each pod")
    with make_fresh_folder() as folder:
        write_files(folder / "files", PACKAGE_MIB, 1 << 20)
        jobs, waiting = Jobs(environ, folder, NOTE), Jobs(environ, folder, WAIT)
        (folder / "train.py").write_text(NOTE)
        for pods in (2, 8):
            times = take_turns(
                {"ours": time_package(jobs, pods), "tar": time_tar(waiting, kubeconfig, pods)}, turns
            )
            ours, tar = (f"{statistics.median(times[name]):.2f} s" for name in ("ours", "tar"))
            table.add_row(f"{pods} pods", ours, tar, compute_ratio(times["ours"], times["tar"]))


def measure_render(environ: dict[str, str], turns: int) -> None:
    import yaml

    table = Table("Manifests of 1,000 pods", beside="limit")
    with make_fresh_folder() as folder, make_fresh_folder() as made:
        (folder / "train.py").write_text(NOTE)
        program = find_beside_python("pslaunch")
        own = (f"--image={PYTHON}", "--nodes=1000", f"--output_dir={made}", str(folder / "train.py"))
        times = take_turns(
            {
                "render": time_command([program, "k8s", "render", *own], environ),
                "help": time_command([program, "--help"], environ),
            },
            turns + 1,
        )
        beyond = [a - b for a, b in zip(times["render"][1:], times["help"][1:], strict=True)]
        objects = [o for path in made.glob("*.yaml") for o in yaml.safe_load_all(path.read_text())]
    spent = statistics.median(beyond)
    table.add_row("`render`, beyond `--help`", f"{spent * 1e3:.0f} ms", "300 ms", spent / 0.3, "<= 1.0")
    largest = max(len(json.dumps(o)) for o in objects)
    table.add_row("largest object", f"{largest / 1024:.0f} KiB", "1024 KiB", largest / LIMIT_BYTES, "<= 1.0")


def list_guards(container: str) -> list[int]:
    """Return the processes of agent and keeper in a container, as this machine numbers them."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if (
                container in (folder / "cgroup").read_text()
                and b"keeper" in (folder / "cmdline").read_bytes()
            ):
                found.append(int(folder.name))
        except (OSError, ValueError):
            continue
    return found


def measure_weight(environ: dict[str, str], kubeconfig: Path) -> None:
    """Show the memory of agent and keeper while the trainers wait."""
    from kubernetes import client, config

    config.load_kube_config(str(kubeconfig))
    core = client.CoreV1Api()
    table = Table("Memory of agent and keeper in a pod (PSS)", beside="limit")
    with make_fresh_folder() as folder:
        jobs = Jobs(environ, folder, WAIT)
        argv = jobs.make_command(2, "--grace=1")
        with subprocess.Popen(argv, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True) as launcher:
            assert launcher.stdout
            started = 0
            for line in launcher.stdout:
                started += "started" in line
                if started == 2:
                    break
            for pod in core.list_namespaced_pod(NAMESPACE).items:
                index = int(pod.metadata.name.split("-")[-2])
                container = pod.status.container_statuses[0].container_id.rpartition("/")[2]
                guards = list_guards(container)
                assert len(guards) == 2, guards
                weight = sum(measure_memory(pid)[0] for pid in guards) / MB
                what = "pod 0, with the head" if index == 0 else "any other pod"
                table.add_row(what, f"{weight:.1f} MB", "30 MB", weight / 30, "<= 1.0")
            launcher.terminate()
            launcher.stdout.read()


@contextmanager
def make_cluster() -> Iterator[Path]:
    """Yield the kubeconfig of a cluster."""
    if reason := why_not():
        raise SystemExit(reason)
    with Cluster() as cluster:
        yield cluster.kubeconfig


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="*", help="render, weight, start, package, output (default: all)")
    parser.add_argument("--turns", type=int, default=5, help="of each contender (%(default)s)")
    chosen = parser.parse_args()
    with make_user_environ() as environ, make_cluster() as kubeconfig:
        environ["KUBECONFIG"] = str(kubeconfig)
        parts: dict[str, Callable[[], None]] = {
            "render": lambda: measure_render(environ, chosen.turns),
            "weight": lambda: measure_weight(environ, kubeconfig),
            "start": lambda: measure_start(environ, chosen.turns),
            "package": lambda: measure_package(environ, kubeconfig, chosen.turns),
            "output": lambda: measure_output(environ, chosen.turns),
        }
        for name, measure in parts.items():
            if not chosen.part or name in chosen.part:
                measure()


if __name__ == "__main__":
    main()
