"""This machine, or a simulated cluster on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..face import CommandLine, Face

if TYPE_CHECKING:
    from ...options.options import Option
    from ...options.spec import JobSpec
    from .backend import LocalBackend


class LocalFace(Face):
    name = "local"
    helps: ClassVar = {
        "": """Run one job on this machine: its pservers and trainers.

        PROGRAM is train.py unless given. All words after it are its own; `--` ends our options too. Unknown
        options before it are passed to it, as --name=value or a bare --flag. Flags of the v2 trainer
        (--num_passes=3, --log_period, --dot_period, --saving_period, --save_dir, --test_period, --local,
        --no_save) overrule the program. Options may also be in ./pslaunch.toml.
        """
    }
    no_check = (
        "pslaunch local has no hosts to check; pslaunch local --dry_run prints its plan, "
        "and pslaunch check fabric checks hosts by SSH"
    )

    def list_options(self) -> Sequence[Option]:
        from .options import OPTIONS

        return OPTIONS

    def make_spec(self, line: CommandLine) -> JobSpec:
        from .spec import make_local_spec

        return make_local_spec(line)

    def make_backend(self, reach: Any) -> LocalBackend:
        from .backend import LocalBackend

        return LocalBackend()


FACE = LocalFace()
