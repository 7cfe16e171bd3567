"""docs/endings.md: its times and codes are those of the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from pslaunch.backends import carried, leash
from pslaunch.backends.k8s.backend import GONE_EXTRA_S
from pslaunch.backends.k8s.manifests import ENDING_EXTRA_S
from pslaunch.follow import remote_head
from pslaunch.node import codes, ending, procs
from pslaunch.node.head import head, supervisor
from pslaunch.node.line import wire
from pslaunch.options.options import MIN_LOST_AFTER_S
from pslaunch.run import jobs
from pslaunch.runtime.client import dialer
from pslaunch.runtime.pserver import pserver_options
from pslaunch.runtime.shared import prove
from pslaunch.runtime.shared.env import INIT_ARGS
from support.command_line import make_spec
from support.pages import rows, section

PAGE = "endings.md"
NAMED = re.compile(r"^[A-Z]\w* = (\d+)  # (.+)$", re.MULTILINE)
MEANINGS = {int(code): meaning for code, meaning in NAMED.findall(inspect.getsource(codes))}


def test_codes_and_their_meanings() -> None:
    assert {int(code): meaning for code, meaning in rows(PAGE, "Exit codes")} == MEANINGS
    assert {n for n in vars(codes).values() if isinstance(n, int)} == {*MEANINGS, codes.SIGNAL_BASE}


def test_times_on_the_page_are_those_of_the_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    spec = make_spec("local", [], tmp_path, {})
    by_hand = pserver_options.parse_options([], {})
    assert wire.HEARTBEAT_S == procs.BEAT_S
    assert f"`--lost_after`, from {MIN_LOST_AFTER_S:g}" in section(PAGE, "Times")
    assert [time for _, time, _ in rows(PAGE, "Times")] == [
        "never" if value is None else f"{value:g}"
        for value in (
            wire.HEARTBEAT_S,
            spec.draft.limits.lost_after_s,
            spec.draft.limits.grace_s,
            supervisor.LOOK_FURTHER_S,
            ending.KILL_WAIT_S,
            head.FINISH_LIMIT_S,
            head.FINISH_MOST_S,
            remote_head.GIVE_UP_S,
            jobs.HEAD_LOST_AFTER_S,
            spec.draft.limits.stall_after_s,
            spec.draft.limits.stall_timeout_s,
            dialer.ATTEMPT_S,
            INIT_ARGS["connect_timeout"].default,
            dialer.REFUSED_S,
            by_hand.trainer_timeout_s,
            prove.TIMEOUT_S,
        )
    ]


def test_bounds_and_codes_on_the_page_are_those_of_the_code() -> None:
    known = {str(code) for code in MEANINGS} | {"126", "127", "137", "128+n", "the program's own"}
    assert procs.KILL_LIMIT_S <= ending.KILL_WAIT_S
    look, kill = (f"{s:g} s" for s in (supervisor.LOOK_FURTHER_S, ending.KILL_WAIT_S))
    bounds = {
        kill,
        f"grace + {kill}",
        f"{look} + grace + {kill}",
        f"lost_after + grace + {kill}",
        f"lease + grace + {kill}",
        f"{carried.DIAL_S + leash.LEASH_ANSWER_S:g} s + grace + {kill}",
        f"stall_timeout + {look} + grace + {kill}",
        f"stall_timeout + {dialer.ATTEMPT_S:g} s + {look} + grace + {kill}",
        "no program was started",
    }
    removed = f"  the pods, grace + {ENDING_EXTRA_S + GONE_EXTRA_S:g} s at most."
    assert removed in section(PAGE, "Causes of an end")
    for what, within, code in rows(PAGE, "Causes of an end"):
        assert within in bounds, what
        assert set(code.removesuffix(", when it goes on").split(", ")) <= known, what
