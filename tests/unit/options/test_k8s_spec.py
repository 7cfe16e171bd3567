"""The job of `pslaunch k8s`: pods, names, image and resources, and values that are refused with a remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.errors import SpecError
from pslaunch.options.args import split_command_line
from pslaunch.options.k8s_spec import _QUANTITY, Access, K8sReach, make_k8s_spec
from pslaunch.options.options import get_options
from pslaunch.options.sources import gather
from pslaunch.options.spec import JobSpec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program."""
    path = tmp_path / "My Job"
    path.mkdir()
    (path / "train.py").touch()
    return path


def make(folder: Path, *words: str, image: str = "i:1", **environ: str) -> JobSpec:
    rows = get_options("k8s")
    split = split_command_line(
        [*words, *([f"--image={image}"] if image else [])],
        {name: row.values for name, row in rows.items()},
        {name for name, row in rows.items() if row.repeatable},
        aliases={alias: name for name, row in rows.items() for alias in row.aliases},
    )
    return make_k8s_spec(gather("k8s", split, folder), split, cwd=folder, environ=environ)


def make_reach(folder: Path, *words: str, image: str = "i:1", **environ: str) -> K8sReach:
    reach = make(folder, *words, image=image, **environ).site.reach
    assert isinstance(reach, K8sReach)
    return reach


def test_cluster_to_ask_is_read(folder: Path) -> None:
    reach = make_reach(folder, "--kubeconfig=/k", "--context=big", "--namespace=team-1")
    assert reach.access == Access("/k", "big", "team-1")
    assert make_reach(folder).access == Access()


@pytest.mark.parametrize("name", ["Team", "", "-t", "a.b", "n" * 64])
def test_names_that_no_namespace_has_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(SpecError, match=r"--namespace=.* is no name of a namespace"):
        make(folder, f"--namespace={name}")


@pytest.mark.parametrize(
    ("words", "pods"),
    [
        ((), 1),
        (("--worker_num=3",), 3),
        (("--server_num=4", "--worker_num=3"), 4),
        (("--server_num=0", "--worker_num=1"), 1),
        (("--nodes=2", "--worker_num=5"), 2),
    ],
)
def test_number_of_pods_fits_the_processes(folder: Path, words: tuple[str, ...], pods: int) -> None:
    spec = make(folder, *words)
    assert [node.name for node in spec.site.nodes] == [f"my-job-{i}" for i in range(pods)]
    assert {node.workspace for node in spec.site.nodes} == {"/workspace/my-job"}


def test_folder_of_the_program_is_the_package(folder: Path) -> None:
    package = make(folder).site.package
    assert package is not None and package.folder == str(folder)


def test_image_is_from_the_line_then_a_file_then_the_variable(folder: Path) -> None:
    assert make_reach(folder, PSLAUNCH_IMAGE="v").image == "i:1"
    assert make_reach(folder, image="", PSLAUNCH_IMAGE="v").image == "v"
    (folder / "pslaunch.toml").write_text("[k8s]\nimage = 'f'\n")
    assert make_reach(folder, image="", PSLAUNCH_IMAGE="v").image == "f"


def test_missing_image_names_the_file_that_makes_one(folder: Path) -> None:
    with pytest.raises(SpecError, match=r"no image: give --image=NAME.*Dockerfile") as missing:
        make(folder, image="")
    named = re.search(r"\S+Dockerfile", str(missing.value))
    assert named is not None and Path(named[0]).is_file()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--cpu=2 cores", "--cpu='2 cores' is no quantity"),
        ("--memory=4GB", "--memory='4GB' is no quantity"),
        ("--memory=0", "--memory='0' is no quantity"),
        ("--shm=-1Gi", "--shm='-1Gi' is no quantity"),
        ("--gpu=-1", "--gpu=-1: expected a whole number from 0"),
        ("--node_selector=disk", "--node_selector='disk' is no label of nodes"),
        ("--node_selector=a b=c", "is no label of nodes"),
        ("--job_name=My_Job", "--job_name='My_Job' is no name of objects"),
        ("--job_name=1st", "--job_name='1st' is no name of objects"),
        (f"--job_name={'x' * 59}", "has 59 characters; with 1 pods it may have 58"),
        ("--image=two words", "--image='two words' is no name of an image"),
        ("--image_pull_secret=No!", "--image_pull_secret='No!' is no name of an object"),
        ("--service_account=_", "--service_account='_' is no name of an object"),
        ("--pvc=data", "--pvc='data': expected NAME:PATH"),
        ("--pvc=data:relative", "expected NAME:PATH"),
        ("--pvc=data:/workspace/x", "/workspace in the pods is in use already"),
        ("--ttl=0", "--ttl=0"),
        ("--use_gpu=1", "--use_gpu=1"),
    ],
)
def test_invalid_value_is_refused_by_option_and_value(folder: Path, word: str, said: str) -> None:
    image = "" if word.startswith("--image=") else "i:1"
    with pytest.raises(SpecError) as refused:
        make(folder, word, image=image)
    assert said in str(refused.value)


def test_repeated_selector_or_path_is_refused(folder: Path) -> None:
    with pytest.raises(SpecError, match="a is given twice"):
        make(folder, "--node_selector=a=1", "--node_selector=a=2")
    with pytest.raises(SpecError, match="/data in the pods is in use already"):
        make(folder, "--pvc=one:/data", "--pvc=two:/data/more")


def test_given_values_reach_the_pods(folder: Path) -> None:
    words = (
        "--cpu=500m",
        "--memory=1.5Gi",
        "--gpu=2",
        "--node_selector=example.com/disk=ssd",
        "--pvc=d:/data/",
    )
    reach = make_reach(folder, *words)
    assert (reach.cpu, reach.memory, reach.gpu) == ("500m", "1.5Gi", 2)
    assert (reach.node_selector, reach.claims) == ({"example.com/disk": "ssd"}, (("d", "/data"),))


@given(st.text(max_size=8))
def test_accepted_quantity_is_a_number_and_a_unit(text: str) -> None:
    if _QUANTITY.fullmatch(text):
        number = re.fullmatch(r"([0-9.]+)[A-Za-z]*", text)
        assert number is not None and float(number[1]) > 0
