"""The launcher's part of a job that begins from a file: a stand-in in the process of the head.

It speaks to the head as a launcher does, so a job has one way to start; then it only follows.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import codes, job
from ..beginning import PACKAGE_FILE, Beginning
from ..dispatch.archive import Archive
from ..dispatch.to_head import ToHead
from ..line.wire import Line, Message, MessageLine
from ..loop import Loop

if TYPE_CHECKING:
    from .. import messages

MAX_REPORT_BYTES = 4096  # of a container's last message
# Events in words for people; docs/events.md lists the kinds.
_WORDS = {
    "line": "{process} | {text}",
    "note": "pslaunch | {text}",
    "restart": "pslaunch | restart {restart} of {of}, {state}: {why}",
    "ending": "pslaunch | ending the job: {why}",
    "gap": "pslaunch | {process}: {bytes} bytes are left out here; see its log",
    "end": "pslaunch | ended with {code} after {elapsed_s:.1f} s: {reason}",
}


class StandIn:
    """Starter and follower of one job; `code` is the job's once it has ended."""

    def __init__(
        self, loop: Loop, fd: int, begun: Beginning, secret: bytes, folder: str, run_dir: str, out_fd: int
    ) -> None:
        """`fd`: the launcher's end of the head's line; `folder`: as in beginning.py; `out_fd`: for people."""
        self._begun, self._out_fd = begun, out_fd
        self.code: int | None = None
        os.set_blocking(out_fd, False)
        self._left_out = 0  # lines that nobody took in time
        self._rest = b""  # of a line whose beginning was taken
        self._line: MessageLine[messages.OfObserver] = MessageLine(
            loop,
            Line(fd, fd),
            lost_after_s=begun.plan.limits.lost_after_s,
            on_message=self._hear,
            on_lost=lambda reason: self._end(codes.NODE_LOST, f"the head is gone: {reason}"),
        )
        path = os.path.join(folder, PACKAGE_FILE)
        supply = Archive(loop, path, os.path.join(run_dir, "package")) if begun.packed else None
        self._package = ToHead(loop, self._line, supply, lambda why: self._end(codes.NODE_LOST, why))
        self._line.send({
            "type": "lead", "placed": job.to_data(job.place(begun.plan, begun.plan.nodes)),
            "secret": secret.hex(), "detach": False, "supplies": begun.packed,
        })  # fmt: skip

    def _hear(self, m: Message) -> None:
        begun = self._begun
        if m["type"] == "leading" and m["port"] != begun.port:
            self._end(codes.SERVICE, f"port {begun.port}, at which other nodes dial, is not free")
        elif m["type"] == "leading":
            self._line.send({"type": "expect", "limit_s": begun.wait_timeout_s, "again": True})
            self._line.send({"type": "lease", "lease_s": begun.lease_s, "linger_s": begun.linger_s})
            self._line.send({"type": "follow", "cursor": 0, "of": None})
        elif m["type"] == "events":
            self._write([_WORDS[e["event"]].format_map(e) for e in m["events"] if e["event"] in _WORDS])
            for end in [e for e in m["events"] if e["event"] == "end"]:
                self._report(end)
        elif m["type"] == "refused":
            self._end(int(m["code"]), str(m["text"]))
        elif m["type"] == "over":
            self._end(int(m["code"]))
        else:
            self._package.hear(m)

    def _end(self, code: int, text: str = "") -> None:
        if text:
            self._write([f"pslaunch | {text}"])
        self.code = code if self.code is None else self.code
        self._package.close()
        self._line.close()

    def _write(self, lines: Sequence[str]) -> None:
        """Write lines by one call, unless their reader is slow: the job never waits for it."""
        said = [f"pslaunch | {self._left_out} lines are left out here"] if self._left_out else []
        text = "".join(f"{line}\n" for line in (*said, *lines))
        data, end = self._rest + text.encode("utf-8", "backslashreplace"), 0  # of the last line begun
        try:
            taken = os.write(self._out_fd, data)
        except OSError:
            taken = 0
        if taken or self._rest:
            end = data.index(b"\n", max(0, taken - 1)) + 1
        self._rest = data[taken:end]
        untold = self._left_out if (untaken := data.count(b"\n", end)) > len(lines) else 0
        self._left_out = untold + min(untaken, len(lines))

    def _report(self, end: dict[str, Any]) -> None:
        """Write the job's end into the file for it, in few enough bytes."""
        text = json.dumps(end)
        while len(text) > MAX_REPORT_BYTES and end["failure"] and end["failure"]["tail"]:
            end = {**end, "failure": {**end["failure"], "tail": end["failure"]["tail"][1:]}}
            text = json.dumps(end)
        with contextlib.suppress(OSError), open(self._begun.report, "r+", encoding="utf-8") as f:
            f.write(text)
