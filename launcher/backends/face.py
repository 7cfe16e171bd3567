"""Faces of backends: all that the rest of the program asks of one, each in the `__init__.py` of its folder.

A face is light: `pslaunch --help` imports all; its methods import the modules of its folder. A package from
outside names its face in the entry points of `pslaunch.backends`, by the name of its command:
`carried = "my_package:FACE"`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from ..errors import SpecError, require_extra

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TextIO

    from ..follow.way import Way
    from ..node.job import Plan
    from ..options.args import Split
    from ..options.kinds import SourceValues
    from ..options.options import Option
    from ..options.sources import Given
    from ..options.spec import Elsewhere, JobSpec
    from .base import Backend

CHECK = "check"


class CommandLine(NamedTuple):
    """Command line of a job, with what its files add."""

    command: str  # a key of `Face.helps`
    given: Given
    split: Split
    cwd: Path
    environ: Mapping[str, str]
    out: TextIO
    tell: Callable[[str], None]  # takes a note for the user

    @property
    def as_json(self) -> bool:
        return self.given.is_set("json")


class Face:
    """Answers of a backend to the rest of the program. The methods that it leaves out answer as most do."""

    name: str
    # Parts in modules of its package, as `module:name`; it may have the methods that use them instead.
    options: str = "options:OPTIONS"
    refused: str = ""  # words of other tools
    spec: str  # function
    backend: str  # class
    reach: str = ""  # class
    start: str = ""  # function, which describes how its agents are started
    extra: str = ""  # of the package, as in errors.EXTRAS: without it there is no backend
    # Texts for --help, by command: "" is `pslaunch NAME`, any other `pslaunch NAME COMMAND`; "check" is
    # `pslaunch check NAME`. The first paragraph of each is its line in the list.
    helps: ClassVar[Mapping[str, str]]
    example: str = ""  # some options that only its jobs have
    help: str = ""  # of `pslaunch NAME`, where it has several commands
    # Options by which later shells find its jobs: metavar and help; the words for who has given none.
    place: ClassVar[Mapping[str, tuple[str, str]]] = {}
    place_hint: str = ""
    places: str = ""  # function, which returns the node or cluster that these options name
    far_hint: str = "ask where the job was started"  # on node 0, from where the other nodes can't be reached
    meant: ClassVar[Mapping[str, str]] = {}  # command lines, by other tools' words for its commands
    file: str = ""  # option for a file, and
    reader: str = ""  # function, which reads it

    # --- Options. ---

    def list_options(self) -> Sequence[Option]:
        """Return the rows of its options, each name once, in the order of its help."""
        return cast("Sequence[Option]", self._import(self.options))

    def list_refused(self) -> Mapping[str, str]:
        """Return words of other tools that it can't take, with reason and remedy; {}: as it was written."""
        return self._import(self.refused) if self.refused else {}

    def read_file(self, path: Path, name: str, tell: Callable[[str], None]) -> SourceValues:
        """Return the options that a file gives; every backend that has the option `file` takes it.

        name: of the file in messages. Raises SpecError.
        """
        return cast("SourceValues", self._import(self.reader)(path, name, tell))

    # --- Jobs. ---

    def make_spec(self, line: CommandLine) -> JobSpec:
        """Return the job of a command line. Raises PslaunchError; contacts nobody, changes nothing."""
        return cast("JobSpec", self._import(self.spec)(line))

    def act(self, line: CommandLine, spec: JobSpec) -> int | None:
        """Do what the command line asks for in place of a start; return its exit code, None for a start."""
        return None

    def check(self, line: CommandLine, spec: JobSpec) -> int:
        """Report everything that would prevent the job from running; return the exit code."""
        from ..check.check_hosts import begin_trace, examine_hosts
        from ..check.report import tell

        trace = begin_trace(spec.trace, CHECK) if spec.trace else None
        backend = self.make_backend(spec.site.reach)
        backend.tell = lambda news: line.tell(news.text)
        _, seen, findings = examine_hosts(spec, backend, {}, trace)
        return tell(seen, findings, line.out, as_json=line.as_json)

    def make_backend(self, reach: Any) -> Backend:
        """Return the backend. reach: as in Site; None for a shell on node 0 without it."""
        if reach is None and self.reach:
            from .here import Here

            return Here(self.name, self.far_hint)
        require_extra(self.extra)
        return cast("Backend", self._import(self.backend)(reach))

    def make_way(self, spec: JobSpec, plan: Plan) -> Way | None:
        """Return a way to the head that only its jobs have; None for the common ones."""
        return None

    def describe_start(self, reach: Any, plan: Plan) -> Mapping[str, Any] | None:
        """Return what is of this backend alone, as data for a dry run: lists of lines by their names.

        `argv`: the command that brings all agents.
        """
        return cast("Mapping[str, Any]", self._import(self.start)(reach)) if self.start else None

    # --- Later shells. ---

    def find_place(self, values: Mapping[str, str], cwd: Path) -> Elsewhere:
        """Return the node or cluster that the options of `place` name. Raises SpecError."""
        return cast("Elsewhere", self._import(self.places)(values, cwd))

    def from_data(self, data: Any) -> Any:
        """Return the reach in a record, which has it as JSON data. Raises SpecError for another version's."""
        from ..node.job import parse
        from .lines import OF_ANOTHER

        kind = self._import(self.reach) if self.reach else None
        try:
            return kind and parse(kind, data)
        except (AttributeError, KeyError, TypeError):
            raise SpecError(OF_ANOTHER) from None

    def _import(self, part: str) -> Any:
        module, _, name = part.partition(":")
        return getattr(importlib.import_module(f".{module}", type(self).__module__), name)
