"""This machine, or a simulated cluster on it."""

from __future__ import annotations

from typing import ClassVar

from ..face import Face


class LocalFace(Face):
    name, example = "local", "--nodes 3"
    spec, backend = "spec:make_local_spec", "backend:LocalBackend"
    helps: ClassVar = {
        "": """Run one job on this machine: its pservers and trainers.

        PROGRAM is train.py unless given: a file, -m MODULE, or a command of PATH; a line for a shell is
        sh -c 'LINE'. All words after it are its own; `--` ends our options too. Unknown
        options before it are passed to it, as --name=value or a bare --flag. Flags of the v2 trainer
        (--num_passes=3, --log_period, --dot_period, --saving_period, --save_dir, --test_period, --local,
        --no_save) overrule the program. Options may also be in ./pslaunch.toml.
        """
    }


FACE = LocalFace()
