"""Judgement of facts: findings, exit codes, the table, and the page with the advice."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest

from pslaunch.check.findings import FINDING_KINDS, Seen, Wanted, choose_check_code, judge_hosts
from pslaunch.check.report import HOST_COLUMNS, tell
from pslaunch.errors import HostError
from pslaunch.node import codes
from support.node_facts import FACTS, GB, change_facts
from support.pages import rows

WANTED = Wanted(
    port_given=True, modules={"numpy": "train.py:1"}, later={"pandas": "train.py:9"}, version="1.0"
)


def kinds(*seen: Seen, wanted: Wanted = WANTED, size: int = GB) -> list[tuple[int, str]]:
    return [(f.node, f.kind) for f in judge_hosts(seen, wanted, [size] * len(seen))]


def write(seen: list[Seen], out: io.StringIO | None = None, *, as_json: bool = False) -> str:
    out = out or io.StringIO()
    tell(seen, judge_hosts(seen, WANTED, [0] * len(seen)), out, as_json=as_json)
    return out.getvalue()


GOOD = Seen(host="a", facts=FACTS, addr="10.0.0.1")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"interface_error": "the interface 'eth9' is not there"}, "no interface"),
        ({"ports__7165": "10.0.0.1:7165: Address already in use"}, "busy port"),
        ({"programs__error": "/p: No such file"}, "Python of the programs"),
        ({"programs__missing": ["numpy"]}, "missing modules"),
        ({"programs__missing": ["pandas"]}, "missing later"),
        ({"programs__versions__pslaunch": "0.9"}, "other pslaunch"),
        ({"folders__workspace__error": "/r: Permission denied"}, "no rights"),
        ({"folders__workspace__free_bytes": GB - 1}, "disk full"),
        ({"folders__workspace__free_bytes": 0, "folders__workspace__there": True}, "disk nearly full"),
        ({"used_by": "ws-1"}, "in use"),
        ({"memory__available": GB - 1}, "little memory"),
        ({"proxies": ["http_proxy"]}, "proxies"),
    ],
)
def test_each_problem_has_its_kind(changes: dict[str, Any], kind: str) -> None:
    assert kinds(Seen(host="a", facts=change_facts(**changes))) == [(0, kind)]


def test_a_link_needs_its_target() -> None:
    lacking = change_facts(links={"/data": True, "/mnt": False})
    found = judge_hosts([Seen(host="a", facts=lacking)], WANTED, [0])
    assert [(f.kind, f.text) for f in found] == [("no link", "/mnt is not there")]
    assert choose_check_code(found) == codes.OK, "the job runs: a program may do without"


def test_install_needs_the_modules_for_virtual_environments() -> None:
    wanted = Wanted(install=True, modules={"venv": "--install", "ensurepip": "--install"})
    old = change_facts(programs__missing=["ensurepip"], programs__version="3.9.2")
    assert kinds(Seen(host="a", facts=old), wanted=wanted) == [(0, "no venv"), (0, "old Python")]
    assert kinds(GOOD, wanted=wanted) == []


@pytest.mark.parametrize(
    ("wheel", "kinds_found"),
    [
        ("numpy-2.3.1-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", []),
        ("numpy-2.3.1-py3-none-any.whl", []),
        ("numpy-2.3.1-cp310-abi3-linux_x86_64.whl", []),
        ("numpy-2.3.0-cp311-cp311-linux_x86_64.whl", ["no packages"]),
        ("numpy-2.3.1-cp312-cp312-linux_x86_64.whl", ["no packages"]),
        ("numpy-2.3.1-cp311-cp311-linux_aarch64.whl", ["no packages"]),
        ("numpy-2.3.1.tar.gz", ["no packages"]),
    ],
)
def test_a_wheelhouse_needs_wheels_for_the_host(wheel: str, kinds_found: list[str]) -> None:
    wanted = Wanted(install=True, pins=("numpy==2.3.1",), wheels=("README", wheel))
    assert [kind for _, kind in kinds(GOOD, wanted=wanted)] == kinds_found


def test_clocks_and_networks_are_compared_between_hosts() -> None:
    late = Seen(host="a", facts=FACTS, clock_off_s=-2.5, cut_off="its port 1 can't be reached from b")
    found = judge_hosts([late], WANTED, [0])
    assert [f.text for f in found if f.kind == "clock"] == ["2.5 s behind this machine's"]
    assert [f.text for f in found if f.kind == "unreachable"] == ["its port 1 can't be reached from b"]
    assert kinds(Seen(host="a", facts=FACTS, clock_off_s=1.9)) == []


def test_differences_to_the_first_host_are_warnings() -> None:
    other = change_facts(
        programs__version="3.12.1", programs__versions={"numpy": "1.0"}, processor="", machine="arm64"
    )
    failed = Seen(host="x", failed=HostError("x", "connect", "refused"))
    found = kinds(failed, GOOD, Seen(host="b", facts=other))
    assert found == [(0, "connect"), (2, "other Python"), (2, "other numpy"), (2, "other processor")]


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        (["authenticate", "authenticate"], codes.RIGHTS),
        (["authenticate", "connect"], codes.HOST),
        (["host key", "resolve", "start"], codes.HOST),
        (["connect", "python"], codes.PREFLIGHT),
        ([], codes.OK),
    ],
)
def test_exit_code_follows_the_failed_steps(steps: list[str], code: int) -> None:
    seen = [GOOD, *(Seen(host=step, failed=HostError(step, step, "why")) for step in steps)]
    assert choose_check_code(judge_hosts(seen, WANTED, [0] * len(seen))) == code


def test_the_gpus_of_hosts_have_a_column_if_there_are_any() -> None:
    few = change_facts(cards=[], resources__gpus=["GPU-1"])
    none = change_facts(cards=[], resources__gpus=[])
    bare = Seen(host="c", facts=none, lacks="has no GPU")
    assert "2 H100, 80.0 GB, driver 550.54" in write([GOOD, bare]).splitlines()[1]
    assert write([Seen(host="b", facts=few), bare]).splitlines()[1].endswith(" 1")
    assert "gpus" not in write([bare]).splitlines()[0]
    assert kinds(GOOD, bare) == [(1, "few GPUs or cores")]


def test_the_table_and_the_lines_below_it() -> None:
    text = write([GOOD, Seen(host="b", lost="the line was\x1b closed")])
    head, a, b, said, last = text.splitlines()
    assert head.split() == list(HOST_COLUMNS)
    assert a.split()[:4] == ["a", "yes", "ok", "3.11.2"]
    assert "!no" in b and "?" in b
    assert said.endswith(f": silent: the line was closed; what to do: {FINDING_KINDS['silent'].advice}")
    assert last == "1 of 2 hosts can't be used"
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("me@b", "ssh-copy-id me@b puts"),
        ("me@b:2222", "ssh-copy-id -p 2222 me@b puts"),
        ("[fd00::3]:22", "ssh-copy-id -p 22 fd00::3 puts"),
        ("d\\me@a", "ssh-copy-id 'd\\me@a' puts"),
    ],
)
def test_advice_has_a_command_for_the_host(host: str, told: str) -> None:
    seen = [Seen(host=host, failed=HostError(host, "authenticate", "denied"))]
    for as_json in (False, True):
        assert told in write(seen, as_json=as_json).replace("\\\\", "\\")


def test_a_problem_of_several_hosts_is_shown_once() -> None:
    seen = [Seen(host=name, lost="gone") for name in ("a", "b")] + [Seen(host="c", lost="other")]
    lines = write(seen).splitlines()[4:]
    assert [line.split("; ")[0] for line in lines] == [
        "PROBLEM a, b: silent: gone",
        "PROBLEM c: silent: other",
        "3 of 3 hosts can't be used",
    ]


class Terminal(io.StringIO):
    """An output that reports to be a terminal."""

    def isatty(self) -> bool:
        return True


def draw(seen: list[Seen], columns: int, patch: pytest.MonkeyPatch) -> str:
    """Return the report on a terminal, without its colours."""
    for name, text in (("COLUMNS", str(columns)), ("TERM", "xterm"), ("NO_COLOR", "1")):
        patch.setenv(name, text)
    return re.sub(r"\x1b\[[0-9;]*m", "", write(seen, Terminal()))


@pytest.mark.parametrize(("columns", "gone"), [(230, []), (80, ["clock", "memory", "system"])])
def test_a_terminal_shows_fitting_columns_and_all_findings(
    columns: int, gone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = Seen(host="b", facts=change_facts(ports__7164="x: busy", programs__missing=list("pqrs")))
    text = draw([GOOD, busy], columns, monkeypatch)
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert set(HOST_COLUMNS) - set(lines[0]) >= set(gone)
    assert {"host", "reached", "key", "ports"} <= set(lines[0]) and (gone or lines[0] == list(HOST_COLUMNS))
    hidden = [name for name in HOST_COLUMNS if name not in lines[0]]
    note = f"too narrow for {', '.join(hidden)}: --json or | cat shows all"
    assert (note in text.splitlines()) == bool(gone) and ("too narrow" in text) == bool(gone)
    assert any(line[0] == "b" and "!7164" in line and "busy" in line for line in lines)
    assert any(line[:2] == ["PROBLEM", "b:"] for line in lines) and lines[-1][:3] == ["1", "of", "2"]


def test_one_object_a_host() -> None:
    a, b = map(json.loads, write([GOOD, Seen(host="b", lost="gone")], as_json=True).splitlines())
    assert a["ok"] and a["facts"] == FACTS and a["addr"] == "10.0.0.1"
    assert not b["ok"] and b["facts"] is None and b["findings"][0]["what"] == "silent"


def test_the_page_has_the_advice_for_every_finding() -> None:
    told = {
        name: (column, level, advice)
        for name, column, level, _, advice in rows("fabric.md", "Findings and remedies")
    }
    assert told == {name: (k.column, k.level, k.advice) for name, k in FINDING_KINDS.items()}
    assert {k.column for k in FINDING_KINDS.values()} <= set(HOST_COLUMNS)
