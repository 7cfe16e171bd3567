"""Hosts reached by SSH, as in PaddlePaddle's conf.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..face import CommandLine, Face

if TYPE_CHECKING:
    from pathlib import Path

    from ...options.kinds import SourceValues
    from ...options.options import Option
    from ...options.spec import Elsewhere, JobSpec
    from ..base import Backend
    from .spec import Reach


class FabricFace(Face):
    name = "fabric"
    helps: ClassVar = {
        "": """Run one job on the hosts of conf.py, by SSH.

        The folder of --job_dispatch_package is sent to every host, and PROGRAM (train.py unless given) runs
        in it there. The hosts need sshd and Python 3.9 or later. Options overrule ./pslaunch.toml, which
        overrules conf.py; words before and after PROGRAM are handled as by `pslaunch local`.
        """,
        "check": """Check all hosts of a job and report everything that would prevent it from running.

        Takes the command line of `pslaunch fabric` unchanged. Nothing is sent to the hosts or started there.
        With --json: one object a host. The exit code is 0 if the job can run.
        """,
    }
    place: ClassVar = {
        "conf": ("FILE", "Ask the first host of this conf.py. [default: the jobs known on this machine]")
    }
    place_hint = "--conf conf.py asks hosts"
    file = "conf"

    def list_options(self) -> Sequence[Option]:
        from .options import OPTIONS

        return OPTIONS

    def read_file(self, path: Path, name: str, tell: Callable[[str], None]) -> SourceValues:
        from .conf_py import read_conf

        return read_conf(path, name, tell)

    def make_spec(self, line: CommandLine) -> JobSpec:
        from .spec import make_fabric_spec

        return make_fabric_spec(line)

    def make_backend(self, reach: Reach | None) -> Backend:
        if reach is None:
            from ..here import OnNode0

            return OnNode0(self.name, "add --conf conf.py")
        from .backend import FabricBackend

        return FabricBackend(reach)

    def find_place(self, values: Mapping[str, str], cwd: Path) -> Elsewhere:
        from .spec import find_first_host

        return find_first_host(values["conf"], cwd)

    def from_data(self, data: Any) -> Reach:
        from ..lines import parse_reach
        from .spec import Reach

        return parse_reach(Reach, data)


FACE = FabricFace()
