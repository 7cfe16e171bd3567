"""The job of `pslaunch fabric` from what was given: hosts, what is sent, every wrong value by name."""

from __future__ import annotations

import contextlib
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from pslaunch.backends.fabric.spec import FabricReach, make_fabric_spec
from pslaunch.backends.gather import read_command
from pslaunch.backends.registry import OWN, find_face, get_options
from pslaunch.errors import SpecError
from pslaunch.node.job import Count, Node, Package, Plan
from pslaunch.options.detect import check_needs
from pslaunch.options.hosts import Host
from pslaunch.options.kinds import Seconds
from pslaunch.options.spec import JobSpec, Site, list_notes
from pslaunch.plan import make_plan
from support.command_line import make_line, make_spec

CONF = """
HOSTS = ["root@n1", "n2:22", "root@n1"]
ROOT_DIR = "/data/jobs"
PADDLE_NIC = "eth0"
PADDLE_PORT = 7164
PADDLE_USE_GPU = "False"
LD_LIBRARY_PATH = "/usr/lib64"
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a package `ws`, a wheel and a wheelhouse."""
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/train.py").write_text("import pslaunch.runtime\n")
    zipfile.ZipFile(tmp_path / "p.whl", "w").close()
    (tmp_path / "house").mkdir()
    return tmp_path


def make(here: Path, *line: str, conf: str = "") -> JobSpec:
    if conf:
        (here / "conf.py").write_text(conf)
    return make_spec("fabric", line, here, {"HOME": "/h"})


WS = "--job_dispatch_package=ws"


def test_a_published_conf_and_a_package(here: Path) -> None:
    hosts = Host("n1", "root", None, 2, "conf.py:2"), Host("n2", None, 22, 1, "conf.py:2")
    nodes = Node(0, "root@n1", "", ranks=2, dispatched=True), Node(1, "n2:22", "", dispatched=True)
    assert make(here, WS, conf=CONF) == JobSpec(
        draft=Plan(
            backend="fabric", name="ws", port=7164, added_env={"LD_LIBRARY_PATH": "/usr/lib64"}, nic="eth0"
        ),
        workspace=(here / "ws").resolve(),
        program="train.py",
        site=Site(
            tuple(node.place_in("/data/jobs/ws") for node in nodes),
            Count("per_rank", 1),
            package=Package(str((here / "ws").resolve())),
            reach=FabricReach(hosts),
        ),
        python=None,
    )


def test_fetch_options_of_a_file_for_a_detached_job_are_noted(here: Path) -> None:
    (here / "pslaunch.toml").write_text("fetch_output = 'model'\nfetch_logs = 'logs'\n")

    def note(*line: str) -> str:
        ours = make_line("fabric", [WS, "--hosts=a", *line], here, {})
        return "\n".join(list_notes(make_fabric_spec(ours), ours.given, ours.split))

    assert "pslaunch.toml: fetch_output=model has no effect with --detach" in note("--detach")
    assert re.search("pslaunch.toml: fetch_logs=logs.*fetch JOB logs", note("--detach"))
    assert "fetch" not in note()


def test_defaults_without_a_conf(here: Path) -> None:
    spec = make(here, WS, "--hosts=a,b[1-2]")
    assert spec.site.nodes[0].workspace == "~/pslaunch/ws" and spec.draft.nic == ""
    assert [node.name for node in spec.site.nodes] == ["a", "b1", "b2"]
    assert (spec.server_num, spec.worker_num, spec.command) == (None, None, ("{python}", "train.py"))


def test_options_override_conf(here: Path) -> None:
    (here / "ws/train.py").write_text("import another_runtime\n")  # which may have a GPU
    line = [
        "--hosts=x", "--hosts=y", "--root_dir=~/r/", "--nics=ib0", "--port=8000", "--job_name=j",
        "--server_num=3", "--worker_num=4", "--env=LD_LIBRARY_PATH=/mine", "--python=python3.12",
        "--log_dir=/logs", "--max_connections=2", "--agent_python=/opt/py", "--connect_timeout=3",
        "--host_key_policy=accept-new", "--use_gpu=1", "--server=script",
    ]  # fmt: skip
    spec = make(here, WS, *line, conf=CONF)
    assert spec.site.reach == FabricReach(
        hosts=(Host("x", where="--hosts"), Host("y", where="--hosts")),
        agent_python="/opt/py", connect_timeout_s=3.0, max_connections=2, host_key_policy="accept_new",
    )  # fmt: skip
    assert (spec.site.nodes[1].workspace, spec.draft.nic) == ("~/r/j", "ib0")
    assert (spec.draft.port, spec.draft.name, spec.draft.use_gpu) == (8000, "j", True)
    assert (spec.server_num, spec.worker_num) == (3, 4)
    assert spec.draft.added_env == {"LD_LIBRARY_PATH": "/mine"}
    assert (spec.command[0], spec.log_dir) == ("python3.12", Path("/logs"))


def test_slots_are_trainers_of_a_host_in_a_list_or_a_hostfile(here: Path) -> None:
    (here / "machines").write_text("n1 slots=2\nme@n2:2222 slots=3\n")
    for line, ranks in (
        (["--hosts=n1:2,n2"], [2, 1]),
        (["--hostfile=machines"], [2, 3]),
        (["--hostfile=machines", "--exclude=n1"], [3]),
    ):
        spec = make(here, WS, *line, conf=CONF)
        assert [node.ranks for node in spec.site.nodes] == ranks
    check_error(
        "--hosts=a and --hostfile=machines are both given", here, WS, "--hosts=a", "--hostfile=machines"
    )
    check_error("--hostfile='gone' can't be read: No such file", here, WS, "--hostfile=gone")


def test_include_and_exclude_choose_among_the_hosts(here: Path) -> None:
    spec = make(here, WS, "--hosts=n[1-9]", "--include=n[2-5]@n7", "--exclude=n3", "--exclude=n4")
    assert [host.name for host in spec.site.reach.hosts] == ["n2", "n5", "n7"]


def test_a_workspace_that_the_hosts_have(here: Path) -> None:
    spec = make(here, "--hosts=a", "--job_workspace=~/there/w/", "sub/t.py", "--x")
    assert (spec.workspace, spec.program) == (Path("~/there/w"), "sub/t.py")
    assert (spec.site.package, spec.draft.name) == (None, "w")
    assert make(here, "--hosts=a", "--job_workspace=/w", "/w/x/../run").command == ("./run",)


@pytest.mark.parametrize(
    ("program", "command"),
    [("sh -c exit", "/usr/bin/env sh -c exit"), ("./sh", "./sh"), ("-m a.b", "{python} -m a.b")],
)
def test_command_or_module_in_a_workspace_of_the_hosts_is_as_elsewhere(
    here: Path, program: str, command: str
) -> None:
    plan = make_plan(make(here, "--hosts=a", "--job_workspace=/gone", *program.split()), "JOB")
    assert (plan.server, " ".join(plan.roles[-1].argv)) == ("none", command)


def test_files_here_do_not_judge_a_workspace_of_the_hosts(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "ws/train.py").write_text("# pslaunch: needs gone.bin: make it\nimport (\n")
    program = ["train.py", "--hosts=b"]
    line = make_line("fabric", ["--hosts=a", f"--job_workspace={here}/ws", *program], here, {})
    monkeypatch.chdir(here)
    read_command(find_face("fabric"), "fabric", line.split, print)
    assert "--hosts" not in capsys.readouterr().out
    line = make_line("fabric", ["--hosts=a", WS, *program], here, {})
    with pytest.raises(SpecError, match="line 2: invalid syntax"):
        read_command(find_face("fabric"), "fabric", line.split, print)


def test_needed_files_of_links_and_data_shards_may_be_only_on_the_hosts(here: Path) -> None:
    package = Package(str(here), links={"big": "/mnt"}, data_shards=("part-{:02d}",))
    for name, found in (("./big/x", True), ("part-07", True), ("bigger", False), ("part-7", False)):
        (here / "ws/train.py").write_text(f"# pslaunch: needs {name}: make it\n")
        with contextlib.nullcontext() if found else pytest.raises(SpecError, match="make it"):
            check_needs(here / "ws", "train.py", package)


def test_sent_prepared_and_fetched_files(here: Path) -> None:
    spec = make(
        here, WS, "--hosts=a", "--shard=data/*-{:05d}", "--shard=x/{}", "--link=data/big=/mnt/big",
        "--link=./m=/m", "--install", "--wheel=p.whl", "--wheelhouse=house",
        "--setup=module load x; y", "--setup=true",
        "--fetch_output=out", "--fetch_logs=deep/logs",
    )  # fmt: skip
    assert spec.site.package == Package(
        str(here / "ws"), data_shards=("data/*-{:05d}", "x/{}"), links={"data/big": "/mnt/big", "m": "/m"}
    )
    assert (spec.install, spec.wheel, spec.wheelhouse) == (True, here / "p.whl", here / "house")
    assert spec.draft.setup == ("module load x; y", "true")
    assert (spec.fetch_output, spec.fetch_logs) == (here / "out", here / "deep/logs")


def check_error(told: str, here: Path, *line: str, conf: str = "") -> None:
    with pytest.raises(SpecError, match=re.escape(told)):
        make(here, *line, conf=conf)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ([], "no hosts: there is no conf.py with HOSTS"),
        (["--hosts=a b"], "--hosts: 'a b': 'a b' is not a host name"),
        (["--hosts=a", "--include=b"], "--include=b: b is not among the hosts: a"),
        (["--hosts=a", "--root_dir=jobs"], "--root_dir='jobs' is not a path on the hosts"),
        (["--hosts=a", "--log_dir=log"], "--log_dir='log' is not a path on the hosts"),
        (["--hosts=a", "--nics=eth0,eth1"], "--nics='eth0,eth1' is not the name of one"),
        (["--hosts=a", "--nics=averyverylongname"], "--nics='averyverylongname'"),
        (["--hosts=a", "--python="], "--python=''"),
        (["--hosts=a", "--connect_timeout=0"], "--connect_timeout=0: expected at least 0.1 seconds"),
        (["--hosts=a", "--max_connections=0"], "--max_connections=0: expected a whole number from 1"),
        (["--hosts=a", "--host_key_policy=yes"], "'yes': expected one of ask, accept_new, reject"),
        (["--hosts=a", "--job_workspace=/w"], "=/w and --job_dispatch_package=ws are both given"),
        (["--hosts=a", "gone.py"], "no program 'gone.py'"),
        (["--hosts=a", "out.py"], "is not in"),
        (["--hosts=a", "--shard=data/*"], "--shard='data/*' has 0 places for a number"),
        (["--hosts=a", "--shard={}{}"], "--shard='{}{}'"),
        (["--hosts=a", "--shard={:q}"], "--shard='{:q}'"),
        (["--hosts=a", "--shard=../{}"], "'../0' is not inside the workspace"),
        (["--hosts=a", "--shard=output/{}"], "output in the workspace is pslaunch's own"),
        (["--hosts=a", "--link=x=y"], "expected NAME=PATH with an absolute path"),
        (["--hosts=a", "--link=/x=/y"], "'/x' is not inside the workspace"),
        (["--hosts=a", "--link=.pslaunch/x=/y"], ".pslaunch in the workspace is pslaunch's own"),
        (["--hosts=a", "--link=x=/y", "--link=./x=/z"], "./x is given twice"),
        (["--hosts=a", "--wheel=p.whl"], "--wheel=p.whl has no effect without --install"),
        (["--hosts=a", "--install", "--wheel=ws/train.py"], "'ws/train.py' is not the file of a wheel"),
        (["--hosts=a", "--install", "--wheelhouse=nowhere"], "--wheelhouse='nowhere': No such file"),
        (["--hosts=a", "--install", "--python=/p"], "--python=/p has no effect with --install"),
        (["--hosts=a", "--setup="], "--setup='' is empty"),
        (["--hosts=a", "--fetch_logs=p.whl"], "--fetch_logs='p.whl' is not a folder"),
        (["--hosts=a", "--fetch_output=o", "--detach"], "--fetch_output=o has no effect with --detach"),
        (["--hosts=a", "--connect"], "--connect has no effect without --dry_run"),
        (
            ["--hosts=a", "--detach", "--head=launcher"],
            "--head=launcher has no effect with --detach",
        ),
        (["--hosts=a", "--server_num=0", "--ports_num=2"], "--ports_num=2 has no effect without pservers"),
        (["--hosts=a", "--use_gpu=1"], "--use_gpu=1: the bundled runtime"),
        (["--hosts=a,b", "--server_num=3", "--port=65535"], "--port=65535: 2 pservers need ports"),
        (["--hosts=a,a,b", "--port=65534", "--ports_num=2"], "--port=65534: 2 pservers need"),
    ],
)
def test_wrong_value_is_reported_with_its_option(here: Path, line: Sequence[str], told: str) -> None:
    (here / "out.py").touch()
    check_error(told, here, WS, *line)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["--hosts=a"], "give --job_dispatch_package=DIR to send a folder to the hosts"),
        (["--hosts=a", "train.py"], "or --job_workspace=DIR for a folder on them"),
        (["--hosts=a", "--job_workspace=w"], "--job_workspace='w' is not a path on the hosts"),
        (["--hosts=a", "--job_workspace=/w", "../x.py"], "'../x.py' is not in the workspace /w of the hosts"),
        (["--hosts=a", "--job_workspace=/w", "--shard=x{}"], "--shard=x{} has no effect where nothing is"),
        (["--hosts=a", "--job_workspace=/w", "--root_dir=/r"], "--root_dir=/r has no effect where nothing"),
    ],
)
def test_wrong_workspace_is_reported(here: Path, line: Sequence[str], told: str) -> None:
    check_error(told, here, *line)


@pytest.mark.parametrize(
    ("conf", "told"),
    [
        ("PADDLE_PORT = 70000", "conf.py:1: PADDLE_PORT=70000: expected a whole number from 1 to 65535"),
        ("\nPADDLE_USE_GPU = 'maybe'", "conf.py:2: PADDLE_USE_GPU='maybe': expected true or false"),
        ("ROOT_DIR = 'jobs'", "conf.py:1: ROOT_DIR='jobs' is not a path on the hosts"),
        ("PADDLE_NIC = ''", "conf.py:1: PADDLE_NIC='' is not the name of one network interface"),
        ("JOB_NAME = 'a/b'", "conf.py:1: JOB_NAME='a/b' is not a valid folder name"),
        ("HOSTS = ['a', 'b:x']", "conf.py:1: 'b:x': expected a port from 1 to 65535, not 'x'"),
        ("TRAINING_ROLE = 'x'", "conf.py:1: TRAINING_ROLE is set by pslaunch itself"),
        ("A = 'x\\0'", "conf.py:1: A='x\\x00': a variable can't hold a zero byte"),
        ("PADDLE_PORT = 65535\nPADDLE_PORTS_NUM = 9", "conf.py:1: PADDLE_PORT=65535: 1 pservers need"),
        ("X = 1", "no hosts: conf.py has no HOSTS"),
    ],
)
def test_wrong_value_of_conf_is_reported_with_its_line(here: Path, conf: str, told: str) -> None:
    line = [] if "HOSTS" in conf or conf == "X = 1" else ["--hosts=a"]
    check_error(told, here, WS, *line, conf=conf)


@pytest.mark.parametrize(
    ("toml", "line", "field", "value"),
    [
        ("install = true", ["--install=false"], "install", False),
        ("detach = true", ["--detach=0"], "head", "launcher"),
        ("head = 'launcher'", ["--detach"], "head", "node"),
        ("head = 'launcher'\ndetach = true", ["--head=node"], "head", "node"),
        ("connect = true\ndry_run = true", ["--dry_run=off", "--connect=off"], "detach", False),
        ("ports_num = 2", ["--server_num=0", "--worker_num=1"], "server_num", 0),  # no effect, no error
    ],
)
def test_a_flag_of_the_line_wins_over_the_file(
    here: Path, toml: str, line: Sequence[str], field: str, value: object
) -> None:
    (here / "pslaunch.toml").write_text(toml)
    assert getattr(make(here, WS, "--hosts=a", *line), field) == value


def test_file_values_are_named_by_their_place(here: Path) -> None:
    (here / "pslaunch.toml").write_text("shard = ['a-{}']\n[fabric]\nlink = 'x=/y'\ninclude = 'a'\n")
    package = make(here, WS, "--hosts=a,b").site.package
    assert package and package.data_shard_label == "pslaunch.toml: shard"
    assert package.link_label == "pslaunch.toml: [fabric].link"
    with pytest.raises(SpecError, match=r"^pslaunch.toml: \[fabric\].include=a: a is not among the hosts: b"):
        make(here, WS, "--hosts=b")
    (here / "pslaunch.toml").write_text("\ninstall = true\n")
    with pytest.raises(SpecError, match=r"^pslaunch.toml: install needs --job_dispatch_package"):
        make(here, "--hosts=b", "--job_workspace=/w")


def test_every_default_of_the_table_is_the_jobs(here: Path) -> None:
    spec = make(here, WS, "--hosts=a")
    for name, option in get_options("fabric").items():
        places = (spec, spec.draft, spec.draft.limits, spec.site.reach)
        found = [getattr(place, option.field) for place in places if hasattr(place, option.field)]
        if found and option.default is not None:
            assert found[0] == option.default, name


def test_units_are_in_the_names() -> None:
    for option in [option for name in OWN for option in find_face(name).list_options()]:
        assert option.field.endswith("_s") == isinstance(option.kind, Seconds)
        assert not isinstance(option.kind, Seconds) or "econds" in option.help
