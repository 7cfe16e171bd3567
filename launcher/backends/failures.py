"""Failures of carriers, such as mpirun or srun: the causes that their output shows. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ..node import codes

SHOWN_LINES: Final = 6  # of an output without a known cause


class CarrierFailure(NamedTuple):
    """A failure: our exit code, and a text with cause, words of the system, and remedy."""

    code: int
    text: str
    known: bool = True  # by a pattern; else it is the end of an output
    hosts: tuple[str, ...] = ()  # that are to blame, if they are known


class FailureTable(NamedTuple):
    """Causes of failures, by messages of a carrier, or of what it runs."""

    carrier: str  # in messages
    # Regular expressions, codes, and texts with {0}, {1} for groups; the first that is found is the cause.
    patterns: Sequence[tuple[str, int, str]]
    noise: re.Pattern[str]  # lines of the carrier about itself

    def find_cause(
        self, output: str, name_parts: Callable[[Sequence[str]], Mapping[str, object]] = lambda _groups: {}
    ) -> CarrierFailure:
        """Return the cause of a failure in an output, else its last lines.

        name_parts: returns the named parts of a pattern's text, from its groups.
        """
        for words, code, text in self.patterns:
            if match := re.search(words, output):
                groups = [group.rstrip(". \r") for group in match.groups("")]
                return CarrierFailure(code, text.format(*groups, **name_parts(groups)))
        said = self.read_last_lines(output) or "it printed nothing"
        return CarrierFailure(codes.PREFLIGHT, f"{self.carrier} failed: {said}", known=False)

    def read_last_lines(self, output: str) -> str:
        """Return the last lines of an output without those about the carrier itself."""
        lines = [line.strip() for line in output.splitlines() if not self.noise.fullmatch(line.strip())]
        return "\n".join(lines[-SHOWN_LINES:])
