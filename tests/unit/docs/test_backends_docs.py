"""Pages about backends have the failures, names and lists of the code, and a patch that works."""

from __future__ import annotations

import re

import yaml

from pslaunch.backends.k8s.api import EXEC, JOB, LOOK, make_plural
from pslaunch.backends.k8s.backend import LABELLED
from pslaunch.backends.k8s.job_records import INSTANCE, QUEUE_LABEL
from pslaunch.backends.k8s.manifests import ENDING_EXTRA_S, MAX_PACKAGE_BYTES
from pslaunch.backends.k8s.patch import patch_object
from pslaunch.backends.k8s.pod_failures import FAILURES
from pslaunch.backends.mpi.mpirun import PATTERNS
from pslaunch.backends.slurm.words import OF_TASK
from support.pages import DOCS, rows, section

PAGE = (DOCS / "kubernetes.md").read_text()
GOLDEN = DOCS.parent / "tests/golden"
PARTS = {
    "hosts": "HOST", "host": "HOST", "daemon": "prted", "version": "VERSION", "ranks": "N", "last": "…",
    "near": "", "network": "prte_if_include",
}  # fmt: skip


def test_page_has_every_failure_with_its_code_and_remedy() -> None:
    ours = [(f.text, str(int(f.code)), "yes" if f.waits else "no", f.remedy) for f in FAILURES]
    assert [tuple(row) for row in rows("kubernetes.md", "Failures") if len(row) == 4] == [
        *dict.fromkeys(ours)
    ]


def test_patch_of_the_page_is_accepted() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", section("kubernetes.md", "Pods as you want them"), re.DOTALL)
    *_, job = yaml.safe_load_all((GOLDEN / "k8s-default.yaml").read_text())
    patched = patch_object(job, [yaml.safe_load(text)])
    assert patched["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == 1000


def test_numbers_and_labels_of_the_page_are_those_of_the_code() -> None:
    assert f"{MAX_PACKAGE_BYTES // 1024} KiB when compressed" in PAGE
    assert f"`{QUEUE_LABEL}`" in section("kubernetes.md", "Kueue")
    rights = len([*JOB, *EXEC, *LOOK])
    assert f"  {rights} of {rights}  " in section("kubernetes.md", "Checking the cluster")


def test_command_of_the_page_deletes_all_kinds_of_objects_by_their_label() -> None:
    (kinds,) = re.findall(rf"kubectl delete (\S+) -l {INSTANCE}=", PAGE)
    assert kinds.split(",") == [make_plural(kind).lower() for kind in LABELLED]


def test_pods_have_5_s_more_than_the_longest_ending_of_its_page() -> None:
    text = (DOCS / "endings.md").read_text()
    (rest,) = re.findall(r"a pod is evicted.*\| (\d+) s \+ grace \+ (\d+) s \|", text)
    assert sum(map(int, rest)) + 5 == ENDING_EXTRA_S


def test_page_of_mpi_has_the_message_of_every_failure() -> None:
    messages = [(str(int(code)), text.format("…", "…", **PARTS)) for _, code, text in PATTERNS]
    assert [(code, message) for _, code, message in rows("mpi.md", "Failures")] == [*dict.fromkeys(messages)]


def test_page_names_the_variables_of_a_task_of_slurm() -> None:
    text = section("environment.md", "MPI")
    assert [name for name in OF_TASK if f"`{name}`" not in text] == []
