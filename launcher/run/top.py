"""The live view of a running job from any later shell, without the output of its programs."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Any, TextIO

from ..errors import NodeLostError, PslaunchError
from ..follow.watch import TICK_S
from ..node import codes
from ..node.head.events import PROGRESS, Event, clean_event
from ..options.spec import Elsewhere
from ..views.outlet import make_view
from .jobs import connect_to_head, find_begun


def show_top(word: str, out: TextIO, *, as_json: bool = False, elsewhere: Elsewhere | None = None) -> int:
    """Show a job until it ends, or until Ctrl+C, which leaves it alone; return the code for the shell."""
    r = find_begun(word, elsewhere)
    if r["state"] != "running":
        raise PslaunchError(f"{r['job']} is not running; pslaunch report {r['job']} shows how it was")
    with connect_to_head(r) as (head, loop):
        left: list[int] = []
        loop.handle_signals({signal.SIGINT: lambda: left.append(signal.SIGINT)})
        status = head.get_status()
        if status is None:
            raise NodeLostError(head.lost)
        earlier_s = float(status["elapsed_s"])  # what runs is shown as if it had begun with the job
        view = make_view(json=as_json, out=out, clock=lambda: time.monotonic() - earlier_s, is_own=False)
        loop.call_every(TICK_S, view.tick)
        try:
            for event in list_present(status):
                view.show_event(clean_event(event))
            earlier_s, cursor = 0.0, status["events"]
            head.follow(cursor)
            while not (head.done or left):
                loop.run_once()
                events, cursor = head.list_events(cursor)
                for event in events:
                    if event["event"] not in ("line", "gap"):
                        view.show_event(event)
            return codes.OK if left else head.code
        except (KeyError, ValueError) as e:
            raise NodeLostError(f"job {r['job']}: its head tells nothing that can be shown: {e}") from None
        finally:
            view.close()


def list_present(status: Mapping[str, Any]) -> list[Event]:
    """Return events that tell the present state of a job."""
    n_and_time = {"n": status["begin"]["n"], "time": status["begin"]["time"] + status["elapsed_s"]}
    events = [status["begin"]]
    for p in status["processes"]:
        if "pid" in p:
            fields = {"state": "running", **{key: p[key] for key in ("process", "node", "pid")}}
            events.append({**n_and_time, "event": "process", **fields})
        fields = {key: p[key] for key in p if key.partition(".")[0] in PROGRESS} | {"state": p.get("said")}
        fields = {key: value for key, value in fields.items() if value is not None}
        events += [{**n_and_time, "event": "progress", "process": p["process"], **fields}] if fields else []
        if p["state"] == "exited":
            ended = {key: p.get(key) for key in ("process", "node", "state", "code", "signal")}
            events.append({**n_and_time, "event": "process", **ended})
    return events
