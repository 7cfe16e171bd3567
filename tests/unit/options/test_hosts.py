"""Hosts as users write them: every way to name one, and every wrong one told with its place."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.errors import SpecError
from pslaunch.options.hosts import MAX_HOSTS, Host, choose, parse_hosts, split_list
from pslaunch.options.kinds import Value


def parse(*words: str) -> list[Host]:
    return parse_hosts(words, "conf.py:3")


@pytest.mark.parametrize(
    ("word", "name", "user", "port"),
    [
        ("node1", "node1", None, None),
        ("root@192.168.100.17", "192.168.100.17", "root", None),
        ("root@192.168.100.17:9090", "192.168.100.17", "root", 9090),
        (" gpu_box.example.org:2222\n", "gpu_box.example.org", None, 2222),
        ("[::1]", "::1", None, None),
        ("me@[FE80::0:1%eth0]:22", "fe80::1%eth0", "me", 22),
        ("a@corp.org@node1", "node1", "a@corp.org", None),
        ("CORP\\a@bücher", "bücher", "CORP\\a", None),
    ],
)
def test_a_host_in_every_form(word: str, name: str, user: str | None, port: int | None) -> None:
    assert parse(word) == [Host(name, user, port, 1, "conf.py:3")]


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("node[08-11]", ["node08", "node09", "node10", "node11"]),
        ("node[1-2,7]", ["node1", "node2", "node7"]),
        ("r[1-2]n[3-4].lan", ["r1n3.lan", "r1n4.lan", "r2n3.lan", "r2n4.lan"]),
    ],
)
def test_ranges_are_expanded(word: str, names: list[str]) -> None:
    assert [host.name for host in parse(word)] == names
    assert {(host.user, host.port) for host in parse(f"u@{word}:7")} == {("u", 7)}


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("", "names no host"),
        ("a b@c", "'a b'"),
        ("-oProxyCommand=x@y", "not a user name"),
        ("-oProxyCommand=x", "not a host name"),
        ("node 1", "not a host name"),
        ("::1", "brackets"),
        ("[::zz]", "not an IPv6 address"),
        ("[::1]x:2", "brackets"),
        ("node:", "to 65535, not ''"),
        ("node:65536", "'65536'"),
        ("node[a-b]", r"\[a-b\] is not a range"),
        ("node[9-1]", "backwards"),
        ("node[1-99999999]", f"{MAX_HOSTS} hosts at most"),
        ("node[1-5000]", rf"'node\[1-5000\]': {MAX_HOSTS} hosts at most"),
        ("n\0de", "not a host name"),
        ("a" + "[1-9]" * 20, f"{MAX_HOSTS} hosts at most"),
    ],
)
def test_wrong_host_is_reported_with_its_place(word: str, says: str) -> None:
    with pytest.raises(SpecError, match=says) as caught:
        parse("fine", word)
    assert str(caught.value).startswith("conf.py:3: ")


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("a:2", ("a", 2)),
        ("n[1-2]:3", ("n1", 3)),
        ("[::1]:4", ("[::1]", 4)),
        ("me@a:2222", ("a:2222", 1)),
        ("me@a:22", ("a:22", 1)),
    ],
)
def test_number_after_a_host_without_a_user_is_one_of_slots(word: str, found: tuple[str, int]) -> None:
    host = parse_hosts([word], "--hosts", slots=True)[0]
    assert (host.address, host.times) == found
    twice = parse_hosts([word, word], "--hosts", slots=True)[0]
    assert (twice.address, twice.times) == (found[0], 2 * found[1])


def test_number_that_may_be_a_port_is_an_error_with_both_spellings() -> None:
    with pytest.raises(SpecError, match=r"--hosts: 'a:22'.*write USER@a:22 .*'a slots=22' of a --hostfile"):
        parse_hosts(["a:22"], "--hosts", slots=True)
    with pytest.raises(
        SpecError, match=r"'me@a:2': 2 may be .*write 'Port 2' in ~/.ssh/config .*'me@a slots=2'"
    ):
        parse_hosts(["me@a:2"], "--hosts", slots=True)
    assert parse("me@a:2")[0].port == 2, "conf.py"


def test_a_host_named_k_times_is_one_node_that_counts_k() -> None:
    found = parse("b", "a:22", "b", "a", "b")
    assert [(host.address, host.times) for host in found] == [("b", 3), ("a:22", 1), ("a", 1)]
    assert [host.times for host in parse("n[1-2]", "n[2-3]")] == [1, 2, 1]


def test_one_host_with_two_users_names_both() -> None:
    with pytest.raises(SpecError, match=r"conf.py:9: 'me@a' was named as 'a' before \(conf.py:8\)"):
        parse_hosts(["a", "me@a"], ["conf.py:8", "conf.py:9"])


NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,9}", fullmatch=True)
HOSTS = st.tuples(
    NAMES | st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).map(str),
    st.none() | st.from_regex(r"[a-z_][a-z0-9_.-]{0,9}", fullmatch=True),
    st.none() | st.integers(1, 65535),
).map(lambda fields: Host(*fields))


@given(st.text(max_size=30))
def test_any_text_is_hosts_or_an_error(text: str) -> None:
    try:
        found = parse_hosts([text], "here")
    except SpecError as e:
        assert str(e).startswith("here: ")
    else:
        assert all(not host.name.startswith("-") and host.name == host.name.strip() for host in found)
        assert parse_hosts([host.text for host in found], "here") == [
            Host(h.name, h.user, h.port, 1, "here") for h in found
        ] or any(host.times > 1 for host in found)


def test_lists_keep_ranges_together() -> None:
    assert split_list("a, n[1-2,4],,u@[::1]:2") == ["a", "n[1-2,4]", "u@[::1]:2"]
    assert split_list("a@n[1,2]@b", "@,") == ["a", "n[1,2]", "b"]


CLUSTER = parse("root@n1", "n2:22", "n2:23", "n[3-4]", "[::1]:22")


def chosen(hosts: Sequence[Host], include: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """The addresses of those that are left."""
    both = ([Value(text, f"--{name}") for text in words] for name, words in
            (("include", include), ("exclude", exclude)))  # fmt: skip
    return [host.address for host in choose(hosts, *both)]


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        ([], [], "n1 n2:22 n2:23 n3 n4 [::1]:22"),
        (["n4@n1"], [], "n1 n4"),
        (["n[3-4],n1"], [], "n1 n3 n4"),
        (["n4", "n1"], ["n1"], "n4"),
        (["n2"], [], "n2:22 n2:23"),
        (["root@n1,n4"], [], "n1 n4"),
        ([], ["n2@[::1]"], "n1 n3 n4"),
        ([], ["[::1]:22@n[1-3]"], "n4"),
    ],
)
def test_include_and_exclude_select_hosts(include: list[str], exclude: list[str], left: str) -> None:
    assert chosen(CLUSTER, include, exclude) == left.split()


@pytest.mark.parametrize(
    ("include", "exclude", "says"),
    [
        (["root@n[3-4]"], [], "--include=root@n[3-4]: root@n3 is not among the hosts"),
        (["me@n1"], [], "--include=me@n1: me is not among the hosts"),
        (["n1@nn3"], [], "--include=n1@nn3: nn3 is not among the hosts; did you mean n3?"),
        ([], ["elsewhere"], "--exclude=elsewhere: elsewhere is not among the hosts: n1, n2:22, n2"),
        (["n1"], ["n3"], "--exclude=n3: n3 is not among the hosts: n1"),
        (["n1:0"], [], "expected a port from 1 to 65535, not '0'"),
        (["@"], [], "--include=@ names no host"),
        ([], ["n[1-4]@[::1]"], "--exclude=n[1-4]@[::1] leaves no host"),
    ],
)
def test_unknown_name_is_reported(include: list[str], exclude: list[str], says: str) -> None:
    with pytest.raises(SpecError) as caught:
        chosen(CLUSTER, include, exclude)
    assert says in str(caught.value)


WITH_USERS = parse("root@n[1-3]", "root@m:22", "gpu@n4", "gpu", "n5")


@pytest.mark.parametrize(
    ("include", "left"),
    [
        ("root@n[1-2]", "n1 n2"),
        ("root@n[2-3],n5", "n2 n3 n5"),
        ("root@m:22,gpu@n4", "m:22 n4"),
        ("gpu@n1", "n1 gpu"),
        ("n1@n[4-5]", "n1 n4 n5"),
    ],
)
def test_ranges_with_a_user_are_hosts_as_they_were_named(include: str, left: str) -> None:
    assert chosen(WITH_USERS, [include], []) == left.split()
    assert {*chosen(WITH_USERS, [], [include]), *left.split()} == {host.address for host in WITH_USERS}


@given(st.lists(HOSTS, min_size=1, max_size=8, unique_by=lambda h: h.address), st.data())
def test_included_and_excluded_hosts_are_all(hosts: list[Host], data: st.DataObject) -> None:
    picked = data.draw(st.lists(st.sampled_from(hosts), min_size=1, unique=True))
    words = ["@".join(host.address for host in picked)]
    inside = chosen(hosts, words, [])
    assert {h.address for h in picked} <= set(inside)
    if len(inside) < len(hosts):
        outside = chosen(hosts, [], words)
        assert sorted([*inside, *outside]) == sorted(host.address for host in hosts)
