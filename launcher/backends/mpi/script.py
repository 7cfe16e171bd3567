"""The script of `pslaunch mpi --script`, which mpirun runs without pslaunch."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from pslaunch.runtime.shared.env import INIT_ARGS, get_init_var

from ...errors import FileError, SpecError
from ...node.job import PYTHON
from ...options.kinds import refuse_unprintable
from ...options.spec import JobSpec
from ...plan import BUNDLED_PSERVER, make_plan
from ..face import CommandLine

_VARIABLES: Final = ("ports_num", "ports_num_for_sparse", "trainer_count", "use_gpu")


def write_script(line: CommandLine, spec: JobSpec) -> int:
    """Write the script of a command line, to a file with `--output`; return 0. Raises PslaunchError."""
    hostfile = line.given.get("hostfile")
    text = render_script(spec, hostfile.text if hostfile else "")
    if (path := line.given.read("output")) is None:
        line.out.write(text)
        return 0
    try:
        Path(path).write_text(text)
        Path(path).chmod(0o755)
    except OSError as e:
        raise FileError.from_os(e, "write the script") from e
    return 0


def render_script(spec: JobSpec, hostfile: str) -> str:
    """Return start_mpi_train.sh. hostfile: as in mpirun's command line. Raises SpecError.

    It has one pserver, beside rank 0, since mpirun may give no rank to another host.
    """
    plan, hosts = make_plan(spec, spec.draft.name), spec.site.reach.hosts
    if plan.server != "bundled":
        raise SpecError(f"--script starts bundled pservers only; pservers: {plan.server}, {plan.why}")
    if not hostfile:
        raise SpecError("--script needs the hostfile of its mpirun: -hostfile FILE")
    python = spec.python or "python3"
    refuse_unprintable(hostfile, python, spec.program)
    trainer = [python if word == PYTHON else word for word in spec.command]
    templates = Environment(
        loader=PackageLoader("pslaunch.templates", "mpi"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["sh"] = shlex.quote
    return templates.get_template("plain.sh.j2").render(
        hostfile=shlex.quote(hostfile),
        ranks=spec.site.reach.agents.ranks,
        variables=_list_variables(spec, hosts[0].name),
        pserver=shlex.join([python, *BUNDLED_PSERVER]),
        trainer=shlex.join(trainer),
    )


def _list_variables(spec: JobSpec, host: str) -> list[tuple[str, str]]:
    """Return the variables of all ranks with equal values."""
    port = INIT_ARGS["port"].default if spec.draft.port is None else spec.draft.port
    values = {
        "PADDLE_CLUSTER_TRAIN": "True",
        get_init_var("pservers"): f"[{host}]" if ":" in host else host,
        get_init_var("port"): str(port),
        **{get_init_var(name): str(getattr(spec.draft, name)) for name in _VARIABLES},
        **{get_init_var(name): value for name, value in spec.draft.flags.items()},
        **spec.draft.added_env,
    }
    if odd := next((name for name in values if not re.fullmatch(r"(?a:[A-Za-z_]\w*)", name)), ""):
        raise SpecError(f"--env {odd!r}: a shell knows no variable of this name, so a script can't set it")
    return [*values.items()]
