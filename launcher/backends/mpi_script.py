"""Scripts of `pslaunch mpi --script`. Pure.

`plain`: mpirun runs it without a launcher, as on PaddlePaddle's page for Open MPI. `slurm` and `pbs`: a batch
system runs pslaunch by it, with the same command line.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pslaunch.runtime.shared.env import INIT_ARGS, get_init_var

from ..errors import SpecError
from ..node.job import PYTHON
from ..options.args import Split
from ..options.kinds import Value
from ..options.options import get_options
from ..options.spec import JobSpec
from ..plan import BUNDLED_PSERVER, make_plan

if TYPE_CHECKING:
    from jinja2 import Template

SAVE_S: Final = 60  # from the warning of Slurm to a job's time limit, and more with a long grace
OWN: Final = frozenset({"script", "directive", "output"})  # options of the script alone


class _Batch(NamedTuple):
    """A batch system: the marks of its scripts, and its commands."""

    sentinel: str
    submit: str
    end: str
    example: str  # of a directive


_BATCHES: Final = {
    "slurm": _Batch("SBATCH", "sbatch", "scancel --batch --signal=TERM JOB", "partition=gpu"),
    "pbs": _Batch("PBS", "qsub", "qdel JOB", "q gpu"),
}
_VARIABLES: Final = ("ports_num", "ports_num_for_sparse", "trainer_count", "use_gpu")


def render_plain_script(spec: JobSpec, hostfile: str) -> str:
    """Return start_mpi_train.sh. hostfile: as in mpirun's command line. Raises SpecError.

    It has one pserver, beside rank 0, since mpirun may give no rank to another host.
    """
    plan, hosts = make_plan(spec, spec.job_name), spec.site.reach.hosts
    if plan.server != "bundled":
        raise SpecError(f"--script=plain starts bundled pservers only; pservers: {plan.server}, {plan.why}")
    if not hostfile:
        raise SpecError("--script=plain needs the hostfile of its mpirun: -hostfile FILE")
    python = spec.python or "python3"
    trainer = [python if word == PYTHON else word for word in spec.command]
    return _get_template("plain.sh.j2").render(
        hostfile=shlex.quote(hostfile),
        ranks=spec.site.reach.ranks,
        variables=_list_variables(spec, hosts[0].name),
        pserver=shlex.join([python, *BUNDLED_PSERVER]),
        trainer=shlex.join(trainer),
    )


def _list_variables(spec: JobSpec, host: str) -> list[tuple[str, str]]:
    """Return the variables of all ranks with equal values."""
    port = INIT_ARGS["port"].default if spec.port is None else spec.port
    values = {
        "PADDLE_CLUSTER_TRAIN": "True",
        get_init_var("pservers"): f"[{host}]" if ":" in host else host,
        get_init_var("port"): str(port),
        **{get_init_var(name): str(getattr(spec, name)) for name in _VARIABLES},
        **{get_init_var(name): value for name, value in spec.trainer_flags.items()},
        **spec.env,
    }
    return [*values.items()]


def render_batch_script(
    spec: JobSpec, kind: str, directives: Sequence[Value], split: Split, folder: Path
) -> str:
    """Return a script for Slurm or PBS that runs this command line in `folder`. Raises SpecError."""
    batch = _BATCHES[kind]
    given = [_check_directive(value, batch) for value in directives]
    return _get_template("batch.sh.j2").render(
        sentinel=batch.sentinel,
        directives=[*_list_directives(spec, kind, given), *given],
        submit=batch.submit,
        end=batch.end,
        folder=shlex.quote(str(folder)),
        command=shlex.join([sys.executable, "-P", "-m", "pslaunch", "mpi", *_list_words(split)]),
    )


def _list_directives(spec: JobSpec, kind: str, given: Sequence[str]) -> list[str]:
    """Return the directives of every script; with Slurm, given ones overrule them."""
    name, ranks = re.sub(r"[^\w.-]", "-", spec.job_name, flags=re.ASCII), spec.site.reach.ranks
    if kind == "slurm":
        warn_s = max(SAVE_S, math.ceil(2 * spec.grace_s))
        count = [f"--ntasks={ranks}"] if ranks else []
        return [f"--job-name={name}", *count, f"--signal=B:TERM@{warn_s}"]
    placed = any(re.match(r"-l (select|nodes)=", line) for line in given)
    return [f"-N {name[:15]}", *([] if placed or not ranks else [f"-l select={ranks}:mpiprocs=1"])]


def _check_directive(value: Value, batch: _Batch) -> str:
    """Return a line of a script's header, without its mark; its dashes may be left out."""
    match = re.match(r"-{0,2}([A-Za-z][\w-]*)", value.text)
    if not match or not value.text.isprintable():
        raise SpecError(f"{value.label}={value.text!r}: expected name and value, such as {batch.example!r}")
    return f"{'-' if len(match[1]) == 1 else '--'}{match[1]}{value.text[match.end() :]}"


def _list_words(split: Split) -> list[str]:
    """Return the words of a command line, but for those about the script."""
    options, words = get_options("mpi"), list[str]()
    for word in split.ours:
        name, equals, value = word.removeprefix("--").partition("=")
        if name in OWN:
            continue
        several = options[name].values > 1
        words += [f"--{name}", *value.split(" ", 1)] if several and equals else [word]
    words += [f"--{name}={value}" for name, value in split.trainer_flags.items()]
    words += split.forwarded
    return [*words, *((split.program,) if split.program else ("--",)), *split.program_args]


def _get_template(name: str) -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("pslaunch.templates", "mpi"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["sh"] = shlex.quote
    return templates.get_template(name)
