"""Failures of mpirun and its hosts: each has its code, its host, and a remedy; nothing is started."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.jobs import FabricPlace, finished, succeeded
from support.openmpi import MpiPlace, get_prefix, share_mpi4py
from support.process import started
from testbed import Hosts

THREE = ("--worker_num=3", "--grace=1", "--connect_timeout=2")
ALONE = ("--server_num=0", *THREE)
SHOW = """
import os
print(os.uname().nodename, os.environ["OMPI_COMM_WORLD_RANK"], os.environ["PADDLE_TRAINER_ID"])
"""


@pytest.fixture
def package(workspace: Path) -> Path:
    (workspace / "train.py").write_text(SHOW)
    return workspace


def test_ranks_are_trainers_on_their_hosts(hosts: Hosts, package: Path, major: int) -> None:
    (package / "machines").write_text("node1 # first\n\nroot@node2 slots=2\n")
    job = succeeded(MpiPlace(hosts, major), package, *ALONE, "-hostfile", str(package / "machines"))
    said = [job.lines(f"trainer/{rank}") for rank in range(3)]
    assert said == [["node1 0 0"], ["node2 1 1"], ["node2 2 2"]]


def test_hosts_may_be_ipv6_addresses(hosts: Hosts, package: Path) -> None:
    listed = ",".join(f"[{host.address6}]" for host in hosts)
    job = succeeded(MpiPlace(hosts, 5), package, *ALONE, "-H", listed)
    assert [job.lines(f"trainer/{rank}") for rank in range(3)] == [
        [f"node{k} {k - 1} {k - 1}"] for k in (1, 2, 3)
    ]


def remove_daemon(hosts: Hosts) -> None:
    hosts[1].remove_programs("orted", "/usr/bin")
    if get_prefix(hosts).exists():
        hosts[1].remove_programs("prted", str(get_prefix(hosts) / "bin"))


def refuse_key(hosts: Hosts) -> None:
    (hosts[1].home / ".ssh/authorized_keys").write_text("")


def leave(_hosts: Hosts) -> None:
    pass


def break_python(hosts: Hosts) -> None:
    for host in hosts:
        (host.home / "python3.11").symlink_to("/usr/bin/python3")
    (hosts[1].home / "python3.11").unlink()
    (hosts[1].home / "python3.11").write_text("#!/bin/sh\necho no module named encodings >&2\nexit 1\n")
    (hosts[1].home / "python3.11").chmod(0o755)


NO_KEYS = "-o BatchMode=yes -o UserKnownHostsFile=/dev/null"
FAILURES: dict[str, tuple[Callable[[Hosts], None], list[str], int, str]] = {
    "unknown host": (
        leave, ["-H", "node1,node1x,node3"], codes.HOST,
        "node1x: Could not resolve hostname .*; correct the hostfile, .* test with: ssh node1x true",
    ),
    "dead host": (
        lambda hosts: hosts[1].crash(), [], codes.HOST, "node2: connect to host .*; test with: ssh node2 true"
    ),
    "hanging host": (
        lambda hosts: hosts[1].freeze(), [], codes.HOST, "node2: Connection timed out during banner .*"
    ),
    "changed key": (
        lambda hosts: hosts[1].change_key(), [], codes.HOST, "node2: Host key for .* has changed"
    ),
    "unknown key": (
        leave, ["--mca", "plm_rsh_args", NO_KEYS], codes.HOST,
        "node[123].*: No ED25519 host key is known for .*; to see its key and accept it: ssh node",
    ),
    "refused key": (
        refuse_key, [], codes.RIGHTS, "node2: Permission denied .*; add your public key: ssh-copy-id node2"
    ),
    "no daemon": (
        remove_daemon, [], codes.PREFLIGHT,
        "node2: (or|pr)ted of Open MPI can't be started there: .*--prefix DIR",
    ),
    "no Python": (
        lambda hosts: hosts[1].remove_python(), [], codes.PREFLIGHT,
        "no Python 3.9 or later on node2: .*--agent_python",
    ),
    "launcher blocked": (
        lambda hosts: hosts[1].block_ports(9465), ["--port=9464"], codes.PREFLIGHT,
        "node2.*port 9465 of .*Permission denied",  # of no other test
    ),
    "launcher dropped": (
        lambda hosts: hosts[1].drop_packets(9475, 9475), ["--port=9474"], codes.PREFLIGHT,
        r"node2 can't reach the launcher at port 9475 of \S+ \(timed out\).* --nics",  # of no other test
    ),
    "all dropped": (
        lambda hosts: hosts[1].drop_packets(1024, 65534), [], codes.PREFLIGHT,
        r"node2 can't reach mpirun at port \d+ of \S+ \(timed out\).*firewalls, or .* --mca \w+_if_include",
    ),
    "broken Python": (
        break_python, ["--agent_python=~/python3.11"], codes.PREFLIGHT,
        "node2: its Python does not run: no module named encodings; give another one: --agent_python PATH",
    ),
    "mapping": (leave, ["--map-by", "nodx"], codes.USAGE, "'nodx'; did you mean node"),
    "option": (leave, ["--mpirun_args=--frobnicate"], codes.USAGE, "has no option --frobnicate"),
    "network": (
        leave, ["--nics=lo"], codes.PREFLIGHT,
        r"node\d can't reach the launcher at port \d+ of 127.0.0.1 .*; choose its network with --nics",
    ),
    "unlisted failure": (
        leave, ["--mca", "odls", "absent"], codes.PREFLIGHT,
        "0 of 3 ranks connected, none from node1, node2, node3: mpirun failed: .*developer.*Not found",
    ),
    "slots": (
        leave, ["-H", "node1:1,node2:1"], codes.USAGE,
        "--worker_num=3 is more than the 2 slots of the hosts; add --oversubscribe",
    ),
}  # fmt: skip


# Words of mpirun differ between versions (tests/unit/backends/mpi has both); the rest does not.
@pytest.mark.parametrize(
    ("major", "failure"), [(4 + number % 2, failure) for number, failure in enumerate(FAILURES)]
)
def test_failure_names_host_and_remedy(hosts: Hosts, package: Path, major: int, failure: str) -> None:
    spoil, options, code, words = FAILURES[failure]
    place = MpiPlace(hosts, major)
    spoil(hosts)
    found, job = finished(place, package, *THREE, *options)
    output = job.launcher.output()
    assert found == code and re.search(words, output, re.DOTALL), (found, output)
    if failure != "slots":  # found before anything was tried
        (end,) = job.events()
        assert (end["event"], end["code"]) == ("end", code) and end["reason"] in output
        assert ("ranks connected" in output) == (failure == "unlisted failure")
        assert "dropped" not in failure or end["elapsed_s"] < 10


def test_root_needs_the_option(hosts: Hosts, package: Path, major: int) -> None:
    place = MpiPlace(hosts, major)
    place._options = tuple(option for option in place._options if option != "--allow-run-as-root")
    found, job = finished(place, package, *THREE)
    output = job.launcher.output()
    assert found == codes.USAGE and "add --allow-run-as-root" in output and "ranks connected" not in output


def test_hosts_with_another_version_are_named(hosts: Hosts, package: Path) -> None:
    """Minor versions can't be tested so: mpirun 4.1.4 takes a daemon with a library that says 4.1.9."""
    place = MpiPlace(hosts, 5)
    place._options = tuple(option for option in place._options if not option.startswith("--prefix"))
    place._options += ("--prefix=/usr",)
    found, job = finished(place, package, *THREE)
    output = job.launcher.output()
    assert found == codes.PREFLIGHT and "prted of Open MPI can't be started there" in output
    assert "install Open MPI 5.0.11 there, or give its folder on the hosts: --prefix DIR; " in output


def test_host_that_hangs_after_login_is_named(hosts: Hosts, package: Path) -> None:
    shell = hosts[1].home / "shell"
    shell.write_text("#!/bin/sh\nexec sleep infinity\n")
    shell.chmod(0o755)
    hosts[1].set_login_shell(f"{hosts[1].site.home}/shell")
    try:
        found, job = finished(MpiPlace(hosts, 5), package, *THREE)
    finally:
        hosts[1].crash()  # which ends its shell
    (end,) = job.events()  # no process was started
    assert found == codes.PREFLIGHT == end["code"]
    assert re.match(r"\d of 3 ranks connected, none from .*node2.* within 32 s; a host may", end["reason"])


def test_hosts_without_the_runtime_end_the_job_by_name(hosts: Hosts, package: Path) -> None:
    for place in (MpiPlace(hosts, 5), FabricPlace(hosts)):
        code, job = finished(place, package, "--grace=1", text="import pslaunch.runtime")
        failure = job.events()[-1]["failure"]
        assert code == codes.PREFLIGHT == failure["code"], job.launcher.output()
        assert failure["what"].startswith("pserver/") and failure["text"] == "can't run there"
        assert "--install, which brings pslaunch" in failure["advice"]


def check(hosts: Hosts, package: Path, major: int, *options: str) -> tuple[int, str]:
    """Run `pslaunch check mpi`; return its exit code and output."""
    argv = MpiPlace(hosts, major).command(package, [*THREE, *options], [])
    argv.insert(argv.index("mpi"), "check")
    with started(argv) as checking:
        return checking.wait(), checking.output()


def test_check_reports_every_host_and_starts_nothing(hosts: Hosts, package: Path, major: int) -> None:
    code, output = check(hosts, package, major, "--server_num=0")
    found = [json.loads(line) for line in output.splitlines()]
    assert code == 0 and [(one["host"], one["ok"]) for one in found] == [
        ("node1", True), ("node2", True), ("node3", True),
    ]  # fmt: skip
    assert not any((host.root / package.name).exists() for host in hosts)


def test_check_reports_the_others_beside_hosts_that_let_mpirun_fail(hosts: Hosts, package: Path) -> None:
    hosts[1].drop_packets(1024, 65534)
    code, output = check(hosts, package, 5, "--server_num=0", "--map-by", "ppr:1:node")
    found = [json.loads(line) for line in output.splitlines()]
    assert code == codes.PREFLIGHT and [(one["host"], one["ok"], bool(one["facts"])) for one in found] == [
        ("node1", True, True), ("node2", False, False), ("node3", True, True),
    ]  # fmt: skip
    (finding,) = found[1]["findings"]
    assert finding["what"] == "mpirun" and "node2 can't reach mpirun at port" in finding["text"]


def test_check_tries_mpi_over_all_hosts(hosts: Hosts, package: Path, major: int) -> None:
    (package / "train.py").write_text("from mpi4py import MPI")
    options = ("--server_num=0", share_mpi4py(hosts))
    if major == 5:
        code, output = check(hosts, package, major, *options)
        assert code == codes.OK, output
    wrong = (
        "--lost_after=4",
        "--env=OMPI_MCA_btl_tcp_if_include=127.0.0.0/8",
    )
    code, output = check(hosts, package, major, *options, *wrong)
    assert code == codes.PREFLIGHT, output
    found = [json.loads(line) for line in output.splitlines()]
    assert {finding["what"] for one in found for finding in one["findings"]} == {"no MPI"}, output


def test_check_names_missing_modules_of_each_host(hosts: Hosts, package: Path) -> None:
    code, output = check(hosts, package, 5)
    assert code == codes.PREFLIGHT and output.count("missing modules") == 3
