"""The job of `pslaunch k8s`: pods, names, image and resources, and values that are refused with a remedy."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.backends.k8s.spec import FORMS, Access, K8sReach, make_k8s_spec
from pslaunch.errors import SpecError
from pslaunch.node.job import place
from pslaunch.options.spec import JobSpec
from pslaunch.plan import make_plan
from pslaunch.runtime.shared.env import PSERVER, TRAINER
from support.command_line import make_line


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program."""
    path = tmp_path / "My Job"
    path.mkdir()
    (path / "train.py").write_text("import paddle\n")
    return path


def make(folder: Path, *words: str, image: str = "i:1", run: str = "", **environ: str) -> JobSpec:
    words = (*words, f"--image={image}") if image else words
    return make_k8s_spec(make_line("k8s", words, folder, environ), run)


def make_reach(folder: Path, *words: str, image: str = "i:1", **environ: str) -> K8sReach:
    reach = make(folder, *words, image=image, **environ).site.reach
    assert isinstance(reach, K8sReach)
    return reach


def test_manifests_of_an_earlier_render_are_not_sent(folder: Path) -> None:
    for words, skipped in (("-o made/here", ("made/here",)), ("-o ..", ()), ("", ())):
        package = make(folder, *words.split()).site.package
        assert package and package.skip == skipped


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
    assert spec.site.package and spec.site.package.folder == str(folder)


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
        ("--cpu=2 cores", "'2 cores': expected a number above 0, such as 2, 0.5 or 500m; did you mean 2?"),
        ("--cpu=0.0001", "--cpu='0.0001': expected a number above 0"),
        ("--cpu=1,5", "did you mean 1.5?"),
        ("--memory=4GB", "expected a number above 0 with its unit, such as 4Gi or 500M; did you mean 4G?"),
        ("--memory=500m", "did you mean 500Mi?"),
        ("--memory=100", "did you mean 100Mi?"),  # bytes, by which no program begins
        ("--memory=8", "did you mean 8Gi?"),
        ("--memory=4gi", "did you mean 4Gi?"),
        ("--memory=512mb", "did you mean 512Mi?"),
        ("--memory=4KB", "did you mean 4Ki?"),
        ("--memory=1,500 MiB", "did you mean 1500Mi?"),
        ("--memory=0", "--memory='0': expected a number above 0"),
        ("--gpus=-1", "--gpus='-1': expected a number of GPUs"),
        ("--gpus=0,1", "--gpus='0,1': the scheduler chooses the devices; give their number"),
        ("--gpus=1", "--gpus=1: the bundled runtime of this build has CPU kernels only"),
        ("--gpu=1", "unknown option --gpu; did you mean --gpus?"),
        ("--node_selector=disk", "--node_selector='disk': expected a label of nodes: NAME=VALUE"),
        ("--node_selector=a b=c", "expected a label of nodes"),
        (f"--node_selector={'a' * 64}=c", "expected a label of nodes"),
        ("--job_name=My_Job", "small letters, digits and dashes, first a letter; did you mean my-job?"),
        ("--job_name=1st", "did you mean job-1st?"),
        (f"--job_name={'x' * 49}", "Kubernetes adds the number of each pod, so at most 48 fit"),
        ("--image=two words", "--image='two words': expected the name of an image"),
        ("--image_pull_secret=No!", "--image_pull_secret='No!': expected the name of an object"),
        ("--image_pull_secret=a..b", "expected the name of an object"),
        ("--service_account=_", "--service_account='_': expected the name of an object"),
        *(
            (f"--namespace={name}", f"--namespace={name!r}: expected at most 63 small letters")
            for name in ("Team", "", "-t", "a.b", "n" * 64)
        ),
        ("--queue=a.b", "--queue='a.b': expected at most 63 small letters, digits and dashes"),
        ("--pvc=data", "--pvc='data': expected NAME:PATH"),
        ("--pvc=data:relative", "expected NAME:PATH"),
        ("--pvc=data:/workspace/x", "/workspace in the pods is in use already"),
        ("--save_dir=/models", "is read-only in the pods, or lost with them; give --pvc=NAME:/models"),
        ("--save_dir=/tmp/x", "/tmp/x is read-only in the pods, or lost with them"),
        ("--job_workspace=code", "expected the absolute path of a folder in the image"),
        ("--job_workspace=/tmp/code", "/tmp in the pods is not the image's; choose another folder of it"),
        ("--server_cpu=1", "--server_cpu=1 has no effect without --separate"),
        ("--deadline=0", "--deadline=0"),
        ("--ttl=0", "--ttl=0"),
        ("--use_gpu=1", "--use_gpu=1"),
        ("--filename=job.yaml", "--filename is not supported: the manifests come from the options"),
        ("--replicas=3", "--replicas is not supported: --nodes is the number of pods"),
        ("--limits=cpu=1", "--limits is not supported: --cpu and --memory are requests and limits"),
    ],
)
def test_invalid_value_is_refused_by_option_and_value(folder: Path, word: str, said: str) -> None:
    image = "" if word.startswith("--image=") else "i:1"
    with pytest.raises(SpecError) as refused:
        make(folder, word, image=image)
    assert said in str(refused.value)


def test_program_without_pservers_has_no_pod_for_them(folder: Path) -> None:
    (folder / "pslaunch.toml").write_text("[k8s]\nseparate = true\n")
    assert make_reach(folder).server_pods == 1
    (folder / "train.py").write_text("import torch\n")
    assert make_reach(folder).server_pods == 0


def test_repeated_value_is_refused(folder: Path) -> None:
    with pytest.raises(SpecError, match="a is given twice"):
        make(folder, "--node_selector=a=1", "--node_selector=a=2")
    with pytest.raises(SpecError, match="/data in the pods is in use already"):
        make(folder, "--pvc=one:/data", "--pvc=two:/data/more")


def test_bytes_that_a_program_can_use_need_no_unit(folder: Path) -> None:
    assert make_reach(folder, "--memory=4000000000").memory == "4000000000"


def test_given_values_reach_the_pods(folder: Path) -> None:
    words = "--cpu=500m --memory=1.5Gi --gpus=2 --server=script --node_selector=example.com/disk=ssd "
    words += "--pvc=d:/data/ --deadline=60 -n=team --kubeconfig=/k --context=big"
    reach = make(folder, *words.split(), run="abcdef").site.reach
    assert (reach.cpu, reach.memory, reach.gpus, reach.deadline_s) == ("500m", "1.5Gi", 2, 60.0)
    few = ("--server=script", "--gpus_per_trainer=2", "--nodes=2", "--worker_num=5")
    assert make_reach(folder, *few).gpus == 6, "three trainers are in one pod"
    assert (reach.node_selector, reach.claims) == ({"example.com/disk": "ssd"}, (("d", "/data"),))
    assert reach.access == Access("/k", "big", "team")
    assert make_reach(folder).access == Access()


def test_wheels_are_for_images_without_pslaunch(folder: Path) -> None:
    paths = [folder / f"p-1-cp311-abi3-linux_{machine}.whl" for machine in ("x86_64", "aarch64")]
    for path in paths:
        zipfile.ZipFile(path, "w").close()
    words = [f"--wheel={path.name}" for path in paths]
    assert make_reach(folder, *words).wheels == tuple(map(str, paths))
    assert make_reach(folder, "--image_has_pslaunch").has_pslaunch
    with pytest.raises(SpecError, match="has no effect with --image_has_pslaunch"):
        make(folder, *words, "--image_has_pslaunch")
    with pytest.raises(SpecError, match="is not the file of a wheel"):
        make(folder, "--wheel=train.py")


def test_separate_gives_each_process_a_pod_and_trainers_the_first_ones(folder: Path) -> None:
    words = ("--separate", "--server_num=2", "--worker_num=3", "--cpu=2", "--server_memory=8Gi")
    spec = make(folder, *words)
    assert [(node.id, node.name, node.roles) for node in spec.site.nodes] == [
        (0, "my-job-0", (TRAINER,)), (1, "my-job-1", (TRAINER,)), (2, "my-job-2", (TRAINER,)),
        (3, "my-job-server-0", (PSERVER,)), (4, "my-job-server-1", (PSERVER,)),
    ]  # fmt: skip
    placed = place(make_plan(spec, "j"), spec.site.nodes)
    assert [(p.key, p.node) for p in placed.processes] == [
        ("pserver/0", 3), ("pserver/1", 4), ("trainer/0", 0), ("trainer/1", 1), ("trainer/2", 2),
    ]  # fmt: skip
    reach = spec.site.reach
    assert (reach.server_pods, reach.server_cpu, reach.server_memory, reach.memory) == (2, "", "8Gi", "")


@pytest.mark.parametrize("word", ["--nodes=2", "--server_num=0"])
def test_separate_refuses_an_option_that_contradicts_it(folder: Path, word: str) -> None:
    with pytest.raises(SpecError, match="has no effect with"):
        make(folder, "--separate", word)


@pytest.mark.parametrize(
    ("words", "linger_s", "lease_s"),
    [
        ((), 120.0, 120.0),
        (("--pvc=d:/data",), 120.0, 120.0),
        (("--detach",), 600.0, 0.0),
        (("--detach", "--pvc=d:/data"), 0.0, 0.0),
        (("--detach", "--linger=9"), 9.0, 0.0),
    ],
)
def test_pods_stay_for_their_files_as_long_as_their_launcher_needs(
    folder: Path, words: tuple[str, ...], linger_s: float, lease_s: float
) -> None:
    reach = make(folder, *words, run="abc").site.reach
    assert (reach.linger_s, reach.lease_s) == (linger_s, lease_s)


@pytest.mark.parametrize("word", ["--detach", "--linger=0"])
def test_job_without_files_for_a_launcher_refuses_folders_for_them(folder: Path, word: str) -> None:
    spec = make(folder, word, run="abc")
    assert spec.fetch_output is None and spec.fetch_logs is None
    for name in ("output", "logs"):
        with pytest.raises(SpecError, match=f"--fetch_{name}=here has no effect with {word}"):
            make(folder, word, f"--fetch_{name}=here", run="abc")


def test_workspace_of_the_image_is_sent_nowhere(folder: Path) -> None:
    spec = make(folder, "--job_workspace=/opt/code", "--server=script")
    assert spec.site.package is None
    (node,) = spec.site.nodes
    assert (node.workspace, node.dispatched) == ("/opt/code", False)
    assert "kubectl describe pod" in spec.draft.lost_advice
    assert node.output_dir == f"/workspace/{spec.draft.name}/output"  # the image is read-only
    for word in ("--shard=data/{}", "--link=data=/data"):
        with pytest.raises(SpecError, match="where nothing is sent"):
            make(folder, "--job_workspace=/opt/code", word)


def test_models_are_saved_in_a_claim_or_in_the_workspace(folder: Path) -> None:
    package = make(folder, "--save_dir=/data/models", "--pvc=d:/data", "--link=data=/data").site.package
    assert package and package.links == {"data": "/data"}
    make(folder, "--save_dir=models")
    with pytest.raises(SpecError, match="/opt/code/models is read-only"):
        make(folder, "--save_dir=models", "--job_workspace=/opt/code")


@pytest.mark.parametrize(("words", "here"), [((), "My Job"), (("--job_workspace=/opt/code",), "elsewhere")])
def test_run_has_names_of_its_own_and_results_in_the_workspace_or_the_current_folder(
    folder: Path, words: tuple[str, ...], here: str
) -> None:
    cwd = folder.parent / here
    cwd.mkdir(exist_ok=True)
    spec = make(cwd, *words, run="0a1b2c")
    name = "code-0a1b2c" if words else "my-job-0a1b2c"
    assert (spec.draft.name, spec.site.nodes[0].name) == (name, f"{name}-0")
    assert (spec.fetch_output, spec.fetch_logs) == (cwd / "output", cwd / "log")


@given(st.sampled_from(["cpu", "memory"]), st.text(alphabet="0123456789.mkMGTPEi-e ", max_size=8))
def test_accepted_quantity_is_a_number_and_a_unit(kind: str, text: str) -> None:
    if re.fullmatch(FORMS[kind].pattern, text):
        number = re.fullmatch(r"([0-9.]+)[A-Za-z]*", text)
        assert number is not None and float(number[1]) > 0
