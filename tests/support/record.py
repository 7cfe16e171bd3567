"""Files of each run: how long every test took, and which passed only when tried again."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest


class Record:
    """What a run leaves in `build/`: durations.txt, sorted, and rerun.txt, to which each run adds.

    Runs of other tests keep their lines in durations.txt; those of `make asan` are marked.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._folder = config.rootpath / "build"
        self._mark = " (asan)" if config.option.markexpr == "asan" else ""
        self._tries_again = bool(config.getoption("reruns", 0))
        self._seconds: dict[str, float] = defaultdict(float)
        self._workers: dict[str, str] = {}
        self._errors: dict[str, list[str]] = defaultdict(list)
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what a test's setup, body or cleanup took, and keep the error of a first try."""
        name = report.nodeid + self._mark
        self._seconds[name] += report.duration
        self._workers[name] = getattr(report, "worker_id", "alone")
        if str(report.outcome) == "rerun":
            self._errors[name].append(report.longreprtext)
        elif report.failed:
            self._failed.add(name)

    def pytest_sessionfinish(self) -> None:
        """Write both files."""
        self._folder.mkdir(exist_ok=True)
        self._write_durations(self._folder / "durations.txt")
        again = {name: errors for name, errors in self._errors.items() if name not in self._failed}
        with (self._folder / "rerun.txt").open("a") as file:
            for name, errors in again.items():
                file.write("\n\n".join([f"{name}: passed only when tried again", *errors]) + "\n\n")

    def _write_durations(self, path: Path) -> None:
        lines = dict[str, str]()
        if path.exists():
            lines = {line.split(maxsplit=2)[2]: line for line in path.read_text().splitlines()}
        for name, seconds in self._seconds.items():
            lines[name] = f"{seconds:8.2f} {self._workers[name]:5} {name}"
        path.write_text("".join(line + "\n" for line in sorted(lines.values(), reverse=True)))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show what earlier runs of a whole `.ci/run` have found as well, last of all but the numbers."""
        path = self._folder / "rerun.txt"
        if self._tries_again and (text := path.read_text()):
            terminalreporter.section("defects: passed only when tried again", red=True)
            terminalreporter.write(text)
