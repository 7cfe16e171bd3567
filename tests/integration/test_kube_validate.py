"""`pslaunch k8s apply --validate` and `--dry_run`: the verdict on every object, and nothing is created."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node import codes
from support.jobs import PSLAUNCH
from support.kube import Kube
from testbed.kube.cluster import PYTHON

Apply = Callable[..., subprocess.CompletedProcess[str]]
NO_PODS = "you have no right to create pods"


@pytest.fixture
def apply(cluster: Kube, workspace: Path) -> Apply:
    (workspace / "train.py").write_text("")

    def run(*options: str, config: str = "kubeconfig") -> subprocess.CompletedProcess[str]:
        where = [f"--kubeconfig={cluster.kubeconfig.with_name(config)}", f"--namespace={cluster.namespace}"]
        argv = [*PSLAUNCH, "k8s", "apply", f"--image={PYTHON}", "--job_name=j", *where, *options]
        before = cluster.list_names()
        done = subprocess.run(argv, cwd=workspace, capture_output=True, text=True, check=False, timeout=60)
        assert cluster.list_names() == before
        return done

    return run


def read(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_object_is_accepted(apply: Apply) -> None:
    done = apply("--validate", "--nodes=2", "--cpu=1", "--memory=1Gi", "--shm=64Mi", "--json")
    told = read(done)
    kinds = [one["object"].split()[0] for one in told]
    assert kinds == ["Service"] * 2 + ["ConfigMap"] * 4 + ["Secret", "Job", "Pod"], done.stderr
    assert {one["answer"] for one in told[:-1]} == {"accepted"} and done.returncode == 0
    assert (told[-1]["answer"], told[-1]["text"]) == ("not asked", NO_PODS)


def test_pods_are_judged_for_who_may_create_them(apply: Apply) -> None:
    done = apply("--validate", config="admin.kubeconfig")
    assert done.stdout.splitlines()[-1].startswith("Pod j-") and done.stdout.endswith(": accepted\n")


def test_refused_object_names_its_field_and_the_others_are_judged_too(apply: Apply, workspace: Path) -> None:
    (workspace / "patch.yaml").write_text("kind: Job\nspec: {ttlSecondsAfterFinished: -5}\n")
    done = apply("--validate", "--patch=patch.yaml", "--json")
    refused = [one for one in read(done) if one["answer"] == "refused"]
    assert [one["object"].split()[0] for one in refused] == ["Job"], done.stdout + done.stderr
    assert "ttlSecondsAfterFinished" in refused[0]["text"] and "--patch" in refused[0]["text"]
    assert done.returncode == codes.PREFLIGHT


def test_missing_rights_and_cluster_have_their_codes(apply: Apply, tmp_path: Path) -> None:
    assert apply("--validate", "--namespace=default").returncode == codes.USAGE  # given twice
    assert apply("--validate", config="nowhere").returncode == codes.HOST


def test_dry_run_prints_the_plan(apply: Apply) -> None:
    done = apply("--dry_run", "--nodes=2", "--json")
    plan = json.loads(done.stdout)
    assert (done.returncode, plan["backend"], len(plan["nodes"])) == (0, "k8s", 2), done.stderr
    assert plan["start"]["package"][0].startswith("the package goes into a ConfigMap: ")
    in_image = apply("--dry_run", "--job_workspace=/ws", "train.py")
    assert f"package: nothing is sent: /ws is in the image {PYTHON}" in in_image.stdout, in_image.stderr
