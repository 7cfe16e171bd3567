"""GPUs and cores of a node, found without their libraries, and what processes use of the GPUs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from contextlib import suppress
from glob import glob
from typing import TYPE_CHECKING

from pslaunch.runtime.shared import env

from .. import procs
from ..listing import read_text

if TYPE_CHECKING:
    from ..messages import Report, Resources

# A container has only its own in /dev; on a host they may be made later.
GPU_FILES = ("dev/nvidia[0-9]*", "proc/driver/nvidia/gpus/*", "sys/class/kfd/kfd/topology/nodes/*/gpu_id")
NUMA_FILES = "sys/devices/system/node/node[0-9]*/cpulist"
NVIDIA_LIMIT_S = 20.0  # a driver at work may need seconds
GPUS_AFTER_S, GPUS_EVERY_S = 1.0, 5.0
GPUS_REST = 20  # times as long as nvidia-smi, which takes seconds where a driver is loaded for it
NO_GPU: Report = {"gpu_percent": 0.0, "gpu_bytes": 0}  # any more
THREADS_FILE = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def find_resources(*, with_cores: bool, root: str = "/") -> Resources:
    """Return what programs of this node can use."""
    cores = find_cores(os.sched_getaffinity(0), root) if with_cores else []
    for name in (*env.VISIBLE_DEVICES, "ROCR_VISIBLE_DEVICES"):
        if name in os.environ:
            gpus, by = env.split_devices(os.environ[name]), f"{name}={os.environ[name]}"[:100]
            if name not in env.VISIBLE_DEVICES:  # a list in which those count
                gpus = [*map(str, range(len(gpus)))]
            return {"gpus": gpus, "gpus_by": by, "cores": cores}
    for pattern in GPU_FILES:
        paths = glob(root + pattern)  # those of AMD with the id 0 are processors
        if found := [path for path in paths if "gpu_id" not in path or read_text(path).strip("0\n")]:
            return {"gpus": [*map(str, range(len(found)))], "gpus_by": f"/{pattern}", "cores": cores}
    return {"gpus": [], "gpus_by": "", "cores": cores}


def ask_nvidia(query: str) -> list[list[str]]:
    """Return the rows of values that nvidia-smi gives for `--query-QUERY`; of an error anything."""
    argv = ("nvidia-smi", f"--query-{query}", "--format=csv,noheader,nounits")
    said = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=NVIDIA_LIMIT_S, check=False
    )
    return [line.split(", ") for line in said.stdout.splitlines()]


def measure_gpus() -> dict[int, Report]:
    """Return what processes use of GPUs of NVIDIA, by session. Raises what is no answer of nvidia-smi.

    Where it has no number, as under MIG, that is left out; in some containers it knows no process.
    """
    busy, apps = dict(ask_nvidia("gpu=uuid,utilization.gpu")), dict[int, list[tuple[str, str]]]()
    for pid, gpu, mib in ask_nvidia("compute-apps=pid,gpu_uuid,used_memory"):
        if pid.isdecimal() and (proc := procs.read_proc(int(pid))):
            apps.setdefault(proc.session, []).append((gpu, mib))
    found: dict[int, Report] = {session: {} for session in apps}
    for session, used in apps.items():
        if percents := [float(p) for p in (busy.get(gpu, "") for gpu in {*dict(used)}) if p.isdecimal()]:
            found[session]["gpu_percent"] = sum(percents)
        if sizes := [int(mib) << 20 for _, mib in used if mib.isdecimal()]:
            found[session]["gpu_bytes"] = sum(sizes)
    return found


def follow_gpus() -> dict[int, Report]:
    """Return what sessions use of GPUs of NVIDIA, kept up to date by a thread of its own if there are any."""
    found: dict[int, Report] = {}

    def follow() -> None:
        pause_s = GPUS_AFTER_S
        while True:
            time.sleep(pause_s)
            began_s = time.monotonic()
            with suppress(OSError, ValueError, subprocess.TimeoutExpired):
                found.update({**dict.fromkeys(found, NO_GPU), **measure_gpus()})
            pause_s = max(GPUS_EVERY_S, GPUS_REST * (time.monotonic() - began_s))

    if shutil.which("nvidia-smi") and find_resources(with_cores=False)["gpus"]:
        threading.Thread(target=follow, daemon=True).start()
    return found


def find_cores(usable: set[int], root: str = "/") -> list[list[int]]:
    """Return the usable cores of each NUMA node, threads of one core side by side."""
    numa = [usable & _parse_cores(read_text(path)) for path in sorted(glob(root + NUMA_FILES))]
    numa.append(usable.difference(*numa))  # all, where the kernel tells nothing
    first = {n: min(_parse_cores(read_text(root + THREADS_FILE.format(n))), default=n) for n in usable}
    return [sorted(cores, key=lambda n: (first[n], n)) for cores in numa if cores]


def _parse_cores(text: str) -> set[int]:
    """Return the numbers in a list of the kernel, such as 0-3,8."""
    spans = re.findall(r"([0-9]+)(?:-([0-9]+))?", text)
    return {n for first, last in spans for n in range(int(first), int(last or first) + 1)}
