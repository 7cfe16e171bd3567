"""Hostfiles: accepted forms, rejected lines with their place, and the dealing of ranks."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pslaunch.backends.mpi.mpirun import make_hostfile
from pslaunch.backends.mpi.spec import MpiHost, deal_ranks
from pslaunch.errors import SpecError
from pslaunch.options.hostfile import parse_host_list, parse_hostfile
from pslaunch.options.hosts import Host
from support import others

HOSTS = st.sampled_from(["node1", "node2", "me@node3", "10.0.0.4", "fd00::2", "[::1]", "node1:22", "^node1"])
WORDS = st.sampled_from(
    ["slots=2", "slots = 3", "max_slots=9", "max-slots=4", "cpu=2", "count=1", "slots=0", "slots=x", "slot=2",
     "node2", "username=me", "# comment", "// comment", "slots", "slots_max=5", "max_slots=1"]
)  # fmt: skip
LINES = st.lists(
    st.tuples(HOSTS, st.lists(WORDS, max_size=3)).map(lambda t: " ".join([t[0], *t[1]])), max_size=4
)

GOOD_LINES = st.lists(
    st.tuples(
        st.sampled_from(["node1", "node2", "me@node3", "10.0.0.4", "fd00::2"]),
        st.sampled_from(["", " slots=2", " slots = 3 max_slots=9", " max_slots=9", " # comment"]),
    ).map("".join),
    min_size=1,
    max_size=4,
)


def read(text: str) -> dict[str, int]:
    return {one.text: one.times for one in parse_hostfile(text, "machines")}


def test_lines_name_hosts_and_their_ranks() -> None:
    text = (
        "# ours\nnode1\nme@node2 slots=4 # fast\r\n\n  node3 slots = 2 max-slots=3\n::1\n[fd00::2] cpu=1\n"
        "me@fd00::3 count=2 // last\n"
    )
    assert read(text) == {
        "node1": 1, "me@node2": 4, "node3": 2, "[::1]": 1, "[fd00::2]": 1, "me@[fd00::3]": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("node1\nnode2\nnode1\n", {"node1": 2, "node2": 1}),
        ("node1 slots=2\nnode1 slots=3\nnode1", {"node1": 6}),
        # Hosts of different domains are different.
        (
            "node1.a\nnode1.b\n10.0.0.1\n10.0.0.11\n",
            dict.fromkeys(("node1.a", "node1.b", "10.0.0.1", "10.0.0.11"), 1),
        ),
        # max_slots alone are slots too, in the first line of a host.
        ("node1 max_slots=2\nnode1\n", {"node1": 3}),
        ("node1\nnode1 max_slots=9\n", {"node1": 2}),
        ("node1 slots=3\nnode1 max_slots=9\n", {"node1": 4}),
    ],
)
def test_ranks_of_several_lines_are_added_for_each_host(text: str, ranks: dict[str, int]) -> None:
    assert read(text) == ranks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "machines names no host"),
        ("node1\nnode2 slot=2", "machines:2: 'node2 slot=2': unknown word 'slot=2'; did you mean slots=N?"),
        ("node1 fast", "machines:1: 'node1 fast': unknown word 'fast'; expected slots=N or max_slots=N"),
        ("node1 slots=0", "machines:1: 'node1 slots=0': slots=0: expected a whole number from 1 to 65535"),
        ("node1 slots=1 cpu=2", "machines:1: 'node1 slots=1 cpu=2': slots is given twice"),
        ("node1 slots=3 max_slots=2", "max_slots is smaller than slots"),
        ("node1 username=me", "'username=me' is not supported; write me@HOST"),
        ("node[1,1]", "machines:1: 'node[1,1]': expected one host a line"),
        ("node1:22", "machines:1: 'node1:22': expected a host without a port; ~/.ssh/config sets its port"),
        ("node[1-2]", "machines:1: 'node[1-2]': expected one host a line"),
        ("-oProxyCommand=x", "machines:1: '-oProxyCommand=x': '-oProxyCommand=x' is not a host name"),
        ("node1\nnode1.domain", "machines:2: 'node1.domain' and 'node1' (machines:1) may be one host: give"),
        ("me@node1.a.b slots=2\nnode2\nnode1.a", "machines:3: 'node1.a' and 'me@node1.a.b' (machines:1) may"),
        ("a@node1\nb@node1", "machines:2: 'b@node1' was named as 'a@node1' before (machines:1)"),
    ],
)
def test_rejected_line_is_named_with_its_text(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        parse_hostfile(text, "machines")


def test_hosts_may_have_ports_where_that_is_asked() -> None:
    found = parse_hostfile("me@a:2222 slots=3\nb:2\nme@a:2222\nc slots=22\n", "machines", ports=True)
    assert {one.text: one.times for one in found} == {"me@a:2222": 4, "b": 2, "c": 22}
    with pytest.raises(SpecError, match=r"machines:1: 'a:22': 22 may be a port or a number of slots"):
        parse_hostfile("a:22", "machines", ports=True)
    for word in ("b:2", "b:1"):
        with pytest.raises(SpecError, match=f"machines:2: '{word}' and slots=4 are two numbers of slots"):
            parse_hostfile(f"a\n{word} slots=4", "machines", ports=True)


def test_hosts_of_a_list_may_have_slots() -> None:
    found = parse_host_list("node1:2,me@node2,[::1]:3,fd00::2,me@[::2]:4,node1", "--host")
    assert {one.text: one.times for one in found} == {
        "node1": 3, "me@node2": 1, "[::1]": 3, "[fd00::2]": 1, "me@[::2]": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",", "--host=',' names no host"),
        ("node1:x", "--host: 'node1:x'='x': expected a whole number"),
        ("a b", "--host: 'a b': 'a b' is not a host name"),
    ],
)
def test_rejected_host_list_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        parse_host_list(text, "--host")


def count_slots(major: int, text: str, folder: Path) -> int | None:
    """Return the slots that mpirun reads in a hostfile; None if it refuses the file."""
    (folder / "machines").write_text(text)
    show, slots = {
        4: (["--display-map"], rb"Total slots allocated (\d+)"),
        5: (["--display", "allocation"], rb": slots=(\d+)"),
    }[major]
    argv = [str(others.mpirun(major)), "--allow-run-as-root", "--hostfile", "machines", "--do-not-launch"]
    done = subprocess.run([*argv, *show, "-n", "1", "true"], cwd=folder, capture_output=True, check=False)
    if b"parse error" in done.stderr:
        return None
    found = re.findall(slots, done.stdout.partition(b"@1")[0])  # 5 shows it twice
    return sum(map(int, found)) if found else None


EXAMPLES = settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@EXAMPLES
@given(lines=LINES | GOOD_LINES)
def test_slots_that_mpirun_reads_are_ours_or_refused(lines: list[str], tmp_path: Path) -> None:
    text = "\n".join([*lines, ""])
    with contextlib.suppress(SpecError):
        ours = sum(read(text).values())
        assert count_slots(4, text, tmp_path) in (ours, None)


@EXAMPLES
@given(lines=LINES | GOOD_LINES)
def test_open_mpi_5_reads_as_many_slots_in_the_file_that_it_gets(lines: list[str], tmp_path: Path) -> None:
    """In the user's own file it would count processors for a line without slots."""
    with contextlib.suppress(SpecError):
        found = parse_hostfile("\n".join([*lines, ""]), "machines")
        hosts = [MpiHost(one.name, one.user, one.times) for one in found]
        assert count_slots(5, make_hostfile(hosts), tmp_path) == sum(host.slots for host in hosts)


def make_hosts(*slots: int | None, most: int | None = None) -> list[Host]:
    return [
        Host(f"node{i}", times=n or 1, counted=n is not None, max_slots=most) for i, n in enumerate(slots)
    ]


@pytest.mark.parametrize(
    ("hosts", "ranks", "oversubscribe", "counts"),
    [
        (make_hosts(None, None, None), None, False, [1, 1, 1]),
        (make_hosts(None, None, None), 2, False, [1, 1, 0]),
        (make_hosts(None, None, None), 5, False, [2, 2, 1]),
        (make_hosts(2, 4), 5, False, [2, 3]),
        (make_hosts(2, 1), 4, False, "-n=4 is more than the 3 slots of the hosts; add --oversubscribe"),
        (make_hosts(2, 1), 4, True, [3, 1]),
        (make_hosts(2, 1, most=3), 6, True, [3, 3]),
        (make_hosts(2, 1, most=3), 7, True, "-n=7 is more than the 6 max_slots of the hosts"),
    ],
)
def test_ranks_fill_hosts_and_go_on_in_turn_as_far_as_slots_allow(
    hosts: list[Host], ranks: int | None, oversubscribe: bool, counts: list[int] | str
) -> None:
    if isinstance(counts, str):
        with pytest.raises(SpecError, match=counts):
            deal_ranks(hosts, ranks, oversubscribe=oversubscribe, label="-n")
    else:
        assert deal_ranks(hosts, ranks, oversubscribe=oversubscribe, label="-n") == counts


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 40))
def test_every_rank_is_dealt_once(slots: list[int], ranks: int) -> None:
    counts = deal_ranks(make_hosts(*slots), ranks, oversubscribe=True, label="-n")
    assert sum(counts) == ranks and all(count >= 0 for count in counts)
    if ranks >= sum(slots):
        extra = [count - own for count, own in zip(counts, slots, strict=True)]
        assert min(extra) >= 0 and max(extra) - min(extra) <= 1
