"""GPUs and cores of a node are found in the kernel's files, below a folder here."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pslaunch.node.agent import resources
from pslaunch.node.agent.resources import (
    GPUS_AFTER_S,
    GPUS_EVERY_S,
    GPUS_REST,
    NO_GPU,
    find_cores,
    find_resources,
    follow_gpus,
    measure_gpus,
)
from pslaunch.runtime.shared import env
from support.process import make_script


def make_files(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return f"{root}/"


@pytest.mark.parametrize(
    ("files", "environ", "gpus"),
    [
        ({}, {}, []),
        (
            {"dev/nvidia0": "", "dev/nvidia3": "", "dev/nvidiactl": "", "dev/nvidia-caps/c": ""},
            {},
            ["0", "1"],
        ),
        ({"proc/driver/nvidia/gpus/0000:01:00.0/information": ""}, {}, ["0"]),
        ({f"sys/class/kfd/kfd/topology/nodes/{i}/gpu_id": f"{i * 7}\n" for i in range(3)}, {}, ["0", "1"]),
        ({"dev/nvidia0": ""}, {"CUDA_VISIBLE_DEVICES": "4,GPU-ab"}, ["4", "GPU-ab"]),
        ({"dev/nvidia0": ""}, {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "1"}, []),
        ({}, {"ROCR_VISIBLE_DEVICES": "GPU-a,GPU-b", "HIP_VISIBLE_DEVICES": "1"}, ["1"]),
        ({}, {"ROCR_VISIBLE_DEVICES": "GPU-a,GPU-b"}, ["0", "1"]),
    ],
)
def test_gpus_are_those_of_the_nodes_variables_else_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], environ: dict[str, str],
    gpus: list[str],
) -> None:  # fmt: skip
    for name in (*env.VISIBLE_DEVICES, "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    found = find_resources(with_cores=False, root=make_files(tmp_path, files))
    assert found["gpus"] == gpus and bool(found["gpus_by"]) == bool(files or environ)


def test_cores_are_those_of_each_numa_node_with_threads_of_a_core_side_by_side(tmp_path: Path) -> None:
    files = {
        f"sys/devices/system/node/node{i}/cpulist": text for i, text in enumerate(("0-1,4-5\n", "2-3,6-7"))
    }
    siblings = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    files |= {siblings.format(i): f"{i % 4},{i % 4 + 4}\n" for i in range(8)}
    root = make_files(tmp_path, files)
    assert find_cores({*range(8)} - {3}, root) == [[0, 4, 1, 5], [2, 6, 7]]
    assert find_cores({1, 0}, f"{tmp_path}/none/") == [[0, 1]]
    usable = os.sched_getaffinity(0)
    assert sorted(core for cores in find_cores(usable) for core in cores) == sorted(usable)


# In the format of NVIDIA's pages, with what it writes in place of numbers: {0} runs, and {1} in its session.
TWO_GPUS = "GPU-a, 93\nGPU-b, 7"
FAILED = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure, that"


@pytest.mark.parametrize(
    ("gpus", "apps", "used"),
    [
        (TWO_GPUS, "{0}, GPU-a, 100", {"gpu_percent": 93.0, "gpu_bytes": 100 << 20}),
        (TWO_GPUS, "{0}, GPU-a, 100\n{1}, GPU-a, 20", {"gpu_percent": 93.0, "gpu_bytes": 120 << 20}),
        (TWO_GPUS, "{0}, GPU-a, 100\n{0}, GPU-b, 20", {"gpu_percent": 100.0, "gpu_bytes": 120 << 20}),
        ("GPU-a, [N/A]", "{0}, GPU-a, 100", {"gpu_bytes": 100 << 20}),
        ("GPU-a, 5", "{0}, GPU-a, [Not Supported]", {"gpu_percent": 5.0}),
        ("GPU-a, 5", "{0}, MIG-c, [N/A]", {}),
        ("GPU-a, 5", "[N/A], GPU-a, 100\n999999999, GPU-a, 100", None),
        (TWO_GPUS, "", None),
        ("No devices were found", "No devices were found", None),
        (FAILED, FAILED, None),
        (TWO_GPUS, "{0}", None),
    ],
)
def test_use_of_gpus_is_that_of_sessions_as_far_as_nvidia_smi_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, apps: str, used: dict[str, float] | None
) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], text=True, stdout=subprocess.PIPE,
                          start_new_session=True) as leader:  # fmt: skip
        assert leader.stdout
        apps = apps.format(leader.pid, leader.stdout.readline().strip())
        script = f'case "$1" in --query-gpu=*) echo "{gpus}" ;; *) echo "{apps}" ;; esac'
        make_script(tmp_path / "nvidia-smi", script)
        monkeypatch.setenv("PATH", f"{tmp_path}")
        found: Any = {}
        with suppress(ValueError):
            found = measure_gpus()
        assert found == ({} if used is None else {leader.pid: used})
        os.killpg(leader.pid, signal.SIGKILL)


def test_use_of_gpus_is_followed_until_it_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_script(tmp_path / "nvidia-smi", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    used, now_s = {"gpu_percent": 50.0, "gpu_bytes": 4}, [0.0, 0.0, 2.0, 4.0, 4.0, 4.0]
    looks: Any = iter([{7: used}, ValueError("no answer"), {}])
    told, threads = list[tuple[float, Any]](), list[Any]()

    def sleep(pause_s: float) -> None:
        told.append((pause_s, dict(found)))
        if len(told) == 4:
            raise KeyboardInterrupt

    def measure() -> Any:
        if isinstance(look := next(looks), Exception):
            raise look
        return look

    monkeypatch.setattr(resources, "measure_gpus", measure)
    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now_s.pop(0))
    monkeypatch.setattr(resources, "time", clock)
    start = SimpleNamespace(
        Thread=lambda target, daemon: SimpleNamespace(start=lambda: threads.append(target))
    )
    monkeypatch.setattr(resources, "threading", start)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert follow_gpus() == {} and not threads, "a node without GPUs is not asked"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = follow_gpus()
    with pytest.raises(KeyboardInterrupt):
        threads[0]()
    slow = (2.0 * GPUS_REST, {7: used})
    assert told == [(GPUS_AFTER_S, {}), (GPUS_EVERY_S, {7: used}), slow, (GPUS_EVERY_S, {7: NO_GPU})]
