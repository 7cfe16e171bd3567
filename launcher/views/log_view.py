"""The view of a job's logs for a later shell: lines of programs, and reports beside them."""

from __future__ import annotations

import json as jsonlib
from typing import TextIO

from .view import Event, Said, Transcript, View


class LogView(View):
    """View of one process's lines, or of all with their names; reports go to `err`, or are JSON too."""

    def __init__(
        self,
        out: TextIO,
        err: TextIO | None,
        transcript: Transcript,
        process: str | None,
        *,
        json: bool,
        follow: bool,
    ) -> None:
        """err: None if it is closed; follow: show the end too."""
        self._out, self._err, self._transcript, self._process = out, err, transcript, process
        self._json, self._follow = json, follow

    def show_event(self, e: Event) -> None:
        if not self._is_shown(e):
            return
        if self._json:
            print(jsonlib.dumps(e), file=self._out)
            return
        for said in self._transcript.make_lines(e):
            if said.level == "output":
                prefix, text = self._transcript.make_columns(said)
                print(text if self._process else f"{prefix}{text}", file=self._out)
            else:
                self.report(said)

    def _is_shown(self, e: Event) -> bool:
        if e["event"] in ("line", "gap"):
            return self._process in (None, e["process"])
        return "missing" in e or (e["event"] == "end" and self._follow)

    def flush(self) -> None:
        """Write the buffered text."""
        self._out.flush()

    def report(self, said: Said) -> None:
        """Show a line beside the output."""
        self.flush()
        if self._err is not None:
            print(*self._transcript.make_columns(said), sep="", file=self._err)
